"""AMQP channels: publishing, consuming, confirms, transactions."""
