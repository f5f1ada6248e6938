"""The answers of a standby to clients: the address of the node of the cluster that serves clients.

    AMQP             connection.close 320 after connection.open, with a text that names the address
    MQTT 5           CONNACK 0x9C with a Server Reference (section 4.11), or 0x88 if no active node
                     is known
    MQTT 3.1.1, 3.1  CONNACK 3 (server unavailable)

A standby cannot check credentials, so it gives these answers before any check of credentials.
"""

from __future__ import annotations

from collections.abc import Callable


class Redirect:
    """The answers of one standby to clients: the address of the node that is active."""

    def __init__(self, cluster: str, active: Callable[[str], str]) -> None:
        """Create the answers of a standby in the cluster with the name `cluster`.

        `active` is a function from the name of a listener to the HOST:PORT at which the active node
        serves the clients of this listener; "" if the address is not known.
        """
        self._cluster = cluster
        self._active = active

    def server(self, listener: str) -> str:
        """Return the HOST:PORT of the active node for the clients of a listener; "" if it is not
        known.
        """
        return self._active(listener)

    def text(self, listener: str) -> str:
        """Return the text that tells the clients of a listener where to connect."""
        server = self.server(listener)
        begin = f"this node is a standby of cluster '{self._cluster}'"
        return (
            f"{begin}: connect to {server}, which is active"
            if server
            else f"{begin}, and no active node is known: connect again in a few seconds"
        )
