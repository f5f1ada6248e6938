"""A node that follows its cluster: its health, its metrics, and its answers to clients.

    metrics port     /healthz, /readyz and /metrics
    AMQP, MQTT       the address of the active node is sent to each client (protocols/redirect.py)
    http port        status 503, with the URL at the active node as Location

The AMQP and MQTT clients are answered by the front ends of an empty broker in memory. So PROXY
headers, TLS, WebSocket and all limits on connections apply as on the active node. An http port with
TLS stays closed: its certificate belongs to the gateway, which runs on the active node only. If the
setting `cluster.redirect` is false, only the metrics port is open.

With the setting `metrics.login`, `/metrics` needs a login here as on the active node. A standby
knows the users of its settings and the tokens of `jwt`; the users in the replicated log are known
to the active node only.
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from typing import Protocol

import trellis
from broker.broker import Broker
from broker.limits import BrokerLimits
from broker.replication.description import NodeDescription
from broker.replication.figures import ClusterFigures
from broker.store.memory import MemoryStore
from protocols.amqp.front import AmqpFront
from protocols.amqp.options import AmqpOptions
from protocols.end_reasons import STANDBY
from protocols.mqtt.front import MqttFront
from protocols.mqtt.options import MqttOptions
from protocols.redirect import Redirect
from trellis.auth.authenticate import Accounts
from trellis.auth.rates import PublishRates
from trellis.auth.tokens.authenticator import TokenAuthenticator
from trellis.http.metrics_endpoint import refuse_reader
from trellis.http.routes import HttpRouter, Unrouted
from trellis.http.server import Handler, HttpServer, Request, Response
from trellis.http.service import HTTP_LISTENERS
from trellis.monitoring.cluster_metrics import add_cluster
from trellis.monitoring.http_counters import HttpCounters, HttpListenerCounters
from trellis.monitoring.page import CONTENT_TYPE, MetricsPage
from trellis.node_state import readiness_text
from trellis.process import raise_descriptor_limit
from trellis.server.admission import Admission
from trellis.server.certificates import Certificates
from trellis.server.descriptors import DescriptorShares
from trellis.server.link_factory import link_factory
from trellis.server.listener import BoundListener, bind
from trellis.server.listener_context import ListenerContext
from trellis.server.refusals import RefusalLog
from trellis.server.store_writer import StoreWriter
from trellis.server.turn import LoopTurn
from trellis.settings import Settings, fill
from trellis.settings.digest import settings_digest


class ClusterMember(Protocol):
    """The interface to a node's membership in its cluster (trellis/cluster/membership.py)."""

    name: str

    def active_server(self, listener: str) -> str:
        """Return the HOST:PORT of the active node for the clients of a listener; "" if unknown."""

    def figures(self) -> ClusterFigures:
        """Return the figures of this node for the metrics."""


class StandbyServer:
    """The open ports of a node while it follows its cluster."""

    def __init__(self, settings: Settings, accounts: Accounts, member: ClusterMember) -> None:
        self.settings = settings
        self.accounts = accounts
        #: The authenticator for tokens; None if no token can log in, or metrics need no login.
        self.tokens = (
            TokenAuthenticator(settings.jwt, accounts)
            if settings.metrics.login and settings.jwt.enabled
            else None
        )
        if self.tokens is not None:
            self.tokens.start()
        self.refusals = RefusalLog(asyncio.get_running_loop())
        self._counters = HttpCounters()
        self._member = member
        self._fronts = RedirectingFronts(settings, accounts, member, self.refusals)
        self._http = HttpServer(
            RedirectingRouter(member), settings.limits.handshake, HttpListenerCounters()
        )
        self._metrics = HttpServer(
            self._health_routes(), settings.limits.handshake, HttpListenerCounters()
        )
        self._serving: list[BoundListener] = []

    def open(self, bound: dict[str, BoundListener]) -> None:
        """Open the ports, add them to `bound`, and serve them. Raises ListenError."""
        for name, listener in self.settings.listeners.items():
            if self._is_served(name):
                bound[name] = bind(name, listener)
        for name, ports in bound.items():
            self._serving.append(ports)
            if name in HTTP_LISTENERS:
                server = self._metrics if name == "metrics" else self._http
                ports.serve(server.protocol, _ignore_refusal)
            else:
                self._fronts.serve(ports)

    def _is_served(self, name: str) -> bool:
        """True if a standby answers the clients of a listener. Other ports stay closed."""
        settings = self.settings
        if name == "metrics" or not settings.cluster.redirect:
            return name == "metrics"
        return name != "http" or not settings.http.tls

    async def close(self) -> None:
        """Stop serving clients. The ports stay open."""
        for ports in self._serving:
            ports.pause()
        self._fronts.close()
        await self._http.close()
        await self._metrics.close()
        if self.tokens is not None:
            self.tokens.tokens.source.close()

    # -- the metrics port

    def _health_routes(self) -> HttpRouter[Handler]:
        router: HttpRouter[Handler] = HttpRouter()
        router.add("GET", "/healthz", self._healthz)
        router.add("GET", "/readyz", self._readyz)
        router.add("GET", "/metrics", self._metrics_page)
        return router

    async def _healthz(self, request: Request) -> Response:
        return Response(200, b"alive\n")

    async def _readyz(self, request: Request) -> Response:
        return Response(503, f"{readiness_text(self._member.figures().state)}\n".encode())

    async def _metrics_page(self, request: Request) -> Response:
        refusal = await refuse_reader(self, self._counters, request)
        if refusal is not None:
            return refusal
        page = MetricsPage()
        add_cluster(page, self._member.figures())
        page.counter(
            "trellis_cluster_redirected",
            "Total number of clients to which this node sent the address of the active node.",
            self._fronts.redirected,
            cluster=self._member.name,
        )
        return Response(200, await page.render(), CONTENT_TYPE)


