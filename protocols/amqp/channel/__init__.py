"""AMQP channels: publishing, consumers, confirms, transactions."""
