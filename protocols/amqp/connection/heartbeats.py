"""Heartbeats of an AMQP connection (section 4.2.7), and the time limit of its handshake."""

from __future__ import annotations

from mypy_extensions import i64

from protocols.amqp.channel.connection_interface import ConnectionInterface
from protocols.amqp.codec.frames import HEARTBEAT_FRAME
from protocols.amqp.connection import states


def advance(connection: ConnectionInterface, heartbeat: i64, now: int) -> None:
    """Send a heartbeat, or abort a connection whose client has been silent for too long.

    Called at the connection's deadline. Until connection.open-ok, the deadline is the time limit of
    the handshake; after connection.close, it is the time limit of the close. In both cases the
    connection is aborted. While the connection is running, the next deadline is half a heartbeat
    interval later: two heartbeats are sent in each interval, and two intervals without input abort
    the connection (section 4.2.7). `heartbeat` is the interval in seconds, `now` the agenda's time
    in ms.
    """
    if connection.state != states.RUNNING:
        connection.abort("handshake_timeout")
        connection.touch()
        return
    interval: i64 = heartbeat * 1000
    if connection.stalled:
        # The broker does not read from this client, so the client's silence does not count.
        connection.last_input_at = now
    if now - connection.last_input_at > 2 * interval:
        connection.abort("heartbeat_timeout")
    else:
        connection.out.write(HEARTBEAT_FRAME)
        connection.deadline = now + interval // 2
    connection.touch()
