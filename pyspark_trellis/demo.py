"""`trellis pipeline demo`: publishes an hour of made-up messages to a broker, and runs all pipeline
jobs on them.

    OUTPUT/definitions.json         the broker's definitions
    OUTPUT/proposed.json            a proposed change of them
    OUTPUT/broker                   the broker's data, with the journal
    OUTPUT/lake, OUTPUT/traffic     Parquet
    OUTPUT/matching-profile.json    recommendations for the broker
    OUTPUT/report.html              the report
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pika

from pyspark_trellis import definitions, lake
from pyspark_trellis import history as hist
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.progress import PipelineProgress, QueryCounts
from pyspark_trellis.publisher import Outgoing, SinkPublisher
from pyspark_trellis.report import make

#: The duration of the traffic, in seconds.
HOUR: Final = 3600
_PATIENCE: Final = 60
_SENSORS: Final = ("temperature", "vibration", "pressure", "power")
_MARKETS: Final = {
    "nyse": ("ibm", "ge", "ko", "dis", "ba"),
    "nasdaq": ("aapl", "msft", "nvda", "amzn"),
    "lse": ("bp", "hsbc", "vod"),
}
_QUEUES: Final = (
    "dashboard",
    "alarms",
    "archive",
    "maintenance",
    "energy",
    "risk",
    "ticker",
    "compliance",
    "research",
    "billing",
)
_BINDINGS: Final[tuple[tuple[str, str, str], ...]] = (
    ("amq.topic", "factory.*.*.*.temperature", "dashboard"),
    ("amq.topic", "factory.#", "archive"),
    ("amq.topic", "factory.*.line-1.#", "archive"),  # subsumed by the binding above
    ("amq.topic", "factory.*.*.*.vibration", "maintenance"),
    ("amq.topic", "factory.berlin.#", "maintenance"),  # overlaps with the binding above
    ("amq.topic", "factory.*.*.*.power", "energy"),
    ("amq.topic", "#.alarm", "alarms"),
    ("amq.topic", "factory.oslo.#", "dashboard"),  # dead: there is no such site
    ("trading", "stock.*.*.trade", "risk"),
    ("trading", "stock.#", "ticker"),
    ("trading", "stock.nyse.#", "compliance"),
    ("trading", "stock.*.ibm.*", "compliance"),
    ("trading", "bond.#", "research"),  # dead: bonds are not traded
    ("orders", "paid", "billing"),
    ("orders", "refunded", "billing"),
)


def document(bindings: tuple[tuple[str, str, str], ...] = _BINDINGS) -> dict[str, Any]:
    """Return definitions with these bindings (exchange, key, queue), all queues and a journal."""
    queues: list[dict[str, Any]] = [
        {
            "name": name,
            "vhost": "/",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-max-length": 1000},
        }
        for name in _QUEUES
    ]
    queues.append(
        {
            "name": "journal",
            "vhost": "/",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "stream", "x-journal": True},
        }
    )
    exchanges = [
        {
            "name": name,
            "vhost": "/",
            "type": kind,
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {},
        }
        for name, kind in (("trading", "topic"), ("orders", "direct"))
    ]
    return {
        "vhosts": [{"name": "/"}],
        "exchanges": exchanges,
        "queues": queues,
        "bindings": [
            {
                "source": source,
                "vhost": "/",
                "destination": queue,
                "destination_type": "queue",
                "routing_key": key,
                "arguments": {},
            }
            for source, key, queue in bindings
        ],
    }


def proposal() -> dict[str, Any]:
    """Return the proposed definitions, in which too many bindings have been removed on purpose."""
    kept = tuple(
        each
        for each in _BINDINGS
        if each[2] != "risk"
        and each[1] not in ("factory.*.line-1.#", "factory.oslo.#", "bond.#", "refunded")
    )
    return document((*kept, ("trading", "stock.*.*.quote", "research")))


def traffic(messages: int, start: int, rng: random.Random) -> Iterator[Outgoing]:
    """Iterate over the messages of an hour, sorted by event time.

    `start` is the beginning of the hour, in seconds of Unix time.
    """
    sites = [
        (site, f"line-{line}", f"m{machine:02}")
        for site in ("berlin", "lyon", "turin")
        for line in (1, 2, 3)
        for machine in range(12)
    ]
    symbols = [(market, symbol) for market, names in _MARKETS.items() for symbol in names]
    for number in range(messages):
        second = HOUR * number // messages
        at = start + second
        draw = rng.random()
        # Trading begins after twenty minutes, with a peak.
        trading = 0.0 if second < 1200 else 0.55 if second < 1500 else 0.3
        if draw < trading:
            market, symbol = symbols[min(int(rng.expovariate(0.35)), len(symbols) - 1)]
            kind = "trade" if rng.random() < 0.25 else "quote"
            yield _message(
                "trading",
                f"stock.{market}.{symbol}.{kind}",
                {"price": round(rng.uniform(20, 400), 2)},
                at,
            )
        elif draw < trading + 0.02:
            yield _message(
                "orders",
                rng.choice(("paid", "paid", "paid", "refunded", "cancelled")),
                {"order": number},
                at,
            )
        elif draw < trading + 0.035:
            yield _message(
                "amq.topic",
                f"factroy.{rng.choice(sites)[0]}.line-1.m00.temperature",
                {"value": 0},
                at,
            )  # a device with a misspelled topic
        else:
            site, line, machine = sites[min(int(rng.expovariate(0.04)), len(sites) - 1)]
            sensor = "alarm" if rng.random() < 0.004 else rng.choice(_SENSORS)
            yield _message(
                "amq.topic",
                f"factory.{site}.{line}.{machine}.{sensor}",
                {"value": round(rng.gauss(20, 5), 2)},
                at,
            )


def _message(exchange: str, key: str, body: dict[str, Any], at: int) -> Outgoing:
    return Outgoing(
        exchange,
        key,
        json.dumps(body).encode(),
        pika.BasicProperties(content_type="application/json", delivery_mode=1, timestamp=at),
    )


@contextmanager
def broker(directory: Path, file: Path) -> Iterator[str]:
    """Start a broker of this installation on free ports, yield its AMQP URL, and stop the broker at
    the end.

    The broker's data is in `directory`, its definitions come from `file`. Raises PipelineError if
    the broker does not start or does not stop cleanly.
    """
    flags = [
        "--config",
        os.devnull,
        "--data-dir",
        str(directory),
        "--definitions-file",
        str(file),
        "--log-level",
        "error",
    ]
    ports = [
        word for name in ("amqp", "mqtt", "metrics", "http") for word in (f"--{name}-port", "0")
    ]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("TRELLIS_")
    }
    with subprocess.Popen(
        [sys.executable, "-m", "trellis", "serve", *flags, *ports],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split()
            address = dict(word.partition("=")[::2] for word in words[1:]).get("amqp")
            if address is None:
                raise PipelineError(
                    f"the broker did not start (exit code {process.wait(_PATIENCE)}); see its "
                    "messages above"
                )
            yield f"amqp://guest:guest@{address}/%2F"
            process.send_signal(signal.SIGTERM)
            if process.wait(_PATIENCE):
                raise PipelineError("the broker did not stop cleanly; see its messages above")
        finally:
            process.kill()


def demo(
    output: Path,
    messages: int,
    session: Callable[[], AbstractContextManager[Any]],
    progress: PipelineProgress,
    seed: int = 1,
) -> int:
    """Run the demo with `messages` messages, and write its files to `output`.

    `session` starts Spark. Return the exit code. Raises PipelineError.
    """
    if output.exists() and any(output.iterdir()):
        raise PipelineError(
            f"{output} exists and is not empty: name another directory with --output, or remove it"
        )
    output.mkdir(parents=True, exist_ok=True)
    for name, content in (("definitions.json", document()), ("proposed.json", proposal())):
        (output / name).write_text(json.dumps(content, indent=1) + "\n")
    began = time.monotonic()

    def step(text: str) -> None:
        progress.end()
        print(f"{time.monotonic() - began:5.1f} s  {text}", flush=True)

    print(
        "A made-up factory and trading floor publish an hour of messages to a broker. The broker "
        "removes a message once it is\n"
        "consumed; its journal keeps all of them. Spark reads the journal and shows what a broker "
        "cannot: which bindings do\n"
        "nothing, which messages reach no queue, and what a proposed change would lose. Times are "
        "seconds since the start.\n",
        flush=True,
    )
    step("starting a broker with a journal of all published messages")
    with broker(output / "broker", output / "definitions.json") as url:
        start = int(datetime.now(UTC).timestamp()) // 60 * 60 - HOUR
        sent = SinkPublisher(url).publish(
            _with_progress(traffic(messages, start, random.Random(seed)), messages, progress)
        )
        step(f"published {sent:,} messages of an hour; the broker has confirmed all of them")
    journal = {"path": str(output / "broker" / "streams" / "%2F" / "journal")}
    with session() as spark:
        step("Spark has started")
        for job in (lake.lake, lake.traffic):
            name = job.__name__
            query = job(
                spark, journal, str(output / name), str(output / f"{name}.checkpoint"), once=True
            )
            progress.watch(query, name, QueryCounts())
        kept = lake.read_lake(spark, str(output / "lake"))
        counts = kept.selectExpr("count(*)", "count(distinct offset)").collect()[0]
        if tuple(counts) != (sent, sent):
            raise PipelineError(
                f"the lake has {counts[0]:,} rows with {counts[1]:,} distinct offsets, but "
                f"{sent:,} messages were published"
            )
        step(
            f"lake and traffic: wrote {counts[0]:,} messages, each exactly once, and the counts "
            "per topic and minute, as Parquet files"
        )
        current, proposed = (
            definitions.read(output / name) for name in ("definitions.json", "proposed.json")
        )
        parts = hist.read_rollup(spark, str(output / "traffic"))
        _answers(parts, current, proposed, output, step)
        with progress.of(spark, "report"):
            page = make(parts, current, proposed)
        (output / "report.html").write_text(page, encoding="utf-8")
    step(f"done: open {output / 'report.html'}, which shows all results")
    print(
        f"\nTry it: trellis pipeline audit --journal {journal['path']} --definitions "
        f"{output / 'definitions.json'}"
    )
    return 0


def _answers(
    parts: Any,
    current: definitions.DefinitionsFile,
    proposed: definitions.DefinitionsFile,
    output: Path,
    step: Callable[[str], None],
) -> None:
    """Run the jobs audit, whatif and advise, and print a line with the result of each."""
    from pyspark_trellis.advise import advise
    from pyspark_trellis.audit import audit
    from pyspark_trellis.spark_topics import SparkTopics
    from pyspark_trellis.whatif import what_if

    history = hist.summed(parts).cache()
    topics = SparkTopics(history)
    findings = audit(topics, current)
    step(
        f"audit: of {findings.bindings} bindings, {len(findings.dead)} are dead and "
        f"{len(findings.subsumed)} are covered by another binding; "
        f"{len(findings.unroutable)} topics reach no queue"
    )
    for lost in findings.unroutable[:1]:
        print(
            f"         the most frequent of these topics is {lost.topic}, with "
            f"{lost.messages:,} messages; the nearest binding is {lost.nearest}"
        )
    answer = what_if(topics, current, proposed)
    step(
        "whatif, with proposed.json: topics that would be lost: "
        f"{', '.join(each.topic for each in answer.lost) or 'none'}; queues that would lose all "
        f"messages: {', '.join(map(str, answer.starved)) or 'none'}; queues that would get their "
        f"first messages: {', '.join(map(str, answer.newly_hit)) or 'none'}"
    )
    advice = advise(topics, current)
    advice.write(output / "matching-profile.json")
    chosen = ", ".join(f"{each.matcher or 'auto'} for {each.exchange}" for each in advice.exchanges)
    step(
        f"advise: fastest matchers: {chosen}; wrote them to matching-profile.json, which a broker "
        "reads (matcher.profile)"
    )
    history.unpersist()


def _with_progress(
    messages: Iterator[Outgoing], total: int, progress: PipelineProgress
) -> Iterator[Outgoing]:
    for number, message in enumerate(messages):
        if number % 1000 == 0:
            progress.say(f"publishing  {number:,} of {total:,}")
        yield message
