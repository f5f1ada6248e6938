"""Runs `trellis ask ...`: answers questions about a journal in this process, without Spark.

    traffic       numbers of published messages
    unroutable    topics with messages that reached no queue
    whatif, audit, advise
                  the jobs of `trellis pipeline`, with the same options, JSON and exit codes

The rows are read from a directory, or over HTTP from the stream files of a running broker: the
gateway process sends the bytes, and the broker's event loop only opens the files.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import pyarrow as pa

from pyspark_trellis import lines
from pyspark_trellis.advise import advise
from pyspark_trellis.answering import check, options_of, repeated, times_of, write_json
from pyspark_trellis.arrow_feed import JournalFeed, RollupFeed
from pyspark_trellis.arrow_topics import ArrowTopics
from pyspark_trellis.audit import audit
from pyspark_trellis.counts import KEYS
from pyspark_trellis.job_bindings import JobBindings, read_bindings
from pyspark_trellis.progress import PipelineProgress
from pyspark_trellis.traffic_table import TIMES, traffic_table, unroutable_topics
from pyspark_trellis.whatif import what_if


class AskedQuestion:
    """The input of a job: a table of the published messages by topic (`sums`), and the bindings."""

    def __init__(
        self, arguments: argparse.Namespace, bindings: JobBindings, sums: pa.Table
    ) -> None:
        self.arguments: Final = arguments
        self.bindings: Final = bindings
        self.sums: Final = sums

    def json(self, document: dict[str, Any]) -> bool:
        """Write `document` as JSON to the file that --json names; return True for stdout.

        The caller then prints no text output. Without --json, write nothing and return False.
        """
        return write_json(self.arguments, document, self.bindings.sources)


def run(arguments: argparse.Namespace) -> int:
    """Run the job that the arguments name; return its exit code. Raises PipelineError."""
    check(arguments)
    feed = feed_of(arguments)
    job = _JOBS[arguments.job]
    progress = PipelineProgress()

    def answer() -> int:
        bindings = bindings_of(arguments)
        progress.say(f"{arguments.job}  reading messages")
        sums = feed.sums(bindings.splits)
        progress.end()
        return job(AskedQuestion(arguments, bindings, sums))

    return repeated(arguments, progress, feed.extended, answer)


def feed_of(arguments: argparse.Namespace) -> JournalFeed | RollupFeed:
    """Return the journal or the rollup that the arguments name as the source of the messages.

    Raises PipelineError.
    """
    since, until = times_of(arguments)
    if arguments.journal is None:
        return RollupFeed(arguments.traffic)
    by_time = getattr(arguments, "by", "topic") in TIMES
    keys = ("minute", *KEYS) if by_time else KEYS
    return JournalFeed(options_of(arguments), keys, arguments.ending, since, until)


def bindings_of(arguments: argparse.Namespace) -> JobBindings:
    """Return the bindings that the job examines. Raises PipelineError.

    The job `traffic` needs no bindings; `unroutable` uses bindings if the arguments name any.
    """
    if arguments.job == "traffic":
        return JobBindings(None, None, ())
    return read_bindings(arguments)


def _traffic(question: AskedQuestion) -> int:
    table = traffic_table(question.sums, question.arguments.by)
    if not question.json(table.document()):
        lines.head(table.span, ())
        lines.traffic(table)
    return 0


def _unroutable(question: AskedQuestion) -> int:
    unroutable = unroutable_topics(question.sums, question.bindings.current)
    if not question.json(asdict(unroutable)):
        lines.head(unroutable.span, question.bindings.sources)
        lines.unroutable(unroutable)
    return int(question.arguments.check and unroutable.topics > 0)


def _whatif(question: AskedQuestion) -> int:
    bindings = question.bindings
    comparison = what_if(ArrowTopics(question.sums), bindings.routing, bindings.proposed_routing)
    if not question.json({**asdict(comparison), "breaks": comparison.breaks}):
        lines.head(comparison.span, bindings.sources)
        lines.whatif(comparison, bindings.current is not None)
    return int(comparison.breaks)


def _audit(question: AskedQuestion) -> int:
    bindings = question.bindings
    topics = ArrowTopics(question.sums)
    recorded = bindings.recorded or topics.vhosts()
    findings = audit(topics, bindings.effective, bindings.then, recorded)
    if not question.json(asdict(findings)):
        lines.head(findings.span, question.bindings.sources)
        lines.audit(findings)
    return int(question.arguments.check and not findings.clean)


def _advise(question: AskedQuestion) -> int:
    arguments = question.arguments
    advice = advise(ArrowTopics(question.sums), question.bindings.effective)
    advice.write(arguments.output)
    if not question.json(asdict(advice)):
        lines.head(advice.span, question.bindings.sources)
        lines.advise(advice)
        lines.profile(arguments.output)
    return 0


_JOBS: Final[dict[str, Callable[[AskedQuestion], int]]] = {
    "traffic": _traffic,
    "unroutable": _unroutable,
    "whatif": _whatif,
    "audit": _audit,
    "advise": _advise,
}
