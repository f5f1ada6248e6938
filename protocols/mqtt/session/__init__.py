"""MQTT sessions: subscriptions, inbox, messages in flight, wills, and what is sent to clients."""
