"""The HTTP of a broker: the server of the metrics port, and the gateway of the http port."""

from __future__ import annotations

from trellis.http.gateway_process import GatewayProcess
from trellis.http.metrics_endpoint import metrics_routes
from trellis.http.server import HttpServer
from trellis.monitoring.http_counters import HttpCounters, HttpListenerCounters
from trellis.server.listener import BoundListener
from trellis.server.node import BrokerNode
from trellis.settings import Settings

#: Names of the listeners that speak HTTP.
HTTP_LISTENERS = ("metrics", "http")


class HttpService:
    """The HTTP servers of one broker node."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._counters = HttpCounters()
        #: The server of the metrics port, and the process that serves the http port; None if the
        #: listener is not enabled.
        self.metrics: HttpServer | None = None
        self.gateway: GatewayProcess | None = None
        node.abort_http = self._abort_api

    def open(self, listener: str, ports: BoundListener) -> None:
        """Serve an HTTP listener, `metrics` or `http`."""
        node = self._node
        counters = self._counters.listeners[listener] = HttpListenerCounters()
        if listener == "metrics":
            self.metrics = HttpServer(
                metrics_routes(node, self._counters),
                node.settings.limits.handshake,
                counters,
                node.descriptors.http,
            )
            ports.serve(self.metrics.protocol, node.admission.count_refusal)
        else:
            self.gateway = GatewayProcess(node, self._counters, counters, ports.sockets)

    def reload(self, settings: Settings) -> None:
        """Make the gateway use the settings of a reload."""
        if self.gateway is not None:
            self.gateway.reload(settings)

    def _abort_api(self) -> None:
        """Abort the connections of the API's clients. The next client starts another gateway."""
        if self.gateway is not None:
            self.gateway.abort()

    async def stop(self) -> None:
        """Abort every request that is being served, and end the gateway."""
        if self.metrics is not None:
            await self.metrics.close()
        if self.gateway is not None:
            await self.gateway.close()
