"""What may stand between a socket and a connection: octets in, other octets out, both ways."""

from __future__ import annotations


class Layer:
    """One direction is `receive`, from the socket; the other is `send`, to it.

    * `open`: the other end has introduced itself, and what it says is for whoever is above;
    * `speaks`: the layer has something to say for itself, so call `send`, be it with nothing;
    * `over`: why nothing more is heard from the other end, as the metrics name it; empty while more
    may come.
    """

    def __init__(self) -> None:
        self.open = False
        self.speaks = False
        self.over = ""

    def receive(self, data: bytes) -> bytes:
        """What the octets from below mean to whoever is above. No exception comes out."""
        raise NotImplementedError

    def send(self, parts: list[bytes]) -> list[bytes]:
        """What to send below, in order: what the layer itself has to say, and the parts from above
        in its own form.
        """
        raise NotImplementedError

    def close(self, reason: str) -> None:
        """The connection above ended, for this reason: have the next `send` say so, after all else."""
        raise NotImplementedError

    def on_closed(self, reason: str) -> None:
        """The socket is gone, or the connection above ended, before the layer was open."""
        raise NotImplementedError
