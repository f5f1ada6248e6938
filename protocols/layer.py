"""A layer between a socket and a connection: TLS (trellis/server/tls.py) and WebSocket.

    socket -- bytes --> layer.receive --> next layer, or Connection.receive_data
    socket <-- bytes -- layer.send    <-- next layer, or Connection.parts_to_send

trellis/server/layered_link.py calls the layers of a connection in order.
"""

from __future__ import annotations


class Layer:
    """One layer of one connection.

    * `open`: the handshake of the layer is complete;
    * `speaks`: the layer has output of its own, so `send` must be called, even with no parts;
    * `over`: reason why no more input is accepted, as the metrics name it; "" before.
    """

    def __init__(self) -> None:
        self.open = False
        self.speaks = False
        self.over = ""

    def receive(self, data: bytes) -> bytes:
        """Return the payload of the input, for the layer above. Raises nothing."""
        raise NotImplementedError

    def send(self, parts: list[bytes]) -> list[bytes]:
        """Return the output for the layer below: this layer's own, and the parts in its framing."""
        raise NotImplementedError

    def close(self, reason: str) -> None:
        """Close the layer, because the connection above has ended.

        The next `send` returns the layer's last bytes, such as a close frame.
        """
        raise NotImplementedError

    def on_closed(self, reason: str) -> None:
        """Handle the loss of the socket, or the end of the connection before the layer was open."""
        raise NotImplementedError
