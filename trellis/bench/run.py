"""Runs a workload: builds its scene, warms up, and measures and checks the rounds."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, replace
from typing import Final

from trellis.bench.errors import BenchError, Unreachable, WrongAnswer
from trellis.bench.latency import Histogram
from trellis.bench.processes import Processes
from trellis.bench.report import BrokerReport, Result, Round, latency_of, median_of
from trellis.bench.scene import Scene
from trellis.bench.target import BrokerTarget
from trellis.bench.workloads import Workload
from trellis.progress import ProgressLine

#: Length of the warm-up as a share of a round.
_WARM: Final = 0.2


@dataclass(frozen=True)
class BenchOptions:
    """Options of a run.

    A round publishes `messages` messages, or if `messages` is 0, it publishes for `seconds`. `rate`
    is the number of messages per second; 0 is as many as the window allows. `size` is the size of a
    body in bytes; 0 is the workload's own size. A round fails after `patience` seconds without
    progress.

    After a round, the tool waits `settle` seconds. A message that arrives in this time is an error.
    CPU time that the broker uses in this time counts for the round.
    """

    messages: int = 0
    seconds: float = 2.0
    rate: float = 0.0
    size: int = 0
    rounds: int = 3
    patience: float = 10.0
    settle: float = 0.05


def run(
    workload: Workload,
    options: BenchOptions,
    targets: dict[str, BrokerTarget],
    processes: Processes,
    progress: ProgressLine,
    servers: dict[str, str],
) -> Result:
    """Run a workload and return its result, with the error if it failed.

    Adds the AMQP broker's product and version to `servers`. Raises Unreachable if the cause, such
    as a refused login, would make all other workloads fail too.
    """
    if options.size:
        workload = replace(workload, size=options.size)
    # Latency is measured if one message at a time is in flight, or if a rate is given.
    timed = workload.window == 1 or options.rate > 0
    result = _result(workload, options)
    progress.begin(workload.name)
    # A run makes no reference cycles, so collections would only interrupt it.
    gc.disable()
    try:
        with Scene(workload, targets, timed, progress, options.patience) as scene:
            result.window, result.batch = scene.window, scene.batch
            if scene.server:
                servers["amqp"] = scene.server
            if workload.bindings:
                result.bind_seconds = scene.bind_seconds
            warm = max(1, int(options.messages * _WARM)) if options.messages else 0
            scene.running.run(warm, options.seconds * _WARM, options.rate)
            scene.running.linger(options.settle)
            for number in range(options.rounds):
                progress.begin(
                    f"{workload.name} {number + 1}/{options.rounds}",
                    options.messages,
                    options.seconds,
                )
                result.rounds.append(_measure(scene, options, processes))
    except Unreachable:
        raise
    except BenchError as error:
        result.error = str(error)
    finally:
        gc.enable()
    if result.rounds:
        result.median = median_of(result.rounds)
    return result


def _result(workload: Workload, options: BenchOptions) -> Result:
    return Result(
        name=workload.name,
        text=workload.text,
        publish=workload.publish,
        consume=workload.consume,
        publishers=workload.publishers,
        subscribers=workload.subscribers,
        size=workload.size,
        batch=workload.batch,
        window=workload.window,
        bindings=workload.bindings,
        rate=options.rate,
    )


def _measure(scene: Scene, options: BenchOptions, processes: Processes) -> Round:
    """Run one round and return its figures. Raises WrongAnswer, BenchError."""
    generator, lines = scene.running, scene.publishers + scene.subscribers
    scene.script.latency = Histogram()
    processes.reset_peak()
    rss, cpu, before = processes.memory(), processes.cpu(), _counters(scene)
    own, began = time.process_time(), time.perf_counter()
    generator.run(options.messages, options.seconds, options.rate)
    seconds, spent = time.perf_counter() - began, time.process_time() - own
    generator.linger(options.settle)
    broker = None
    if processes:
        used, after = processes.cpu().since(cpu), processes.memory()
        broker = BrokerReport(
            used.seconds, used.system_share, rss.now, after.now, max(after.peak, rss.now, after.now)
        )
    scene.check_queues()
    messages, deliveries, sends, receives, bytes_out, bytes_in = (
        now - then for now, then in zip(_counters(scene), before, strict=True)
    )
    # The checkers have compared every message. Now compare the number of all messages.
    wanted = messages * (scene.workload.subscribers if scene.to_all else 1)
    if deliveries != wanted:
        raise WrongAnswer(
            f"{len(lines)} connections",
            "the number of all received messages is wrong",
            wanted,
            deliveries,
        )
    return Round(
        messages,
        deliveries,
        seconds,
        bytes_out,
        bytes_in,
        sends,
        receives,
        spent,
        broker,
        latency_of(scene.script.latency),
    )


def _counters(scene: Scene) -> tuple[int, ...]:
    """Return the scene's counters: messages, deliveries, send calls, receive calls, bytes sent and
    bytes received.
    """
    lines = scene.publishers + scene.subscribers
    return (
        int(scene.running.started),
        sum(int(line.reader.count()) for line in scene.subscribers),
        sum(int(line.sends) for line in lines),
        sum(int(line.receives) for line in lines),
        sum(int(line.bytes_out) for line in lines),
        sum(int(line.bytes_in) for line in lines),
    )
