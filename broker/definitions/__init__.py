"""Definitions: import and export in RabbitMQ's format, and restoring them at a start."""
