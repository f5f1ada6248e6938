"""MQTT 3.1.1. Reading order: packets, topics, session, sessions, answers, service, subscribing, connection, front."""
