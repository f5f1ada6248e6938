"""The interface of a layer between a socket and a connection: TLS (trellis/server/tls.py) or
WebSocket.

    socket -- bytes --> layer.receive --> next layer, or Connection.receive_data
    socket <-- bytes -- layer.send    <-- next layer, or Connection.parts_to_send

trellis/server/layered_link.py calls the layers of a connection in order.
"""

from __future__ import annotations

from mypy_extensions import i64


class Layer:
    """One layer of one connection.

    * `open`: the handshake of the layer is complete;
    * `speaks`: the layer has output of its own: call `send`, with an empty list if there are no
      parts to send;
    * `over`: "" while the layer accepts input. Once the layer has ended the stream, `over` is the
      reason, as the metrics name it; the link then calls `Connection.on_closed` with the reason;
    * `refusal`: why the layer has refused the client or the client's input, as a sentence for the
      log; "" if it has refused nothing.
    """

    def __init__(self) -> None:
        self.open = False
        self.speaks = False
        self.over = ""
        self.refusal = ""

    def piece_end(self, data: bytes, start: i64) -> i64:
        """Return the end of a piece of `data`: the caller passes data[start:end] to `receive`.

        The first layer of a link limits the work of one call of `receive` in this way. The next
        piece begins at the end of this piece.
        """
        return len(data)

    def receive(self, data: bytes) -> bytes:
        """Decode input from the layer below, and return the payload for the layer above.

        Raises nothing.
        """
        raise NotImplementedError

    def send(self, parts: list[bytes]) -> list[bytes]:
        """Return the output for the layer below: this layer's output, and the encoded `parts`."""
        raise NotImplementedError

    def close(self, reason: str) -> None:
        """Close the layer, because the connection above has ended.

        The next `send` returns the layer's last bytes, such as a close frame.
        """
        raise NotImplementedError

    def on_closed(self, reason: str) -> None:
        """Handle the loss of the socket, or the connection's end during the layer's handshake."""
        raise NotImplementedError
