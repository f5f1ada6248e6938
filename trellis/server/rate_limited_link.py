"""Rate-limited links: throttle clients that publish faster than the settings `rates` allow."""

from __future__ import annotations

import asyncio

from protocols.connection import Connection
from protocols.end_reasons import TOO_FAST
from trellis.server.layered_link import LayeredLink
from trellis.server.listener_context import ListenerContext


class RateLimitedLink(LayeredLink):
    """The link of a client with rate limits.

    The messages and bytes of each chunk are charged to the limits after the chunk was handled.
    A client above a limit is throttled: the link pauses reading from the client. A client that
    would have to wait longer than `rates.patience` is disconnected. The keep-alive timer of a
    throttled client does not run.
    """

    def __init__(self, context: ListenerContext) -> None:
        super().__init__(context)
        self._rates = context.rates
        self._buckets = context.rates.connection_buckets(self._turn.now())
        self._throttled = False
        #: True once the connection is closed because of a rate limit. The client may send more
        #: input before it answers the close; this input is not charged.
        self._refused = False
        #: True during a call of `resume`, which charges the messages of all input that it handles.
        self._resuming = False

    def _receive(self, connection: Connection, data: bytes) -> None:
        before = connection.published
        super()._receive(connection, data)
        messages = 0 if self._resuming else max(0, connection.published - before)
        # Input that waits for the login again will be charged when it is handled.
        rest = self._unread_input
        self._charge(connection, messages, len(data) - (0 if rest is None else len(rest)))

    def resume(self) -> None:
        """Handle leftover input, unless the client is throttled."""
        connection = self._connection
        if connection is None or self._throttled:
            self._in_leftover = False
            return
        before = connection.published
        self._resuming = True
        try:
            super().resume()
        finally:
            self._resuming = False
        self._charge(connection, max(0, connection.published - before), 0)

    def _charge(self, connection: Connection, messages: int, size: int) -> None:
        """Charge `messages` messages and `size` bytes of input to the rate limits.

        Throttle or close a connection above a limit.
        """
        if self._refused:
            return
        user, vhost = connection.owner
        seconds, limit = self._rates.charge(
            self._buckets,
            user,
            vhost,
            connection.peer.address,
            messages,
            size,
            self._turn.now(),
            connection.finished,
        )
        if seconds == 0 or connection.finished:
            return
        if seconds > self._rates.patience:
            self._refused = True
            text = (
                f"the client sends more than rates.{limit} allows ({self._rates.limits[limit]:,} "
                f"{limit.rpartition('_')[2]} a second), and would have to wait longer than "
                f"rates.patience ({self._rates.patience:g} s)"
            )
            connection.front.log_end(connection, text)
            connection.close(TOO_FAST, text)
            return
        connection.throttled = f"is faster than rates.{limit} allows"
        self._throttled = True
        self._pause_reading()
        asyncio.get_running_loop().call_later(seconds, self._end_throttling)

    def _end_throttling(self) -> None:
        self._throttled = False
        connection, transport = self._connection, self._transport
        if connection is None or transport is None:
            return
        connection.throttled = ""
        self._turn.schedule()
        connection.last_input_at = connection.agenda.now
        self.resume()

    def _resume_reading(self, transport: asyncio.Transport) -> None:
        if not self._throttled:
            super()._resume_reading(transport)

    def advance(self, now: int) -> None:
        """Handle deadlines that have passed; the keep-alive of a throttled client does not run."""
        connection = self._connection
        if self._throttled and connection is not None:
            connection.last_input_at = now
        super().advance(now)
