"""The error that stops a node of a cluster."""


class ReplicationError(Exception):
    """Raised if a node cannot continue in its cluster. The text names the reason and a remedy."""
