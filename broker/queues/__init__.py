"""Queues: order of delivery, limits, priorities, delays, consumers, arguments, policies."""
