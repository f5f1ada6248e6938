"""Measures what viewers of the web page cost a broker with 10,000 queues and 5,000 MQTT clients.

    python -P benchmarks/web_page.py [--queues N] [--clients N] [--viewers N] [--seconds N]
                                     [--rounds N] [--paints N]

The broker is a separate process. Each round measures three phases, in which the clients are idle:

    quiet    no page is open
    now      the viewers have the view Now open: each reads the stream of events
    lists    as in `now`, and two viewers also have a long list open, in the view Queues or in the
             view Clients; each of them requests its list every 30 s, as the page does

Each phase runs twice. The first time, the broker runs as it is, and the program prints the CPU time
of the broker, in percent of one processor, and the CPU time of the gateway, which is a separate
process. The second time, a clock in the broker measures each turn of the event loop (TURNS of
loop_clock.py), and the program prints the most CPU time of one turn, how many turns took more than
2 ms of CPU time, and the longest garbage collection. The clock itself uses a whole processor, so
the CPU time of the broker must be measured without it. CPU time depends little on the load of the
machine. At the end, the program prints the difference of the medians. With node and the packages of
tests/browser, it also prints the first paint of the page in a new browser, in wall-clock time.

Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.append(str(Path(__file__).parent))  # `python -P` leaves out this directory.

from loop_clock import OFF, TURNS
from scale import run_server

HERE: Final = Path(__file__).resolve().parent
PAGE_TESTS: Final = HERE.parent / "tests" / "browser"
#: The header of a request that is the last request on its connection.
CLOSING: Final = "Connection: close\r\n"
#: Seconds between two renewals of a long list (pager.js).
RENEWAL: Final = 30.0
#: The lists of the views Queues and Clients, as the page requests them.
PAGED: Final = "page=1&page_size=50&sort_reverse=true&name="
LISTS: Final = (
    (f"/api/queues?{PAGED}&sort=messages&sessions=false",),
    (f"/api/connections?{PAGED}&sort=connected_at", f"/api/trellis/sessions?{PAGED}&sort=queued"),
)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that the threads of a process have used, in seconds."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def gateway_of(pid: int) -> int:
    """Return the process id of the gateway of a broker process."""
    children = (file.read_text().split() for file in Path(f"/proc/{pid}/task").glob("*/children"))
    pids = [
        int(child)
        for some in children
        for child in some
        if b"trellis.http.gateway" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    return pids[0]


class PageViewer:
    """A browser with the page open."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.cookie = ""
        #: Number of events of the stream.
        self.events = 0

    async def request(self, method: str, path: str, body: object = None) -> tuple[str, bytes]:
        """Send a request; return the head and the body of the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        data = b"" if body is None else json.dumps(body).encode()
        writer.write(self._head(method, path, len(data)) + data)
        answer = await reader.read()
        writer.close()
        head, _, rest = answer.partition(b"\r\n\r\n")
        if b" 20" not in head.split(b"\r\n")[0]:
            raise SystemExit(f"{method} {path} failed: {head!r} {rest[:500]!r}")
        return head.decode(), rest

    def _head(
        self, method: str, path: str, size: int, more: str = "Connection: close\r\n"
    ) -> bytes:
        return (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n"
            f"X-Trellis-Page: 1\r\nContent-Type: application/json\r\nCookie: {self.cookie}\r\n"
            f"{more}\r\n"
        ).encode()

    async def log_in(self) -> None:
        """Log in as the user guest."""
        login = {"user": "guest", "password": "guest"}
        head, _ = await self.request("POST", "/page/login", login)
        (cookie,) = (line for line in head.split("\r\n") if line.lower().startswith("set-cookie"))
        self.cookie = cookie.partition(":")[2].split(";")[0].strip()

    async def watch(self) -> None:
        """Read the stream of events until the task is cancelled."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(self._head("GET", "/page/events", 0, ""))
            while line := await reader.readline():
                self.events += line.startswith(b"data:")
        finally:
            writer.close()

    async def renew(self, paths: tuple[str, ...]) -> None:
        """Request lists every RENEWAL seconds until the task is cancelled."""
        while True:
            for path in paths:
                await self.request("GET", path)
            await asyncio.sleep(RENEWAL)


