"""A link that counts what comes, where rates are set: who is too fast is not read for a while."""

from __future__ import annotations

import asyncio

from protocols.connection import TOO_FAST, Connection
from trellis.server.layered_link import LayeredLink
from trellis.server.listener_context import ListenerContext


class RateLimitedLink(LayeredLink):
    """Charges each chunk after it was heard.

    (While one waits its client is not heard: its time to be silent stands still.)
    """

    def __init__(self, entrance: ListenerContext) -> None:
        super().__init__(entrance)
        self._rates = entrance.rates
        self._own = entrance.rates.own(self._turn.now())
        self._held = False

    def _receive(self, connection: Connection, data: bytes) -> None:
        before = connection.published
        super()._receive(connection, data)
        self._charge(connection, max(0, connection.published - before), len(data))

    def resume(self) -> None:
        connection = self._connection
        if connection is None or self._held:
            self._behind = False
            return
        before = connection.published
        super().resume()
        self._charge(connection, max(0, connection.published - before), 0)

    def _charge(self, connection: Connection, messages: int, octets: int) -> None:
        user, vhost = connection.owner
        seconds, limit = self._rates.charge(
            self._own, user, vhost, connection.peer.address, messages, octets, self._turn.now()
        )
        if seconds == 0 or connection.finished:
            return
        if seconds > self._rates.patience:
            connection.close(
                TOO_FAST,
                f"faster than rates.{limit} allows, which is {self._rates.limits[limit]:,} a second",
            )
            return
        connection.held = f"is faster than rates.{limit} allows"
        self._held = True
        self._pause_reading()
        asyncio.get_running_loop().call_later(seconds, self._release)

    def _release(self) -> None:
        self._held = False
        connection, transport = self._connection, self._transport
        if connection is None or transport is None:
            return
        connection.held = ""
        self._turn.schedule()
        connection.heard_at = connection.agenda.now
        self.resume()

    def _resume_reading(self, transport: asyncio.Transport) -> None:
        if not self._held:
            super()._resume_reading(transport)

    def advance(self, now: int) -> None:
        connection = self._connection
        if self._held and connection is not None:
            connection.heard_at = now
        super().advance(now)
