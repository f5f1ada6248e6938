"""MQTT packets: bytes to values and back, at every protocol level."""
