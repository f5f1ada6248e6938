"""MQTT connections: login, packet handlers of each level, subscribing, reauthorization."""
