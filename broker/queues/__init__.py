"""Queues: order, limits, priorities, delays, consumers and their arguments."""
