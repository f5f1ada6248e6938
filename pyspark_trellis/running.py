"""Runs a command's job in a Spark session: once, or again after each further publication."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame

from pyspark_trellis import history as hist
from pyspark_trellis import session
from pyspark_trellis.answering import check, options_of, repeated, times_of, write_json
from pyspark_trellis.errors import PipelineError, brief
from pyspark_trellis.job_bindings import JobBindings, read_bindings
from pyspark_trellis.progress import PipelineProgress

#: The beginnings of lines that Java and Spark print at every start.
_STARTUP_LINES: Final = ("WARNING: ", "Setting default log level", "To adjust logging level")


@contextmanager
def spark_of(arguments: argparse.Namespace, progress: PipelineProgress) -> Iterator[Any]:
    """Yield a Spark session; after the block, stop it and delete its scratch directory.

    Raises PipelineError if Spark does not start.
    """
    settings = {}
    for each in arguments.conf:
        key, separator, value = each.partition("=")
        if not separator or not key.startswith("spark."):
            raise PipelineError(
                f"--conf {each}: the value must have the form spark.SOMETHING=VALUE"
            )
        settings[key] = value
    with tempfile.TemporaryDirectory(
        prefix="trellis-pipeline-", ignore_cleanup_errors=True
    ) as scratch:
        progress.say(f"starting Spark on {arguments.master}")
        java_output = Path(scratch, "java.txt")
        try:
            with _output_to(java_output):
                spark = session.start(
                    arguments.master,
                    f"trellis pipeline {arguments.job}",
                    settings=settings,
                    scratch=Path(scratch),
                )
        except PipelineError as error:
            if error.__cause__ is None:
                raise
            lines = [
                line
                for line in java_output.read_text(errors="replace").splitlines()
                if line.strip() and not line.startswith(_STARTUP_LINES)
            ]
            raise PipelineError(
                ": ".join(
                    [
                        f"Spark did not start on {arguments.master}",
                        brief(error.__cause__),
                        *lines[-1:],
                    ]
                )
            ) from error
        finally:
            progress.end()
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Redirect stdout and stderr to a file while the block runs.

    The file also gets the output of processes that start meanwhile, such as the warnings that Java
    prints at its start.
    """
    sys.stdout.flush()
    known = [(number, os.dup(number)) for number in (1, 2)]
    with path.open("wb") as file:
        for number, _ in known:
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        for number, copy in known:
            os.dup2(copy, number)
            os.close(copy)


@dataclass(frozen=True)
class Question:
    """The input of a job: the numbers of messages by minute and topic, and the bindings.

    `parts` is a table of partial sums: a minute and topic may occur in several rows.
    """

    arguments: argparse.Namespace
    spark: Any
    progress: PipelineProgress
    bindings: JobBindings
    parts: DataFrame

    @contextmanager
    def watched(self) -> Iterator[DataFrame]:
        """Yield a table of the published messages, with one row of sums for each topic.

        Show Spark's progress until the block ends.
        """
        history = hist.summed(self.parts, *hist.keys_of(self.parts)).cache()
        try:
            with self.progress.of(self.spark, self.arguments.job):
                yield history
        finally:
            history.unpersist()

    def json(self, document: dict[str, Any]) -> bool:
        """Write `document` as JSON to the file that --json names; return True for stdout.

        The caller then prints no text output. Without --json, write nothing and return False.
        """
        return write_json(self.arguments, document, self.bindings.sources)


def answered(arguments: argparse.Namespace, answer: Callable[[Question], int]) -> int:
    """Run the job and return its exit code; with --follow, run it again after new messages.

    Ctrl-C ends --follow, and does not change the exit code.
    """
    check(arguments)
    since, until = times_of(arguments)
    bindings = read_bindings(arguments)  # errors appear before Spark starts
    progress = PipelineProgress()
    with spark_of(arguments, progress) as spark:
        feed = hist.TopologyFeed(
            spark,
            options_of(arguments) if arguments.journal is not None else None,
            arguments.traffic,
            arguments.ending,
            arguments.follow,
            since,
            until,
        )
        known: JobBindings | None = bindings

        def once() -> int:
            nonlocal known
            bindings, known = known or read_bindings(arguments), None
            return answer(
                Question(arguments, spark, progress, bindings, feed.parts(bindings.splits))
            )

        return repeated(arguments, progress, feed.extended, once)
