"""Starts the gateway's process at the first request, watches it, and starts it again after its end.

The broker opens the listening sockets. While no gateway runs, the broker only watches whether a
client connects; the gateway inherits the sockets and accepts. An idle gateway ends by itself.

The broker loads the modules that answer the gateway's calls (API_MODULES) before it starts the
first gateway. So a broker starts 10 ms faster, and without requests to its HTTP API, it does not
load them. If no file descriptor is free, neither the modules can be loaded nor a gateway be
started, and the broker tries both again.
"""

from __future__ import annotations

import asyncio
import socket
from importlib import import_module
from typing import TYPE_CHECKING, Final

import trellis
from broker.definitions.rabbitmq import SECTIONS
from trellis import logs
from trellis.child_process import Program, start_program, wait_or_kill
from trellis.http import contract
from trellis.monitoring.http_counters import HttpCounters, HttpListenerCounters
from trellis.server.node import BrokerNode
from trellis.settings import Settings

if TYPE_CHECKING:
    from trellis.http.answering import CallServer
    from trellis.http.management.answers import ApiBackend

#: Shortest time in seconds between two starts of a gateway, so that a gateway that ends at once is
#: not restarted in a busy loop. Clients wait in the kernel's queue meanwhile.
RESTART_SECONDS: Final = 1.0
#: The program of the gateway.
PROGRAM: Final = "trellis.http.gateway"
#: The modules that answer the gateway's calls. The event loop loads one of them per turn, in this
#: order, which divides the modules that they import, so that each turn takes less than 3 ms.
API_MODULES: Final = (
    "trellis.monitoring.route_rows",
    "trellis.http.management.answers",
    "trellis.http.stream_files",
    *(
        f"trellis.http.management.{name}"
        for name in (
            "topology",
            "connections",
            "consequences",
            "definitions",
            "routing",
            "diagnosis",
            "health",
            "extensions",
            "links",
            "moving",
            "retaining",
            "right_consequences",
            "stream_rows",
            "api",
        )
    ),
    "trellis.http.answering",
)
#: Shortest time in seconds between two log lines about gateways that failed.
LOG_INTERVAL: Final = 60.0


class GatewayProcess:
    """The process that serves one HTTP listener, whose listening sockets are `sockets`."""

    def __init__(
        self,
        node: BrokerNode,
        all_counters: HttpCounters,
        counters: HttpListenerCounters,
        sockets: list[socket.socket],
    ) -> None:
        """Watch the sockets. `all_counters` counts for all HTTP listeners, `counters` for one."""
        self._node = node
        self._all_counters = all_counters
        self._counters = counters
        self._sockets = sockets
        self._settings = node.settings
        #: The state that the handlers of the API share; None before the first gateway.
        self._backend: ApiBackend | None = None
        self._loop = asyncio.get_running_loop()
        self._watching = False
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self._started_at = -RESTART_SECONDS
        self._logged_at = -LOG_INTERVAL
        self._process: Program | None = None
        #: The connection to the gateway; None while no gateway runs.
        self.server: CallServer | None = None
        self._watch()

    @property
    def pid(self) -> int:
        """The process number of the gateway; 0 while no gateway runs."""
        return 0 if self._process is None or self.server is None else self._process.pid

    def reload(self, settings: Settings) -> None:
        """Use new settings for the next gateway; end the present gateway if the settings of the log
        or of TLS have changed.

        A gateway with TLS always ends, because the certificate files may have changed. The gateway
        ends after its present requests.
        """
        before, self._settings = self._settings, settings
        changed = settings.log != before.log or settings.tls != before.tls
        if self.server is not None and (changed or settings.http.tls):
            self.server.send(contract.Drain())

    def abort(self) -> None:
        """End the present gateway, which aborts its requests."""
        if self.server is not None:
            self.server.abort()

    async def close(self) -> None:
        """End the gateway, and stop watching the listening sockets."""
        self._closed = True
        self._unwatch()
        self.abort()
        if self._process is not None:
            self._process.kill()
        if self._task is not None:
            await self._task

    # -- watching

    def _watch(self) -> None:
        """Watch the listening sockets, and start a gateway when a client connects."""
        if not self._watching and not self._closed:
            self._watching = True
            for sock in self._sockets:
                self._loop.add_reader(sock, self._on_client)

    def _unwatch(self) -> None:
        if self._watching:
            self._watching = False
            for sock in self._sockets:
                self._loop.remove_reader(sock)

    def _on_client(self) -> None:
        self._unwatch()
        self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        """Run one gateway from its start to its end."""
        try:
            await asyncio.sleep(max(0.0, self._started_at + RESTART_SECONDS - self._loop.time()))
            self._started_at = self._loop.time()
            if not self._closed:
                await self._serve()
        except (OSError, ImportError) as error:
            self._log(
                "http_gateway_not_started",
                error=getattr(error, "strerror", None) or error,
                note=f"the HTTP API does not answer; next attempt in {RESTART_SECONDS:g} s",
            )
        finally:
            self._watch()

    async def _serve(self) -> None:
        """Start a gateway, answer its calls, and wait for its end. Raises OSError, ImportError."""
        backend = await self._load_api()
        from trellis.http.answering import CallServer

        ours, theirs = socket.socketpair()
        files, their_files = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            ours.setblocking(False)
            files.setblocking(False)
            with theirs, their_files:
                self._process = await self._loop.run_in_executor(
                    None, self._start, theirs, their_files
                )
            server = CallServer(backend, self._counters, files)
            try:
                if self._closed:
                    self._process.kill()
                else:
                    await self._loop.create_unix_connection(lambda: server, sock=ours)
                    self.server = server
                    server.send(self._greeting())
                    await server.lost.wait()
                    await server.finish()
            finally:
                self.server = None
                process, self._process = self._process, None
                status = await self._loop.run_in_executor(None, wait_or_kill, process)
        finally:
            files.close()
            ours.close()
        if self._closed:
            return
        if server.has_announced_end:
            logs.info("http_gateway_ended", reason="no open connection, or new settings")
        else:
            self._counters.gateways_lost += 1
            self._log(
                "http_gateway_lost",
                status=status,
                note="open requests to the gateway failed; the next request starts the gateway "
                "again",
            )

    async def _load_api(self) -> ApiBackend:
        """Load the modules of the API, one per turn of the event loop, and return its state.

        Raises OSError or ImportError if no file descriptor is free.
        """
        if self._backend is None:
            for module in API_MODULES:
                import_module(module)
                await asyncio.sleep(0)
            from trellis.http.management.answers import ApiBackend

            self._backend = ApiBackend(self._node, self._all_counters)
        return self._backend

    def _log(self, event: str, **fields: object) -> None:
        """Log a failure of the gateway, at most once in LOG_INTERVAL."""
        if self._loop.time() - self._logged_at >= LOG_INTERVAL:
            self._logged_at = self._loop.time()
            logs.warning(event, **fields)

    def _start(self, connection: socket.socket, files: socket.socket) -> Program:
        """Start the gateway's process.

        Runs in a thread, because it waits until the program is loaded.
        """
        process = start_program(
            PROGRAM, [sock.fileno() for sock in (connection, files, *self._sockets)]
        )
        self._counters.gateway_starts += 1
        return process

    def _greeting(self) -> contract.Greeting:
        from trellis.http.management.api import route_infos

        at_start = self._node.settings
        return contract.Greeting(
            self._settings.log.level,
            at_start.limits.handshake,
            trellis.__version__,
            at_start.http,
            self._settings.tls,
            route_infos(),
            list(SECTIONS),
            self._node.certificates.contents,
        )
