"""WebSocket (RFC 6455), as far as MQTT needs it (MQTT 5.0 section 6): a stream of octets in binary
frames.

    GET /ws -> 101     upgrade.py   who may come in, and the answer in HTTP
    frames <-> octets  frames.py    heads, masks, closes
    both               layer.py     the layer between a socket, or TLS, and a connection

A frame's payload goes on as it comes: nothing is kept until a frame or a message is complete, so
their sizes need no limit of their own, and MQTT packets may be cut in any way [MQTT-6.0.0-2]. No
extension is agreed to, so that a compressed frame is an error.
"""

from protocols.websocket.layer import WebSocketLayer, WebSocketTally
from protocols.websocket.upgrade import OriginPolicy

__all__ = ["OriginPolicy", "WebSocketLayer", "WebSocketTally"]
