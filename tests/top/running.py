"""A broker in the event loop of the test, and clients that are plain sockets."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec
import pamqp.commands as spec
import pamqp.frame
from prometheus_client.parser import text_string_to_metric_families

from broker.store.disk import Disk
from broker.stream.queue import StreamQueue
from protocols.amqp.connection.handshake import GREETING
from tests.clients import connect_packet, marshal, start_ok
from tests.garbage import living_objects
from trellis.app import App
from trellis.http.service import HttpService
from trellis.server.link import Link
from trellis.server.node import BrokerNode
from trellis.settings import Loaded, Settings

#: Seconds after which a test gives up waiting.
PATIENCE: Final = 20.0
#: The user of most tests. The password is the name; its hash is verified very fast.
KNOWN: Final = {
    "name": "known",
    "password_hash": "$argon2id$v=19$m=8,t=1,p=1$rO+D8wFkg+VleHrdWqV4eg$"
    "W/22aWnU5qJCMNSXWoyIj5DeYiAKmXZtridaT1aZg/U",
}

_OURS: Final[dict[str, dict[str, Any]]] = {
    **{
        listener: {"port": 0, "host": "127.0.0.1"}
        for listener in ("amqp", "mqtt", "metrics", "http")
    },
    "limits": {"handshake": PATIENCE},
    "data": {"dir": ":memory:"},
    "store": {"reserve": False},
    "shutdown": {"grace": 0.05},
    "auth": {"guest": False},
}


#: Counter of the brokers that the tests have started.
_starts: Final = itertools.count()


def settings(**given: Any) -> Settings:
    """Return settings with free ports on 127.0.0.1, no data directory and one user.

    The arguments override these settings; sections are dictionaries.
    """
    sections = {name: section | given.pop(name, {}) for name, section in _OURS.items()}
    return msgspec.convert({"users": [KNOWN]} | sections | given, Settings)


class Running:
    """A broker (an App) that serves in the test's event loop."""

    def __init__(self, chosen: Settings, disk: Disk | None = None) -> None:
        #: The settings that the next reload reads.
        self.chosen = chosen
        #: The sources of settings that the next reload reads: key -> file, variable or flag.
        self.sources: dict[str, str] = {}
        self.app = App(chosen, lambda: Loaded(self.chosen, self.sources), disk)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        # At its start the broker collects the garbage of all objects. To save time, the objects of
        # earlier tests are excluded at 15 of 16 starts.
        if next(_starts) % 16:
            gc.freeze()
        self._serving = asyncio.create_task(self.app.serve())
        started = asyncio.create_task(self.app.started.wait())
        await asyncio.wait([self._serving, started], return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if self._serving.done():
            self._serving.result()

    async def stop(self) -> None:
        assert self._serving is not None
        if not self._serving.done():
            self.app.stop()
        async with asyncio.timeout(PATIENCE):
            await self._serving

    async def reload(self, chosen: Settings) -> None:
        """Make the broker reload its settings, as at SIGHUP, with these settings as the new
        ones."""
        self.chosen = chosen
        reloading = self.app.reloading
        assert reloading is not None
        reloading.request()
        await reloading.close()

    @property
    def node(self) -> BrokerNode:
        assert self.app.node is not None
        return self.app.node

    @property
    def links(self) -> list[Link]:
        """Return the links of all clients, in the order in which they connected."""
        return cast(list[Link], list(self.node.turn.links))

    @property
    def http(self) -> HttpService:
        assert self.app.http is not None
        return self.app.http

    def port(self, listener: str) -> int:
        return int(self.app.addresses[listener].rpartition(":")[2])

    async def socket(self, listener: str) -> Socket:
        """Return a new connection to a listener; no data has been sent on it."""
        return await Socket.connect(self.port(listener))

    async def tls(self, listener: str, context: ssl.SSLContext, name: str = "localhost") -> Stream:
        """Return a TLS connection to a listener; `name` is the server name in the handshake."""
        return Stream(
            *await asyncio.open_connection(
                "127.0.0.1", self.port(listener), ssl=context, server_hostname=name
            )
        )

    async def amqp(self, user: str = "known", password: str = "known") -> Amqp0:
        client = Amqp0(await self.socket("amqp"))
        await client.log_in(user, password)
        return client

    async def mqtt(self, name: str, **options: Any) -> Mqtt0:
        client = Mqtt0(await self.socket("mqtt"))
        assert await client.connect(name, **options) == 0
        return client

    async def get(self, listener: str, path: str, headers: str = "") -> tuple[int, bytes]:
        """Send a GET request, and return status and body of the response."""
        status, _, body = await self.ask(
            listener, f"GET {path} HTTP/1.1\r\nHost: here\r\n{headers}\r\n".encode()
        )
        return status, body

    async def ask(self, listener: str, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers (names in lowercase) and body of the response to a request.

        The connection ends with the response.
        """
        client = await self.socket(listener)
        request = request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        await client.send(request)
        return parsed(await client.read_to_end())

    async def scrape(self, path: str = "/metrics") -> Scrape:
        status, body = await self.get("metrics", path)
        assert status == 200
        return Scrape(body.decode())

    def durable_rows(self, stream: str) -> int:
        """Return the number of durable rows of a stream in the virtual host `/`."""
        queue = self.node.broker.vhosts["/"].queue(stream)
        assert isinstance(queue, StreamQueue)
        return int(queue.local.end)

    async def until(self, truth: Callable[[], bool]) -> None:
        """Wait until a condition holds; raise TimeoutError after PATIENCE seconds."""
        async with asyncio.timeout(PATIENCE):
            while True:
                if truth():
                    return
                await asyncio.sleep(0.001)


def parsed(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    return int(first.split()[1]), headers, body


class Scrape:
    """A page of metrics, parsed as Prometheus parses it."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.families.values()
            for sample in family.samples
        }
        self.names = {name for name, _ in self.samples}
        #: The samples whose values may never fall.
        self.counters = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.families.values()
            if family.type == "counter"
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """Return the sample with this name and exactly these labels; 0 if there is none."""
        return self.samples.get((name, tuple(sorted(labels.items()))), 0.0)


class Socket:
    """A TCP connection to the broker, without any protocol."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def connect(cls, port: int) -> Socket:
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return cls(sock)

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._loop.sock_sendall(self._sock, data)

    async def read(self, most: int = 1 << 16) -> bytes:
        """Return up to `most` bytes, or b"" if the peer has closed or reset the connection."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self._loop.sock_recv(self._sock, most)
            except ConnectionError:
                return b""

    async def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = await self.read(count - len(data))
            assert more, f"closed after {data!r}"
            data += more
        return data

    async def read_to_end(self) -> bytes:
        data = b""
        while more := await self.read():
            data += more
        self.close()
        return data

    def shut_down(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._sock.close()


class Stream(Socket):
    """A Socket over an asyncio stream, such as TLS or a Unix socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(writer.get_extra_info("socket"))
        self._reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        async with asyncio.timeout(PATIENCE):
            await self.writer.drain()

    async def read(self, most: int = 1 << 16) -> bytes:
        async with asyncio.timeout(PATIENCE):
            try:
                return await self._reader.read(most)
            except (ConnectionError, ssl.SSLError):
                return b""

    async def exactly(self, count: int) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self._reader.readexactly(count)

    def shut_down(self) -> None:
        self.writer.write_eof()

    def close(self) -> None:
        self.writer.close()


class Amqp0:
    """An AMQP client on channel 1, over a socket."""

    def __init__(self, sock: Socket) -> None:
        self.socket = sock

    async def log_in(
        self,
        user: str = "known",
        password: str = "known",
        heartbeat: int = 0,
        mechanism: str = "PLAIN",
    ) -> None:
        await self.socket.send(GREETING)
        self.mechanisms = str((await self.expect(spec.Connection.Start)).mechanisms)
        await self.socket.send(start_ok(user, password, mechanism))
        await self.expect(spec.Connection.Tune)
        tune_ok, opening = spec.Connection.TuneOk(2047, 131_072, heartbeat), spec.Connection.Open()
        await self.socket.send(marshal(0, tune_ok) + marshal(0, opening))
        await self.expect(spec.Connection.OpenOk)
        await self.call(spec.Channel.Open(), spec.Channel.OpenOk)

    async def frame(self) -> Any:
        """Wait for the broker's next frame, and return it decoded by pamqp."""
        head = await self.socket.exactly(7)
        return pamqp.frame.unmarshal(
            head + await self.socket.exactly(int.from_bytes(head[3:7], "big") + 1)
        )[2]

    async def expect(self, kind: Any) -> Any:
        frame = await self.frame()
        assert isinstance(frame, kind), vars(frame) if hasattr(frame, "__dict__") else frame
        return frame

    async def call(self, method: Any, answer: Any) -> Any:
        await self.socket.send(marshal(1, method))
        return await self.expect(answer)

    async def queue(self, name: str, exchange: str = "", key: str = "", **options: Any) -> None:
        """Declare a queue, and bind it if an exchange is given."""
        await self.call(spec.Queue.Declare(queue=name, **options), spec.Queue.DeclareOk)
        if exchange:
            await self.call(
                spec.Queue.Bind(queue=name, exchange=exchange, routing_key=key), spec.Queue.BindOk
            )

    async def leave(self) -> None:
        await self.socket.send(marshal(0, spec.Connection.Close(200, "bye", 0, 0)))
        await self.expect(spec.Connection.CloseOk)
        assert await self.socket.read() == b""
        self.socket.close()


class Mqtt0:
    """An MQTT 3.1.1 client, over a socket."""

    def __init__(self, sock: Socket) -> None:
        self.socket = sock

    async def connect(self, name: str, **options: Any) -> int:
        """Send a CONNECT, and return the return code of the CONNACK."""
        await self.socket.send(connect_packet(name, **options))
        return (await self.socket.exactly(4))[3]

    async def packet(self) -> tuple[int, bytes]:
        """Return the first byte of a packet, and the data after its remaining length."""
        first, byte = await self.socket.exactly(2)
        length, shift = byte & 127, 7
        while byte > 127:
            byte = (await self.socket.exactly(1))[0]
            length |= (byte & 127) << shift
            shift += 7
        return first, await self.socket.exactly(length) if length else b""

    async def subscribe(self, topic_filter: str, qos: int = 0) -> None:
        data = topic_filter.encode()
        await self.socket.send(
            bytes([0x82, len(data) + 5, 0, 1, 0, len(data)]) + data + bytes([qos])
        )
        assert await self.socket.exactly(5) == bytes([0x90, 3, 0, 1, qos])

    async def ping(self) -> None:
        """Send PINGREQ and wait for PINGRESP, so that the broker has handled all earlier
        packets."""
        await self.socket.send(b"\xc0\x00")
        assert await self.socket.exactly(2) == b"\xd0\x00"

    async def leave(self) -> None:
        await self.socket.send(b"\xe0\x00")
        assert await self.socket.read() == b""
        self.socket.close()


class Leaks:
    """Checks that clients leak no file descriptors, tasks, live objects or reference cycles."""

    def __init__(self, running: Running) -> None:
        self._running = running
        gc.unfreeze()
        gc.collect()
        self._before = self._counts(), self._objects()

    @classmethod
    async def watch(cls, running: Running) -> Leaks:
        assert (await running.get("metrics", "/healthz"))[
            0
        ] == 200  # uvloop opens /dev/null for its first connection.
        metrics = running.http.metrics
        await running.until(lambda: metrics is None or not metrics._serving)
        for _ in range(5):
            await asyncio.sleep(0)  # uvloop closes its end a turn of the event loop later.
        leaks = cls(running)
        for _ in range(500):  # on a busy machine, the end of the request may be delayed
            await asyncio.sleep(0.02)
            before, leaks._before = leaks._before, (leaks._counts(), leaks._objects())
            if before == leaks._before:
                break
        return leaks

    def _counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of descriptors, tasks, links and metrics requests."""
        descriptors = len(
            os.listdir("/proc/self/fd" if os.path.exists("/proc/self/fd") else "/dev/fd")
        )
        metrics = self._running.http.metrics
        waiting = 0 if metrics is None else len(metrics._serving)
        return descriptors, len(asyncio.all_tasks()), len(self._running.node.turn.links), waiting

    def _objects(self) -> Counter[str]:
        """Return the number of living objects by class. This takes about 0.1 s."""
        # gc.get_objects() omits the objects that the broker's collector has frozen.
        gc.unfreeze()
        living = living_objects("trellis", "protocols")
        # The broker keeps a bounded number of refusals and of verified passwords after clients have
        # left (tests/top/test_why.py, tests/top/test_remembered_passwords.py).
        del living["LoggedRefusal"], living["RememberedPassword"]
        return living

    async def check(self) -> None:
        """Wait until the numbers of descriptors, tasks, links and objects are those at `watch`.

        Raises AssertionError if they differ for 10 s. The garbage collector is off during the
        wait, so reference cycles count as leaks.
        """
        gc.disable()
        try:
            counts, objects = self._before
            for _ in range(500):
                # Count the objects, which takes long, only when the other numbers are as before.
                if self._counts() == counts and self._objects() == objects:
                    break
                await asyncio.sleep(0.02)
            else:
                assert (self._counts(), self._objects()) == self._before
        finally:
            gc.enable()
        gc.unfreeze()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        ours = [
            type(thing)
            for thing in gc.garbage
            if str(type(thing).__module__).startswith(("trellis", "protocols", "broker"))
        ]
        gc.garbage.clear()
        assert ours == []
