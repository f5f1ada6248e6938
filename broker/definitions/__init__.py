"""Definitions: import and export in RabbitMQ's format, and the restore when the broker starts."""
