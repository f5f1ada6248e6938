"""The status of each link of `trellis connect`, with its counters, and the HTTP pages that show
it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

from aiohttp import web

from trellis.monitoring.page import CONTENT_TYPE, MetricsPage

#: Upper bounds of the buckets of the durations of deliveries, in seconds.
_BUCKETS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)
#: Largest length of the text of an error, in characters.
_TEXT_MAX: Final = 500


class LinkState(StrEnum):
    """The states of a link."""

    CONNECTING = "connecting"
    RUNNING = "running"
    #: The target asked for a pause (429 or 503 with Retry-After).
    PAUSED = "paused"
    #: The link has lost a connection, or something that it needs is missing; it tries again.
    FAILING = "failing"
    #: The target answered 410 (Gone). The link does nothing until the process is started again.
    STOPPED = "stopped"


class LinkStatus:
    """The state and the counters of one link."""

    def __init__(self, name: str, kind: str) -> None:
        self.name: Final = name
        self.kind: Final = kind
        self.state = LinkState.CONNECTING
        #: The last error, and its time in seconds since 1970.
        self.error = ""
        self.error_at = 0.0
        self.delivered = 0
        self.bytes = 0
        self.retries = 0
        self.dead_lettered = 0
        self.dropped = 0
        self.reconnects = 0
        self.in_flight = 0
        #: The stored offset of a stream; -1 if no offset is stored.
        self.offset = -1
        #: Answers of the HTTP service by status; "error" counts requests without an answer.
        self.answers: Counter[str] = Counter()
        self._durations = [0] * (len(_BUCKETS) + 1)
        self._seconds = 0.0

    def failed(self, text: str) -> None:
        """Record the text of an error, and the present time."""
        self.error = text[:_TEXT_MAX]
        self.error_at = time.time()

    def took(self, seconds: float) -> None:
        """Count an attempt that took this number of seconds."""
        self._seconds += seconds
        at = next((n for n, bound in enumerate(_BUCKETS) if seconds <= bound), len(_BUCKETS))
        self._durations[at] += 1

    @property
    def healthy(self) -> bool:
        """True if the link runs, or pauses because its target asked for a pause."""
        return self.state in (LinkState.RUNNING, LinkState.PAUSED)

    def document(self) -> dict[str, Any]:
        """Return the part of /health about this link."""
        fields: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "state": self.state.value,
            "delivered": self.delivered,
            "in_flight": self.in_flight,
            "dead_lettered": self.dead_lettered,
        }
        if self.error:
            fields["error"] = self.error
            fields["error_age_seconds"] = round(time.time() - self.error_at, 1)
        return fields

    def add_metrics(self, page: MetricsPage) -> None:
        """Add the metrics of this link to a page."""
        labels = {"link": self.name, "kind": self.kind}
        for state in LinkState:
            page.listed(
                "trellis_connect_state",
                "gauge",
                "1 for the present state of the link, 0 for each other state",
                int(self.state is state),
                {**labels, "state": state.value},
            )
        for name, text, value in (
            ("delivered", "Messages that the target has accepted", self.delivered),
            ("delivered_bytes", "Bytes of bodies that the target has accepted", self.bytes),
            ("retries", "Attempts that repeated a failed attempt", self.retries),
            ("dead_lettered", "Messages that the link has dead-lettered", self.dead_lettered),
            ("dropped", "Records that were dropped because no queue takes them", self.dropped),
            ("reconnects", "Errors that made the link connect again", self.reconnects),
        ):
            page.listed(f"trellis_connect_{name}", "counter", text, value, labels)
        page.listed(
            "trellis_connect_in_flight",
            "gauge",
            "Messages that the link has received and not settled",
            self.in_flight,
            labels,
        )
        page.listed(
            "trellis_connect_stored_offset",
            "gauge",
            "Stored offset, up to which all rows of a stream are settled; -1 if there is none",
            self.offset,
            labels,
        )
        if self.kind == "webhook":
            self._add_http(page, labels)

    def _add_http(self, page: MetricsPage, labels: dict[str, str]) -> None:
        for status in sorted(self.answers):
            page.listed(
                "trellis_connect_http_answers",
                "counter",
                "Answers of the HTTP service by status; error counts requests without an answer",
                self.answers[status],
                {**labels, "status": status},
            )
        total = 0
        bounds = [*(f"{bound:g}" for bound in _BUCKETS), "+Inf"]
        for bound, count in zip(bounds, self._durations, strict=True):
            total += count
            page.listed(
                "trellis_connect_http_attempts",
                "counter",
                "Attempts that took at most `within` seconds",
                total,
                {**labels, "within": bound},
            )
        page.listed(
            "trellis_connect_http_seconds",
            "counter",
            "Total duration of all attempts in seconds",
            self._seconds,
            labels,
        )


async def start_pages(links: Sequence[LinkStatus], host: str, port: int) -> web.AppRunner:
    """Serve /metrics and /health on a port until `cleanup` of the returned runner is called.

    Raises OSError if the port cannot be opened.
    """

    async def metrics(_: web.Request) -> web.Response:
        page = MetricsPage()
        for link in links:
            link.add_metrics(page)
        return web.Response(body=bytes(await page.render()), headers={"content-type": CONTENT_TYPE})

    async def health(_: web.Request) -> web.Response:
        healthy = all(link.healthy for link in links)
        document = {"healthy": healthy, "links": [link.document() for link in links]}
        return web.json_response(document, status=200 if healthy else 503)

    application = web.Application(client_max_size=1024)
    application.router.add_get("/metrics", metrics)
    application.router.add_get("/health", health)
    runner = web.AppRunner(application, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner
