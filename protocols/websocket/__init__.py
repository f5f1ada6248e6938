"""MQTT over WebSocket (RFC 6455; MQTT 5.0, section 6): a stream of bytes in binary frames.

    GET /ws -> 101     upgrade.py   checks the HTTP request and its Origin, and answers it
    frames <-> bytes   frames.py    frame headers, masks, close frames
    both               layer.py     the layer between a socket, or TLS, and a connection

The payload of a frame is passed on as it arrives. A frame or message is never collected first, so
their sizes need no limit of their own, and MQTT packets may be cut in any way [MQTT-6.0.0-2]. The
broker agrees to no extension, so a compressed frame is an error.

A WebSocket closes in two steps: each side sends a close frame (frames.close), whose code says why.
WebSocketLayer.close sends the broker's; a close frame of the client is answered in `_on_control`.
"""

from protocols.websocket.layer import WebSocketLayer, WebSocketTally
from protocols.websocket.upgrade import OriginPolicy

__all__ = ["OriginPolicy", "WebSocketLayer", "WebSocketTally"]
