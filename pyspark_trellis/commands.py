"""`trellis pipeline ...`: from arguments (trellis/cli/pipeline.py) to a job, and from its answer to lines for people."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame

from pyspark_trellis import definitions, session
from pyspark_trellis import history as hist
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.progress import Progress

#: Lines of a table that people get; the rest is in --json.
SHOWN: Final = 20


def run(arguments: argparse.Namespace) -> int:
    """The job that the arguments name; its exit code. Raises PipelineError: what can be seen at once, before Spark begins."""
    if getattr(arguments, "journal", None) is not None and arguments.master.startswith("local"):
        from pyspark_trellis import offsets
        from pyspark_trellis.source import stream_of

        stream = stream_of({name.lower(): value for name, value in options_of(arguments).items()})
        offsets.starting(arguments.starting, stream.bounds(), stream.name)
    return _JOBS[arguments.job](arguments)


@contextmanager
def spark_of(arguments: argparse.Namespace, progress: Progress) -> Iterator[Any]:
    """A session, ended with its scratch directory."""
    settings = {}
    for each in arguments.conf:
        key, separator, value = each.partition("=")
        if not separator or not key.startswith("spark."):
            raise PipelineError(f"--conf {each}: should be spark.SOMETHING=VALUE")
        settings[key] = value
    with tempfile.TemporaryDirectory(prefix="trellis-pipeline-", ignore_cleanup_errors=True) as scratch:
        progress.say(f"starting Spark on {arguments.master}")
        spark = session.start(arguments.master, f"trellis pipeline {arguments.job}", settings=settings, scratch=Path(scratch))
        progress.end()
        try:
            yield spark
        finally:
            spark.stop()


def options_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Options of the source."""
    options = {"path": arguments.journal, "startingOffsets": arguments.starting}
    return options | {name: value for name in ("pattern", "stream") if (value := getattr(arguments, name)) is not None}


def history_of(spark: Any, arguments: argparse.Namespace) -> DataFrame:
    """What was published. Raises PipelineError."""
    if (arguments.journal is None) == (arguments.traffic is None):
        raise PipelineError("say what was published: --journal PLACE, or --traffic DIR")
    if arguments.traffic is not None:
        return hist.summed(hist.read_rollup(spark, arguments.traffic))
    options = options_of(arguments) | {"endingOffsets": arguments.ending}
    return hist.summed(hist.rollup(spark.read.format("trellis").schema(hist.PROJECTION).options(**options).load()))


# -- jobs

def _kept(arguments: argparse.Namespace) -> int:
    from pyspark_trellis import lake

    job = lake.lake if arguments.job == "lake" else lake.traffic
    progress = Progress()
    options = options_of(arguments) | {"maxRowsPerTrigger": str(arguments.max_rows)}
    checkpoint = arguments.checkpoint or arguments.target.rstrip("/") + ".checkpoint"
    with spark_of(arguments, progress) as spark:
        query = job(spark, options, arguments.target, checkpoint, not arguments.follow, arguments.every)
        try:
            progress.watch(query, arguments.job)
        except KeyboardInterrupt:
            query.stop()
            print(f"stopped; `trellis pipeline {arguments.job}` with the same --target goes on from there", file=sys.stderr)
    return 0


def _whatif(arguments: argparse.Namespace) -> int:
    from pyspark_trellis.whatif import what_if

    proposed = definitions.read(arguments.definitions)
    current = definitions.read(arguments.current) if arguments.current is not None else None
    progress = Progress()
    with spark_of(arguments, progress) as spark, progress.of(spark, "whatif"):
        answer = what_if(history_of(spark, arguments), current, proposed)
    if _json(arguments.json, {**asdict(answer), "breaks": answer.breaks}):
        return int(answer.breaks)
    _said(answer.span)
    seconds = answer.span.seconds
    _table("queue", [(f"{change.vhost} {change.queue}", _rate(change.before, seconds), _rate(change.after, seconds),
                      "newly hit" if change in answer.newly_hit and current is not None else "STARVED" if change in answer.starved else "")
                     for change in answer.queues], "before, msg/s", "after, msg/s", "")
    _table("would be lost", [(f"{each.vhost} {each.exchange} {each.topic!r}", f"{each.messages:,}") for each in answer.lost], "messages")
    if answer.unknown:
        print(f"{answer.unknown:,} messages pass exchanges that decide by more than the topic; nothing is claimed of them")
    print("something would be lost" if answer.breaks else "nothing would be lost")
    return int(answer.breaks)


