"""Routing: from an identity, an exchange and a key to the queues that receive a message."""
