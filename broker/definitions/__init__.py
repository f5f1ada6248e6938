"""Definitions: import and export in the format of RabbitMQ, and restoring them at a start."""
