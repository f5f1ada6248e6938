"""Runs workloads: builds the scene, warms up, measures rounds, and holds every answer to what it
must be.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, replace
from typing import Final

from trellis.bench.errors import BenchError, Unreachable, WrongAnswer
from trellis.bench.latency import Histogram
from trellis.bench.processes import Processes
from trellis.progress import ProgressLine
from trellis.bench.report import BrokerReport, Result, Round, latency_of, median_of
from trellis.bench.scene import Scene
from trellis.bench.target import Target
from trellis.bench.workloads import Workload

#: The part of a round that warms up before the first, in messages or in seconds.
_WARM: Final = 0.2


@dataclass(frozen=True)
class BenchOptions:
    """How to run workloads: `messages` a round, or (if 0) `seconds`; `rate` messages a second, or
    (if 0) as many as go; bodies of `size` octets, or (if 0) the workload's. After `patience`
    seconds without progress a round fails. For `settle` seconds after it nothing more may come, and
    the broker finishes what it is charged for.
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
    targets: dict[str, Target],
    processes: Processes,
    progress: ProgressLine,
    servers: dict[str, str],
) -> Result:
    """The workload's result, with its error if it failed.

    Raises Unreachable when others cannot succeed either.
    """
    if options.size:
        workload = replace(workload, size=options.size)
    # One message in flight: its way is the measurement. A rate: what comes late matters.
    timed = workload.window == 1 or options.rate > 0
    result = _result(workload, options)
    progress.begin(workload.name)
    # What a run makes is freed by counting; looking for cycles would only make it stop now and
    # then.
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
    """One round."""
    generator, lines = scene.running, scene.publishers + scene.subscribers
    scene.script.latency = Histogram()
    processes.reset_peak()
    rss, cpu, before = processes.memory(), processes.cpu(), _figures(scene)
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
    messages, deliveries, sends, receives, octets_out, octets_in = (
        now - then for now, then in zip(_figures(scene), before, strict=True)
    )
    # The checkers have compared every message; this counts what all of them took.
    wanted = messages * (scene.workload.subscribers if scene.everybody else 1)
    if deliveries != wanted:
        raise WrongAnswer(
            f"{len(lines)} connections", "messages received in all", wanted, deliveries
        )
    return Round(
        messages,
        deliveries,
        seconds,
        octets_out,
        octets_in,
        sends,
        receives,
        spent,
        broker,
        latency_of(scene.script.latency),
    )


def _figures(scene: Scene) -> tuple[int, ...]:
    """Messages, deliveries, sends, receives, octets out and in, since the scene began."""
    lines = scene.publishers + scene.subscribers
    return (
        int(scene.running.started),
        sum(int(line.reader.count()) for line in scene.subscribers),
        sum(int(line.sends) for line in lines),
        sum(int(line.receives) for line in lines),
        sum(int(line.octets_out) for line in lines),
        sum(int(line.octets_in) for line in lines),
    )
