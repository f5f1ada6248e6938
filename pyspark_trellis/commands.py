"""Runs `trellis pipeline ...`: starts the job that the parsed arguments name
(trellis/cli/pipeline.py), and prints or writes the job's output.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from pyspark_trellis import history as hist
from pyspark_trellis import lines, offsets
from pyspark_trellis.answering import options_of, write_object
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.files import write
from pyspark_trellis.progress import PipelineProgress, QueryCounts
from pyspark_trellis.rows import stream_of
from pyspark_trellis.running import Question, answered, spark_of
from pyspark_trellis.spark_topics import SparkTopics


def run(arguments: argparse.Namespace) -> int:
    """Run the job that the arguments name; return its exit code.

    With a local Spark master, the start and end offsets of the journal are checked before Spark
    starts, also if the journal is read over HTTP. Raises PipelineError.
    """
    if getattr(arguments, "wait", False):
        try:
            wait_for_message(arguments)
        except KeyboardInterrupt:
            print("stopped: the journal has no message yet", file=sys.stderr)
            write_object(arguments, _written_document(arguments, QueryCounts()))
            return 0
    if getattr(arguments, "journal", None) is not None and arguments.master.startswith("local"):
        stream = stream_of({name.lower(): value for name, value in options_of(arguments).items()})
        bounds = stream.bounds()
        offsets.starting(arguments.starting, bounds, stream.name)
        offsets.ending(getattr(arguments, "ending", offsets.LATEST), bounds, stream.name)
    return _JOBS[arguments.job](arguments)


def wait_for_message(arguments: argparse.Namespace) -> None:
    """Return as soon as the journal has a message; look for it every --every seconds.

    Each reason for waiting is printed once, so that the user notices a mistyped name of a journal.
    """
    printed = ""
    while True:
        try:
            if stream_of(options_of(arguments)).bounds().next:
                return
            reason = "the journal has no message yet"
        except PipelineError as error:
            reason = str(error)
        if reason != printed:
            print(
                f"waiting for the first message of {arguments.journal}: {reason}",
                file=sys.stderr,
                flush=True,
            )
            printed = reason
        time.sleep(arguments.every)


# -- the jobs


def _lake_or_traffic(arguments: argparse.Namespace) -> int:
    from pyspark_trellis import lake

    job = lake.lake if arguments.job == "lake" else lake.traffic
    progress = PipelineProgress()
    options = options_of(arguments) | {"maxRowsPerTrigger": str(arguments.max_rows)}
    counts = QueryCounts()
    with spark_of(arguments, progress) as spark:
        query = job(
            spark,
            options,
            arguments.target,
            _checkpoint(arguments),
            not arguments.follow,
            arguments.every,
        )
        try:
            progress.watch(query, arguments.job, counts)
            if not write_object(arguments, _written_document(arguments, counts)):
                print(
                    f"wrote {counts.rows:,} new rows to {arguments.target}"
                    if counts.rows
                    else f"wrote nothing to {arguments.target}: the journal has no new rows"
                )
        except KeyboardInterrupt:
            query.stop()
            counts.read(query)
            print(
                f"stopped; to continue, run `trellis pipeline {arguments.job}` again with the same "
                "--target",
                file=sys.stderr,
            )
            write_object(arguments, _written_document(arguments, counts))
    return 0


def _checkpoint(arguments: argparse.Namespace) -> str:
    """Return the directory that stores how far the journal is read."""
    return str(arguments.checkpoint or arguments.target.rstrip("/") + ".checkpoint")


def _written_document(arguments: argparse.Namespace, counts: QueryCounts) -> dict[str, object]:
    """Return the JSON object about the rows that `lake` or `traffic` has written."""
    return {
        "job": arguments.job,
        "target": arguments.target,
        "checkpoint": _checkpoint(arguments),
        "rows": counts.rows,
        "batches": counts.batches,
    }


def _whatif(arguments: argparse.Namespace) -> int:
    from pyspark_trellis.whatif import what_if

    def answer(question: Question) -> int:
        bindings = question.bindings
        with question.watched() as history:
            comparison = what_if(SparkTopics(history), bindings.routing, bindings.proposed_routing)
        if not question.json({**asdict(comparison), "breaks": comparison.breaks}):
            lines.head(comparison.span, bindings.sources)
            lines.whatif(comparison, bindings.current is not None)
        return int(comparison.breaks)

    return answered(arguments, answer)


def _audit(arguments: argparse.Namespace) -> int:
    from pyspark_trellis.audit import audit

    def answer(question: Question) -> int:
        bindings = question.bindings
        with question.watched() as history:
            findings = audit(
                SparkTopics(history), bindings.effective, bindings.then, bindings.recorded
            )
        if not question.json(asdict(findings)):
            lines.head(findings.span, question.bindings.sources)
            lines.audit(findings)
        return int(arguments.check and not findings.clean)

    return answered(arguments, answer)


def _advise(arguments: argparse.Namespace) -> int:
    from pyspark_trellis.advise import advise

    def answer(question: Question) -> int:
        advice = advise(
            SparkTopics(hist.summed(question.parts)),
            question.bindings.effective,
            lambda text: question.progress.say(f"advise  {text}"),
        )
        question.progress.end()
        advice.write(arguments.output)
        if not question.json(asdict(advice)):
            lines.head(advice.span, question.bindings.sources)
            lines.advise(advice)
            lines.profile(arguments.output)
        return 0

    return answered(arguments, answer)


def _report(arguments: argparse.Namespace) -> int:
    from pyspark_trellis.report import make

    def answer(question: Question) -> int:
        bindings = question.bindings
        with question.progress.of(question.spark, "report"):
            page = make(question.parts, bindings.effective, bindings.proposed, bindings.sources)
        write(arguments.output, page)
        size = len(page.encode())
        if not question.json({"job": "report", "output": str(arguments.output), "bytes": size}):
            print(f"{arguments.output} written: {size / 1e6:.1f} MB in one file")
        return 0

    return answered(arguments, answer)


def _demo(arguments: argparse.Namespace) -> int:
    from pyspark_trellis.demo import demo

    progress = PipelineProgress()
    return demo(
        arguments.output, arguments.messages, lambda: spark_of(arguments, progress), progress
    )


def _bench(arguments: argparse.Namespace) -> int:
    from pyspark_trellis.bench import bench

    progress = PipelineProgress()
    with spark_of(arguments, progress) as spark:
        figures = bench(spark, arguments.quick, progress)
    for line in figures.lines():
        print(line)
    if arguments.json is not None:
        write(arguments.json, json.dumps(figures.document(), indent=1) + "\n")
    return 0


_JOBS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "lake": _lake_or_traffic,
    "traffic": _lake_or_traffic,
    "whatif": _whatif,
    "audit": _audit,
    "advise": _advise,
    "report": _report,
    "demo": _demo,
    "bench": _bench,
}
