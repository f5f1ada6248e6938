"""MQTT sessions: subscriptions, packets in flight, wills, shared subscriptions, retained delivery."""
