"""MQTT over WebSocket (RFC 6455; MQTT 5.0, section 6): a stream of bytes in binary frames.

    GET /ws -> 101     upgrade.py   checks the HTTP request and its Origin, and answers it
    frames <-> bytes   frames.py    frame headers, masks, close frames
    both               layer.py     the layer between a socket, or TLS, and a connection

The payload of a frame is passed on as it arrives. Frames and WebSocket messages are never collected
first, so their sizes need no limit, and an MQTT packet may begin and end in any frame
[MQTT-6.0.0-2]. The broker agrees to no extension, so a compressed frame is an error.

A WebSocket closes in two steps: each side sends a close frame (frames.close), whose code tells the
reason. WebSocketLayer.close sends the broker's close frame. WebSocketLayer._on_control answers the
client's close frame.
"""

from protocols.websocket.layer import WebSocketLayer, WebSocketTally
from protocols.websocket.upgrade import OriginPolicy

__all__ = ["OriginPolicy", "WebSocketLayer", "WebSocketTally"]
