"""AMQP frames, field tables, properties and contents: bytes to values and back."""
