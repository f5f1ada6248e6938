"""Measures the latency of 1,000 messages/s beside a durable flow at full speed, and the latency of
an empty echo on the same event loop.

    .run/bin/python -P benchmarks/latency_beside.py
        --rounds N           rounds with the broker and with the echo, in turn [5]
        --seconds S          length of a measurement [5]
        --rate N             messages per second whose latency is measured [1000]
        --trellis COMMAND    the load tool [.run/bin/trellis]

One process runs a broker with a data directory and, on the same event loop, the blind relay
(relay/relay.py), which sends the bytes of a publisher to a subscriber without parsing them. In each
measurement, `trellis bench load amqp-durable` publishes to the broker as fast as it can. Beside it,
`trellis bench load mqtt-qos0` publishes `--rate` messages per second, first to the broker, then to
the relay. The program prints the latencies p50, p99 and p99.9 of each round in microseconds, the
rate of the durable flow, and at the end the medians and their ratios.

Run the program with the Python of an installed broker, so that the broker is compiled. Linux only.
Use an idle machine: the latencies contain the waiting times of the load tools for a processor.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, Final

import uvloop

# `python -P` leaves out these directories.
sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent / "relay"))

from peers.brokers.trellis import parsed
from peers.machine import busy, machine
from peers.process import LOOPBACK
from relay import RelayConnection

import trellis
from trellis.app import App
from trellis.settings import Amqp, Auth, Data, Http, Metrics, Mqtt, Settings, Shutdown

#: The latencies of a measurement, by their names in the results of the load tool.
LATENCIES: Final = ("p50", "p99", "p999")
#: Seconds by which the durable flow runs longer than the flow whose latencies are measured.
LONGER: Final = 2.0
TIMEOUT: Final = 120.0


async def serve(directory: str, report: Connection) -> None:
    """Run the broker and the relay on one event loop until `report` receives a value.

    First send the ports: of AMQP, of MQTT and of the relay.
    """
    app = App(
        Settings(
            amqp=Amqp(port=0, host=LOOPBACK),
            mqtt=Mqtt(port=0, host=LOOPBACK),
            metrics=Metrics(port=0, host=LOOPBACK),
            http=Http(port=0, host=LOOPBACK),
            data=Data(dir=directory),
            auth=Auth(guest=True),
            shutdown=Shutdown(grace=0.1),
        )
    )
    serving = asyncio.create_task(app.serve())
    await app.started.wait()
    loop = asyncio.get_running_loop()
    subscribers: list[RelayConnection] = []
    relay = await loop.create_server(lambda: RelayConnection(subscribers), LOOPBACK, 0)
    ports = {name: int(app.addresses[name].rpartition(":")[2]) for name in ("amqp", "mqtt")}
    report.send({**ports, "relay": int(relay.sockets[0].getsockname()[1])})
    await loop.run_in_executor(None, report.recv)
    relay.close()
    app.stop()
    await serving


def run_server(directory: str, report: Connection) -> None:
    """Run `serve` on a new event loop, in the process that has been started for it."""
    sys.stdout = sys.stderr
    uvloop.run(serve(directory, report))


def load(command: Path, workload: str, seconds: float, *more: str) -> subprocess.Popen[str]:
    """Start the load tool for one round of `seconds`; return the process, which prints JSON."""
    words = [str(command), "bench", "load", workload, "--rounds", "1", "--seconds", str(seconds)]
    return subprocess.Popen([*words, "--json", "-", *more], stdout=subprocess.PIPE, text=True)


def result(tool: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a load tool, and return the figures of its round; exit if it failed."""
    output = tool.communicate(timeout=TIMEOUT)[0]
    if tool.returncode:
        sys.exit(f"latency_beside: the load tool ended with exit code {tool.returncode}: {output}")
    figures: dict[str, Any] = json.loads(output)["workloads"][0]["median"]
    return figures


def measure(chosen: argparse.Namespace, ports: dict[str, int], kind: str) -> dict[str, float]:
    """Return one measurement: latencies in us, and the durable flow's rate at the same time.

    `kind` is `mqtt` for the broker, or `relay`.
    """
    url = f"amqp://guest:guest@{LOOPBACK}:{ports['amqp']}/%2F"
    flow = load(chosen.trellis, "amqp-durable", chosen.seconds + LONGER, "--amqp", url)
    target = f"mqtt://{LOOPBACK}:{ports[kind]}"
    timed = load(
        chosen.trellis, "mqtt-qos0", chosen.seconds, "--mqtt", target, "--rate", str(chosen.rate)
    )
    latency = result(timed)["latency"]
    beside = result(flow)["rate"]
    return {name: round(latency[name], 1) for name in LATENCIES} | {"durable_rate": round(beside)}


def main() -> int:
    """Measure all rounds; print their figures, then the medians; return the exit code."""
    parser = argparse.ArgumentParser(description="Measure latencies beside a durable flow.")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds [5]")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds per measurement [5]")
    parser.add_argument(
        "--rate",
        type=int,
        default=1_000,
        help="messages per second of the flow whose latency is measured [1000]",
    )
    chosen = parsed(parser)
    print(f"Trellis {trellis.__version__}, compiled: {'yes' if trellis.compiled() else 'no'}")
    print("; ".join(f"{name} {value}" for name, value in machine().items()), busy(), sep="\n")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    rounds: dict[str, list[dict[str, float]]] = {"mqtt": [], "relay": []}
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="latency-"))
        server = context.Process(target=run_server, args=(directory, theirs), daemon=True)
        server.start()
        stack.callback(server.join, TIMEOUT)
        ports: dict[str, int] = ours.recv()
        stack.callback(ours.send, "stop")
        for _ in range(chosen.rounds):
            for kind, figures in rounds.items():
                figures.append(measure(chosen, ports, kind))
                print(json.dumps({"to": kind} | figures[-1]), flush=True)
    middle = {
        kind: {name: median(one[name] for one in figures) for name in figures[0]}
        for kind, figures in rounds.items()
    }
    ratios = {
        name: round(middle["mqtt"][name] / middle["relay"][name], 2)
        for name in LATENCIES
        if middle["relay"][name]
    }
    print(json.dumps({"medians": middle, "ratios": ratios}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
