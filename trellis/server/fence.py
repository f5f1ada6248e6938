"""Aborts all client connections from a thread other than the event loop's thread.

The active node of a cluster must not serve clients once a standby may have taken over. But its
event loop may be stuck, and output may still be in the sockets. So the sockets get the option
SO_LINGER 0: the kernel discards the sockets' output when the event loop, or the end of the process,
closes them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Callable
from typing import Final

from trellis import logs
from trellis.server.turn import LoopTurn

#: Seconds within which the event loop must abort the connections; otherwise the process ends.
ANSWER_SECONDS: Final = 0.5
#: Value of the socket option SO_LINGER: on, 0 seconds.
_DISCARD: Final = struct.pack("ii", 1, 0)


class ConnectionFence:
    """A fence that aborts the connections of all links of a LoopTurn, and of HTTP clients.

    `end(reason)` ends the process. `abort_http()` aborts the connections of HTTP clients, in the
    event loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turn: LoopTurn,
        end: Callable[[str], None],
        abort_http: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._turn = turn
        self._end = end
        self._abort_http = abort_http

    def abort(self) -> None:
        """Abort all connections, from another thread than the event loop's.

        Ends the process if the event loop does not abort the connections within ANSWER_SECONDS.
        """
        self.discard_output()
        answered = threading.Event()
        self._loop.call_soon_threadsafe(self._abort_links, answered)
        if not answered.wait(ANSWER_SECONDS):
            self._end("the lease is over, and the event loop does not answer")

    def discard_output(self) -> None:
        """Make the kernel discard unsent output when the clients' sockets close."""
        for link in list(self._turn.links):
            descriptor = link.descriptor
            if descriptor < 0:
                continue
            try:
                with socket.socket(fileno=os.dup(descriptor)) as sock:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DISCARD)
            except OSError:
                pass  # The connection was closed meanwhile, so there is no output to discard.

    def _abort_links(self, answered: threading.Event) -> None:
        links = list(self._turn.links)
        for link in links:
            link.abort()
        self._abort_http()
        answered.set()
        if links:
            logs.warning(
                "cluster_aborted",
                connections=len(links),
                note="the replicated log has acknowledged no record for so long that another node "
                "may have taken over; check Kafka and the network between this node and Kafka",
            )
