"""Runs a job once, or again after further messages, and writes its answer."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark_trellis import offsets
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.files import write
from pyspark_trellis.progress import PipelineProgress


def options_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options of the data source "trellis" that the arguments set."""
    options = {"path": arguments.journal, "startingOffsets": arguments.starting}
    named = {name: getattr(arguments, name) for name in ("pattern", "stream")}
    given = {name: value for name, value in named.items() if value is not None}
    return options | given | credentials_of(arguments)


def credentials_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options `user` and `password` that the arguments set, if any."""
    credentials: dict[str, str] = getattr(arguments, "credentials", {})
    return credentials


def times_of(arguments: argparse.Namespace) -> tuple[int | None, int | None]:
    """Return the times --since and --until in microseconds since 1970; None for a missing time.

    Raises PipelineError if the messages come from --traffic, which has no rows of messages, or if
    the end is before the beginning.
    """
    since, until = (getattr(arguments, name, None) for name in ("since", "until"))
    if arguments.journal is None and (since is not None or until is not None):
        raise PipelineError(
            "--since and --until cannot be combined with --traffic, because they select rows of a "
            "journal: leave them out"
        )
    if since is not None and until is not None and until < since:
        raise PipelineError("--until is a time before --since: exchange the two times")
    return _microseconds(since), _microseconds(until)


def _microseconds(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1_000_000)


def check(arguments: argparse.Namespace) -> None:
    """Check the arguments of a job that examines published messages.

    Raises PipelineError if arguments contradict each other, or if an output file has no directory.
    """
    if (arguments.journal is None) == (arguments.traffic is None):
        raise PipelineError(
            "exactly one source of messages is required: set either --journal or --traffic"
        )
    if arguments.traffic is not None:
        _check_traffic(arguments)
    elif arguments.starting.isdecimal() and arguments.ending.isdecimal():
        if int(arguments.ending) < int(arguments.starting):
            raise PipelineError(
                f"--ending {arguments.ending} is before --starting {arguments.starting}: exchange "
                "the two offsets"
            )
    if arguments.follow and arguments.ending != offsets.LATEST:
        raise PipelineError(
            "--ending cannot be combined with --follow, which reads without end: leave --ending out"
        )
    for path in (getattr(arguments, "output", None), getattr(arguments, "json", None)):
        if path not in (None, "-") and not Path(path).absolute().parent.is_dir():
            raise PipelineError(
                f"cannot write {path}: the directory {Path(path).absolute().parent} does not "
                "exist; create it"
            )


def _check_traffic(arguments: argparse.Namespace) -> None:
    """Raise PipelineError if --traffic is combined with an argument that selects journal rows."""
    defaults = {"starting": offsets.EARLIEST, "ending": offsets.LATEST}
    for name in ("starting", "ending", "pattern"):
        if getattr(arguments, name, None) != defaults.get(name):
            raise PipelineError(
                f"--{name} cannot be combined with --traffic, because it selects rows of a "
                "journal: leave it out"
            )


def write_json(
    arguments: argparse.Namespace, document: dict[str, Any], sources: Iterable[str]
) -> bool:
    """Write the document and the sources of the bindings as JSON to the file that --json names.

    Return True if the file is stdout (`-`); the caller then prints no text output. Without --json,
    write nothing and return False.
    """
    return write_object(arguments, {**document, "said_by": list(sources)})


def write_object(arguments: argparse.Namespace, document: dict[str, Any]) -> bool:
    """Write the document as JSON to the file that --json names.

    Return True if the file is stdout (`-`); the caller then prints no text output. Without --json,
    write nothing and return False.
    """
    path = arguments.json
    if path is None:
        return False
    indent = None if arguments.follow else 1
    text = json.dumps(document, indent=indent, default=str, ensure_ascii=False)
    if path == "-":
        print(text, flush=True)
        return True
    write(Path(path), text + "\n")
    return False


def repeated(
    arguments: argparse.Namespace,
    progress: PipelineProgress,
    extended: Callable[[], bool],
    answer: Callable[[], int],
) -> int:
    """Call `answer` and return its exit code; with --follow, call it again after new messages.

    `extended` returns True if there are new messages. Ctrl-C ends --follow, and does not change the
    exit code.
    """
    try:
        code = answer()
        while arguments.follow:
            sys.stdout.flush()
            began = time.monotonic()
            while not extended():
                progress.say(
                    f"{arguments.job}  no new messages for {time.monotonic() - began:,.0f} s; "
                    "press Ctrl-C to stop"
                )
                time.sleep(arguments.every)
            progress.end()
            if getattr(arguments, "json", None) != "-":
                print(f"\n--- {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC")
            answer()
    except KeyboardInterrupt:
        progress.end()
        if not arguments.follow:
            raise
        print("stopped", file=sys.stderr)
        code = 0
    return code
