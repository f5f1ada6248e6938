"""Results of `trellis bench load`: the records in JSON, their medians, and the table."""

from __future__ import annotations

import os
import platform
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final

import trellis
from trellis.bench import generator
from trellis.bench.latency import Histogram

#: Version of the JSON format. Increase it when a field is removed or changes its meaning.
FORMAT: Final = 1
_MIB: Final = 1024 * 1024

Cell = str | int | float | bool | None


@dataclass
class Latency:
    """Latencies of deliveries, from just before the send to the receipt, in microseconds."""

    count: int
    mean: float
    p50: float
    p99: float
    p999: float
    max: float


@dataclass
class BrokerReport:
    """CPU time in seconds and resident memory in bytes of the broker's processes."""

    cpu: float
    system_share: float
    rss_before: int
    rss_after: int
    rss_peak: int


@dataclass
class Round:
    """The figures of one round.

    `seconds` is wall time. `sends` and `receives` count the generator's system calls, `octets_out`
    and `octets_in` the bytes that the generator sent and received. `generator_cpu` is the CPU time
    of the generator in seconds.
    """

    messages: int
    deliveries: int
    seconds: float
    octets_out: int
    octets_in: int
    sends: int
    receives: int
    generator_cpu: float
    broker: BrokerReport | None = None
    latency: Latency | None = None


@dataclass
class Median:
    """The median of each figure over the rounds.

    `generator_us` and `broker_us` are CPU time in microseconds per published message.
    `broker_spread` is (highest - lowest) / median of the broker's CPU time per message. Per second,
    `rate` counts published messages, `delivery_rate` deliveries and `octet_rate` bytes.
    """

    rate: float
    delivery_rate: float
    octet_rate: float
    generator_us: float
    broker_us: float | None = None
    broker_spread: float | None = None
    rss_before: int | None = None
    rss_after: int | None = None
    rss_peak: int | None = None
    latency: Latency | None = None


@dataclass
class Result:
    """A workload with its parameters, its rounds, and an error if it failed."""

    name: str
    text: str
    publish: str
    consume: str
    publishers: int
    subscribers: int
    size: int
    batch: int
    window: int
    bindings: int
    rate: float
    bind_seconds: float | None = None
    rounds: list[Round] = field(default_factory=list)
    median: Median | None = None
    error: str | None = None


@dataclass
class Environment:
    """Time, command and machine of a run.

    `load` is the load average of the last minute before the first workload. `servers` holds, by
    protocol, the product and version that a broker reports.
    """

    time: str
    command: str
    trellis: str
    python: str
    generator_compiled: bool
    cpu: str
    cpus: int
    kernel: str
    machine: str
    load: float
    targets: dict[str, str]
    servers: dict[str, str]


@dataclass
class BenchReport:
    """The results of one run of `trellis bench load`."""

    environment: Environment
    workloads: list[Result]
    format: int = FORMAT


def latency_of(histogram: Histogram) -> Latency | None:
    """Return the latency of a round, None if it was not measured."""
    count = int(histogram.count)
    if not count:
        return None
    p50, p99, p999 = (histogram.percentile(share) / 1e3 for share in (0.5, 0.99, 0.999))
    return Latency(
        count, int(histogram.total) / count / 1e3, p50, p99, p999, int(histogram.maximum) / 1e3
    )


def median_of(rounds: Sequence[Round]) -> Median:
    """Return the medians of one or more rounds."""
    medians = Median(
        rate=median(one.messages / one.seconds for one in rounds),
        delivery_rate=median(one.deliveries / one.seconds for one in rounds),
        octet_rate=median((one.octets_out + one.octets_in) / one.seconds for one in rounds),
        generator_us=median(one.generator_cpu / one.messages * 1e6 for one in rounds),
    )
    brokers = [(one.broker, one.messages) for one in rounds if one.broker is not None]
    if brokers:
        costs = [broker.cpu / messages * 1e6 for broker, messages in brokers]
        medians.broker_us = median(costs)
        medians.broker_spread = (
            (max(costs) - min(costs)) / medians.broker_us if medians.broker_us else 0.0
        )
        medians.rss_before = brokers[0][0].rss_before
        medians.rss_after = brokers[-1][0].rss_after
        medians.rss_peak = max(broker.rss_peak for broker, _ in brokers)
    latencies = [one.latency for one in rounds if one.latency is not None]
    if latencies:
        medians.latency = Latency(
            sum(one.count for one in latencies),
            *(
                median(getattr(one, name) for one in latencies)
                for name in ("mean", "p50", "p99", "p999", "max")
            ),
        )
    return medians


def heading(environment: Environment) -> str:
    """Return a line of text about the environment, to print above the table."""
    compiled = (
        "compiled"
        if environment.generator_compiled
        else "NOT compiled, and perhaps slower than the broker"
    )
    brokers = ", ".join(
        f"{url} ({environment.servers[name]})" if name in environment.servers else url
        for name, url in environment.targets.items()
    )
    return (
        f"{brokers}; generator {environment.trellis} {compiled}, {environment.python}, "
        f"{environment.kernel}, {environment.cpus} x {environment.cpu}, load {environment.load:g}"
    )


def rows(results: Sequence[Result]) -> list[dict[str, Cell]]:
    """Return a table row for each measured workload; figures that were not measured are absent."""
    table: list[dict[str, Cell]] = []
    for result in results:
        medians = result.median
        if medians is None:
            continue
        row: dict[str, Cell] = {
            "workload": result.name,
            "msg/s": round(medians.rate),
            "deliv/s": round(medians.delivery_rate),
            "MB/s": _digits(medians.octet_rate / 1e6),
        }
        if medians.broker_us is not None:
            row |= {
                "broker us": _digits(medians.broker_us),
                "+-%": round(50 * (medians.broker_spread or 0.0)),
            }
        row["gen us"] = _digits(medians.generator_us)
        if medians.latency is not None:
            row |= {
                "p50 us": _digits(medians.latency.p50),
                "p99 us": _digits(medians.latency.p99),
                "p99.9 us": _digits(medians.latency.p999),
                "max us": _digits(medians.latency.max),
            }
        if medians.rss_after is not None:
            row |= {
                "rss MB": _mib(medians.rss_before),
                "after": _mib(medians.rss_after),
                "peak": _mib(medians.rss_peak),
            }
        if result.bind_seconds:
            row["binds/s"] = round(result.bindings / result.bind_seconds)
        table.append(row)
    return table


def _digits(value: float) -> float:
    """Round a figure for a table.

    Figures below 100 keep three significant digits, others become whole numbers.
    """
    return round(value) if value >= 100 else float(f"{value:.3g}")


def _mib(size: int | None) -> float | None:
    return None if size is None else round(size / _MIB, 1)


def environment(command: Sequence[str], targets: dict[str, str]) -> Environment:
    """Return time, command and machine of this run, with passwords in the command's URLs masked."""
    return Environment(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        command=re.sub(r"(//[^/:@\s]*):[^@\s]*@", r"\1:***@", shlex.join(command)),
        trellis=trellis.__version__,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        generator_compiled=not (generator.__file__ or "").endswith(".py"),
        cpu=_cpu_model(),
        cpus=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 0,
        kernel=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        load=round(os.getloadavg()[0], 2),
        targets=targets,
        servers={},
    )


def _cpu_model() -> str:
    try:
        match = re.search(
            r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE
        )
    except OSError:
        match = None
    return match[1] if match else platform.processor() or "unknown"
