"""MQTT packets: bytes to values and back, for every protocol level."""