def _audit(arguments: argparse.Namespace) -> int:
    from pyspark_trellis.audit import audit

    file = definitions.read(arguments.definitions)
    progress = Progress()
    with spark_of(arguments, progress) as spark, progress.of(spark, "audit"):
        found = audit(history_of(spark, arguments), file)
    if _json(arguments.json, asdict(found)):
        return 0
    _said(found.span)
    _table("dead: nothing matched", [(str(each),) for each in found.dead])
    _table("duplicate", [(str(each.binding), f"as bindings[{each.by.number}]") for each in found.duplicate], "")
    _table("subsumed", [(str(each.binding), f"by '{each.by.key}'") for each in found.subsumed], "")
    _table("overlapping", [(f"'{each.one.key}' and '{each.other.key}' to '{each.one.destination}'", f"{each.messages:,}")
                           for each in found.overlapping], "messages")
    _table("unroutable", [(f"{each.vhost} {each.exchange} {each.topic!r}", f"{each.messages:,}",
                           f"'{each.nearest}', {each.words} words off" if each.nearest is not None else "no binding at all")
                          for each in found.unroutable], "messages", "nearest")
    print(f"{found.bindings} bindings: {len(found.dead)} dead, {len(found.duplicate)} duplicate, {len(found.subsumed)} subsumed; "
          f"{len(found.unroutable)} unroutable topics")
    return 0


def _advise(arguments: argparse.Namespace) -> int:
    from pyspark_trellis.advise import advise

    file = definitions.read(arguments.definitions)
    progress = Progress()
    with spark_of(arguments, progress) as spark:
        advice = advise(history_of(spark, arguments), file, lambda text: progress.say(f"advise  {text}"))
    progress.end()
    advice.write(arguments.output)
    _said(advice.span)
    _table("exchange", [(f"{each.vhost} {each.exchange}", f"{each.bindings:,}", f"{each.topics:,}", each.matcher or "auto (as good as any)",
                         ", ".join(f"{name} {ns}" for name, ns in each.measured.items()))
                        for each in advice.exchanges], "bindings", "topics", "matcher", "ns a lookup")
    print(f"route cache: {advice.routes:,} entries (limits.routes); prewarming carries {advice.carried:.0%} of the messages")
    print(f"{arguments.output} written: name it as matcher.profile, or send the broker SIGHUP if it is that already")
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from pyspark_trellis.report import make

    file = definitions.read(arguments.definitions)
    proposed = definitions.read(arguments.proposed) if arguments.proposed is not None else None
    progress = Progress()
    with spark_of(arguments, progress) as spark, progress.of(spark, "report"):
        if (arguments.journal is None) == (arguments.traffic is None):
            raise PipelineError("say what was published: --journal PLACE, or --traffic DIR")
        parts = hist.read_rollup(spark, arguments.traffic) if arguments.traffic is not None else hist.rollup(
            spark.read.format("trellis").schema(hist.PROJECTION).options(**options_of(arguments), endingOffsets=arguments.ending).load())
        page = make(parts, file, proposed)
    _write(arguments.output, page)
    print(f"{arguments.output} written: {len(page) / 1e6:.1f} MB, all in one file")
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    from pyspark_trellis.demo import demo

    progress = Progress()
    return demo(arguments.output, arguments.messages, lambda: spark_of(arguments, progress), progress)


def _bench(arguments: argparse.Namespace) -> int:
    from pyspark_trellis.bench import bench

    progress = Progress()
    with spark_of(arguments, progress) as spark:
        figures = bench(spark, arguments.quick, progress)
    for line in figures.lines():
        print(line)
    if arguments.json is not None:
        _write(arguments.json, json.dumps(figures.document(), indent=1) + "\n")
    return 0


_JOBS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "lake": _kept,
    "traffic": _kept,
    "whatif": _whatif,
    "audit": _audit,
    "advise": _advise,
    "report": _report,
    "demo": _demo,
    "bench": _bench,
}


# -- lines

def _said(span: hist.Span) -> None:
    when = (
        f", {span.first:%Y-%m-%d %H:%M:%S} to {span.last:%Y-%m-%d %H:%M:%S} UTC" if span.first is not None and span.last is not None else ""
    )
    print(f"{span.messages:,} messages of {span.topics:,} topics{when}")


def _rate(messages: int | None, seconds: float) -> str:
    return "-" if messages is None else f"{messages / seconds:,.2f}"


def _table(title: str, rows: list[tuple[str, ...]], *columns: str) -> None:
    if not rows:
        return
    shown = [(title, *columns), *rows[:SHOWN]]
    widths = [max(len(row[at]) for row in shown) for at in range(len(columns) + 1)]
    print()
    for row in shown:
        print(
            "  ".join(
                cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
        )
    if len(rows) > SHOWN:
        print(f"... and {len(rows) - SHOWN:,} more")


def _json(path: str | None, document: dict[str, Any]) -> bool:
    """Write it, if that was asked for; whether it was to be instead of tables."""
    if path is None:
        return False
    text = json.dumps(document, indent=1, default=str, ensure_ascii=False)
    if path == "-":
        print(text)
        return True
    _write(Path(path), text + "\n")
    return False


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PipelineError(f"{path}: {error.strerror}") from None