class RedirectingFronts:
    """The front ends of an empty broker, which send each client the address of the active node."""

    def __init__(
        self, settings: Settings, accounts: Accounts, member: ClusterMember, refusals: RefusalLog
    ) -> None:
        loop = asyncio.get_running_loop()
        store = MemoryStore()
        broker = Broker(
            store,
            accounts,
            lambda: uuid.uuid4().hex,
            fill(BrokerLimits(), settings),
            settings.node.name,
        )
        self._turn = LoopTurn(loop, broker, StoreWriter(store))
        self._fronts = (
            AmqpFront(broker, fill(AmqpOptions(trellis.__version__), settings)),
            MqttFront(broker, fill(MqttOptions(trellis.__version__), settings)),
        )
        for front in self._fronts:
            front.log = refusals.add
            front.redirect = Redirect(member.name, member.active_server)
        shares = DescriptorShares(raise_descriptor_limit())
        self._admission = Admission(
            min(settings.limits.connections or shares.clients, shares.clients),
            settings.limits.unauthenticated_per_address,
            settings.limits.address_connections,
            refusals.add,
        )
        certificates = Certificates(settings)
        amqp, mqtt = self._fronts
        self._contexts = {
            name: ListenerContext(
                name,
                entry,
                settings,
                amqp if name.startswith("amqp") else mqtt,
                self._turn,
                self._admission,
                certificates.contexts.get(name),
                PublishRates(settings.rates),
            )
            for name, entry in settings.protocol_listeners.items()
        }
        self._deadlines = loop.create_task(self._turn.check_deadlines())

    def serve(self, ports: BoundListener) -> None:
        """Begin to answer the clients of a listener."""
        ports.serve(link_factory(self._contexts[ports.name]), self._admission.count_refusal)

    @property
    def redirected(self) -> int:
        """Number of clients to which this node sent the address of the active node."""
        return sum(front.closed.get(STANDBY, 0) for front in self._fronts)

    def close(self) -> None:
        """Abort all connections."""
        self._deadlines.cancel()
        for link in list(self._turn.links):
            link.abort()


class RedirectingRouter(HttpRouter[Handler]):
    """The routes of the http port of a standby: each path leads to the active node."""

    def __init__(self, member: ClusterMember) -> None:
        super().__init__()
        self._member = member

    def find(self, method: str, path: str) -> tuple[Handler, list[str]] | Unrouted:
        """Return a handler that answers with the URL of the same path at the active node."""

        async def redirect(request: Request) -> Response:
            server = self._member.active_server("http")
            query = f"?{request.query}" if request.query else ""
            text = Redirect(self._member.name, self._member.active_server).text("http")
            location = f"http://{server}{path}{query}" if server else ""
            return Response(503, f"{text}\n".encode(), location=location)

        return redirect, []


def describe_node(settings: Settings, addresses: dict[str, str]) -> NodeDescription:
    """Return the description of this node; `addresses` are the addresses of its listeners."""
    ports = {name: int(address.rpartition(":")[2]) for name, address in addresses.items()}
    host = settings.cluster.advertised or socket.gethostname()
    return NodeDescription(settings.node.name, host, ports, settings_digest(settings).hex())


def _ignore_refusal(reason: str) -> None:
    """Ignore a refused connection to an HTTP port of a standby."""
