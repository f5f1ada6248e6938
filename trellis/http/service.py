"""The HTTP servers of a broker, one for each listener, with the counters and threads they share."""

from __future__ import annotations

from trellis.http.management.answers import ApiBackend
from trellis.http.management.api import api_routes
from trellis.http.metrics_endpoint import metrics_routes
from trellis.http.routes import HttpRouter
from trellis.http.server import HttpServer
from trellis.http.stream_files import SegmentSender
from trellis.monitoring.http_counters import HttpCounters, HttpListenerCounters
from trellis.server.node import BrokerNode

#: Names of the listeners that speak HTTP.
HTTP_LISTENERS = ("metrics", "http")


class HttpService:
    """The HTTP servers of one broker node."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._counters = HttpCounters()
        self._sender = SegmentSender(self._counters)
        #: The servers by listener name.
        self.servers: dict[str, HttpServer] = {}

    def open(self, listener: str) -> HttpServer:
        """Create and return the server of an HTTP listener, `metrics` or `http`."""
        counters = self._counters.listeners[listener] = HttpListenerCounters()
        server = HttpServer(
            self._routes(listener),
            self._node.settings.limits.handshake,
            counters,
            self._node.descriptors.http,
        )
        self.servers[listener] = server
        return server

    def _routes(self, listener: str) -> HttpRouter:
        if listener == "metrics":
            return metrics_routes(self._node, self._counters)
        return api_routes(ApiBackend(self._node, self._counters, self._sender))

    async def stop(self) -> None:
        """Abort every request that is being served."""
        for server in self.servers.values():
            await server.close()

    def close(self) -> None:
        """Stop the threads that send segments."""
        self._sender.close()