async def connect(port: int, name: str) -> asyncio.StreamWriter:
    """Connect an MQTT client with the identifier `name`, and return its connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    texts = [text.encode() for text in (name, "guest", "guest")]
    payload = b"".join(len(text).to_bytes(2, "big") + text for text in texts)
    rest = b"\x00\x04MQTT\x04\xc2\x00\x00" + payload
    writer.write(bytes([0x10, len(rest)]) + rest)
    answer = await reader.readexactly(4)
    if answer[3]:
        raise SystemExit(f"the broker refused client {name} with the CONNACK {answer!r}")
    return writer


class PageLoad:
    """A run of the measurement: fills one broker process, and measures its CPU time by phase."""

    def __init__(self, chosen: argparse.Namespace, pid: int, report: Connection) -> None:
        self._chosen = chosen
        self._pid = pid
        self._report = report
        self._gateway = 0
        #: The CPU time of the broker and of the gateway in each phase, in percent of one processor.
        self.shares: dict[str, list[float]] = {}
        self.gateway_shares: dict[str, list[float]] = {}
        self.held: dict[str, float] = {}
        self.long: dict[str, int] = {}

    async def fill(self, ports: dict[str, int]) -> list[asyncio.StreamWriter]:
        """Declare the queues, connect the clients, and return the clients' connections."""
        viewer = PageViewer(ports["http"])
        await viewer.log_in()
        rows = [
            {"name": f"queue-{number:05}", "vhost": "/", "durable": False, "arguments": {}}
            for number in range(self._chosen.queues)
        ]
        await viewer.request("POST", "/api/definitions", {"queues": rows})
        self._gateway = gateway_of(self._pid)
        clients: list[asyncio.StreamWriter] = []
        for number in range(self._chosen.clients):
            clients.append(await connect(ports["mqtt"], f"device-{number:05}"))
        return clients

    async def phase(self, name: str, port: int, watching: int, lists: int) -> None:
        """Measure one phase and print its figures.

        `watching` viewers read the stream of events; `lists` of them also renew a list.
        """
        viewers = [PageViewer(port) for _ in range(watching)]
        for viewer in viewers:
            await viewer.log_in()
        tasks = [asyncio.create_task(viewer.watch()) for viewer in viewers]
        tasks += [
            asyncio.create_task(viewer.renew(paths))
            for viewer, paths in list(zip(viewers, LISTS, strict=False))[:lists]
        ]
        await asyncio.sleep(3)
        self._records(OFF)
        seen = sum(viewer.events for viewer in viewers)
        before = cpu_seconds(self._pid), cpu_seconds(self._gateway)
        await asyncio.sleep(self._chosen.seconds)
        after = cpu_seconds(self._pid), cpu_seconds(self._gateway)
        seen = sum(viewer.events for viewer in viewers) - seen
        self._records(TURNS)
        await asyncio.sleep(self._chosen.seconds)
        records = self._records(OFF)
        held, long = float(records["held_ms"]), len(records["holds"])
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for result in ended:
            if isinstance(result, Exception):
                raise result
        broker, gateway = (
            100 * (late - early) / self._chosen.seconds
            for early, late in zip(before, after, strict=True)
        )
        self.shares.setdefault(name, []).append(broker)
        self.gateway_shares.setdefault(name, []).append(gateway)
        self.held[name] = max(self.held.get(name, 0.0), held)
        self.long[name] = self.long.get(name, 0) + long
        print(
            f"{name:6} broker {broker:5.2f} %   longest turn {held:4.1f} ms   "
            f"above 2 ms {long}   collection {records['collection_ms']:4.1f} ms   "
            f"gateway {gateway:5.2f} %   events {seen}",
            *(f"    {description}" for description in records["long"]),
            sep="\n",
            flush=True,
        )

    def _records(self, mode: str) -> dict[str, Any]:
        """Return the loop clock's records since the last call, and restart the clock in `mode`.

        `mode` is TURNS or OFF (loop_clock.py).
        """
        self._report.send(mode)
        answer: dict[str, Any] = self._report.recv()
        return answer

    def summary(self) -> str:
        """Return lines that compare the median CPU time of each phase with that of `quiet`."""
        quiet = median(self.shares["quiet"])
        return "\n".join(
            f"{self._chosen.viewers} viewers, {name}: {median(shares) - quiet:+.2f} % of one "
            f"processor in the broker, {median(self.gateway_shares[name]):.2f} % in the gateway; "
            f"longest turn {self.held[name]:.1f} ms (quiet: {self.held['quiet']:.1f} ms), "
            f"turns above 2 ms: {self.long[name]} (quiet: {self.long['quiet']})"
            for name, shares in self.shares.items()
            if name != "quiet"
        )


def paints(port: int, count: int) -> list[float]:
    """Open the page in `count` new browsers; return the time of each first paint in ms.

    Return an empty list if no browser is installed.
    """
    if not (PAGE_TESTS / "node_modules").is_dir():
        return []
    times = []
    with (
        tempfile.TemporaryDirectory() as pictures,
        subprocess.Popen(
            ["node", "page.mjs", f"http://127.0.0.1:{port}/", pictures],
            cwd=PAGE_TESTS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        for _ in range(count):
            process.stdin.write('{"do": "open", "width": 1280}\n')
            process.stdin.flush()
            times.append(float(json.loads(process.stdout.readline())["paint"]))
        process.stdin.close()
    return times


async def measure(chosen: argparse.Namespace, pid: int, report: Connection) -> None:
    """Measure all phases and print the results."""
    ports: dict[str, int] = await asyncio.to_thread(report.recv)
    load = PageLoad(chosen, pid, report)
    clients = await load.fill(ports)
    print(
        f"{chosen.queues} queues, {len(clients)} clients; two measurements of {chosen.seconds} s "
        "in each phase"
    )
    for _ in range(chosen.rounds):
        await load.phase("quiet", ports["http"], 0, 0)
        await load.phase("now", ports["http"], chosen.viewers, 0)
        await load.phase("lists", ports["http"], chosen.viewers, len(LISTS))
    print(load.summary())
    times = await asyncio.to_thread(paints, ports["http"], chosen.paints)
    if times:
        print(f"first paint: median {median(times):.0f} ms, best {min(times):.0f} ms")
    report.send("")


def main() -> None:
    """Parse the arguments and run the measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=5_000)
    parser.add_argument("--viewers", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--paints", type=int, default=10)
    chosen = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    report, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=run_server, args=(":memory:", theirs)
    )
    server.start()
    assert server.pid is not None
    try:
        asyncio.run(measure(chosen, server.pid, report))
    finally:
        server.join(20)
        if server.is_alive():
            server.terminate()


if __name__ == "__main__":
    main()
