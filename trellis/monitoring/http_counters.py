"""Counters of the HTTP listeners: the HTTP servers increase them, the metrics read them."""

from __future__ import annotations

from typing import Final

#: Reasons for which a connection ends without a response. "descriptors" counts pauses in accepting
#: because file descriptors or memory have run out.
CLOSE_REASONS: Final = ("lost", "too_many", "timeout", "descriptors")


class HttpListenerCounters:
    """Counters of one HTTP listener."""

    def __init__(self) -> None:
        #: Responses by status code.
        self.responses: dict[int, int] = {}
        #: Connections closed without a response, by reason.
        self.closed = dict.fromkeys(CLOSE_REASONS, 0)
        #: Number of gateway processes that were started, and of gateway processes that ended
        #: unexpectedly.
        self.gateway_starts = 0
        self.gateways_lost = 0


class HttpCounters:
    """Counters of all HTTP listeners of a broker."""

    def __init__(self) -> None:
        #: Counters by listener name.
        self.listeners: dict[str, HttpListenerCounters] = {}
        #: Logins over HTTP, by outcome.
        self.logins: dict[str, int] = {}
        #: Bytes of stream segments that were sent to clients.
        self.segment_bytes_sent = 0
        #: Number of objects whose counters the API remembers, to compute rates.
        self.rated_objects = 0
