"""`trellis bench load`: measures Trellis or another broker and checks its answers."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import msgspec

from trellis.cli import matching
from trellis.cli.parsing import CommandError, Commands, Parser, add_command, number
from trellis.cli.table import columns_of, table
from trellis.settings.errors import nearest

if TYPE_CHECKING:
    from trellis.bench.report import BenchReport
    from trellis.bench.run import BenchOptions
    from trellis.bench.target import BrokerTarget

USAGE = (
    "trellis bench load [WORKLOAD]... [--amqp URL] [--mqtt URL] [--pid PID,...] "
    "[--messages N | --seconds S] [--rate R] [--size BYTES] [--rounds N] [--json FILE] [--list]"
)


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis bench`, with load and matching."""
    command = add_command(
        commands,
        "bench",
        _needs_tool,
        "measure a broker (load) or topic matching (matching)",
        "load|matching [ARGUMENT]...",
    )
    tools = command.add_subparsers(title="benches", metavar="load|matching", dest="bench")
    tool: Parser = tools.add_parser(
        "load",
        prog="trellis bench load",
        usage=USAGE,
        help="publish messages through a broker, measure it, and check every delivery",
        description="Publish messages through any AMQP 0-9-1 or MQTT 3.1.1 broker, measure it, and "
        "check every delivery.",
    )
    tool.set_defaults(run=load, parser=tool)
    tool.add_argument(
        "workload",
        metavar="WORKLOAD",
        nargs="*",
        help="workload to run, see --list [all workloads that need only the given brokers]",
    )
    tool.add_argument(
        "--amqp",
        metavar="URL",
        help="URL of an AMQP broker: amqp://USER:PASSWORD@HOST:PORT/VHOST "
        "[amqp://guest:guest@127.0.0.1:5672/]",
    )
    tool.add_argument(
        "--mqtt",
        metavar="URL",
        help="URL of an MQTT broker: mqtt://USER:PASSWORD@HOST:PORT [mqtt://127.0.0.1:1883]",
    )
    tool.add_argument(
        "--pid",
        metavar="PID,...",
        type=_pids,
        default=[],
        help="process IDs (PIDs) of the broker, whose CPU time and memory are reported",
    )
    tool.add_argument(
        "--children",
        action="store_true",
        help="include all child processes of the processes of --pid",
    )
    amount = tool.add_mutually_exclusive_group()
    amount.add_argument(
        "--messages",
        metavar="N",
        type=number(int, 1),
        default=0,
        help="messages to publish in each round",
    )
    amount.add_argument(
        "--seconds",
        metavar="S",
        type=number(float, 0.01),
        default=2.0,
        help="seconds for which each round publishes [2]",
    )
    tool.add_argument(
        "--rate",
        metavar="R",
        type=number(float, 0.001),
        default=0.0,
        help="publish R messages per second, and measure the latency of each [as many as the "
        "workload's limit of messages in flight allows]",
    )
    tool.add_argument(
        "--size",
        metavar="BYTES",
        type=number(int, 8),
        default=0,
        help="size of a message body in bytes, at least 8 [the workload's size]",
    )
    tool.add_argument(
        "--rounds",
        metavar="N",
        type=number(int, 1),
        default=3,
        help="rounds of each workload; their medians are shown [3]",
    )
    tool.add_argument(
        "--json",
        metavar="FILE",
        help="write all figures of all rounds as JSON to FILE; - prints the JSON instead of the "
        "table",
    )
    tool.add_argument("--list", action="store_true", help="list the workloads")
    matching.add_bench(tools)


def load(arguments: argparse.Namespace) -> int:
    """Run the workloads, or list them; the exit code is 1 if a workload failed."""
    # Imported here, so that the other commands start without the load generator.
    from trellis.bench.workloads import WORKLOADS

    if arguments.list:
        width = max(map(len, WORKLOADS))
        print(
            "\n".join(
                f"{workload.name:{width}}  {workload.text}" for workload in WORKLOADS.values()
            )
        )
        return 0
    targets = _targets(arguments)
    names = arguments.workload or [
        name for name, workload in WORKLOADS.items() if workload.protocols <= targets.keys()
    ]
    for name in names:
        if name not in WORKLOADS:
            raise CommandError(
                f"unknown workload {name}; the nearest is {nearest(name, WORKLOADS)}", 2
            )
        for protocol in sorted(WORKLOADS[name].protocols - targets.keys()):
            raise CommandError(
                f"workload {name} needs an {protocol.upper()} broker as well; give --{protocol}", 2
            )
    from trellis.bench.run import BenchOptions

    chosen = BenchOptions(
        arguments.messages, arguments.seconds, arguments.rate, arguments.size, arguments.rounds
    )
    return _run(arguments, names, chosen, targets)


def _run(
    arguments: argparse.Namespace,
    names: list[str],
    options: BenchOptions,
    targets: dict[str, BrokerTarget],
) -> int:
    from trellis.bench.errors import Unreachable
    from trellis.bench.processes import Processes
    from trellis.bench.report import BenchReport, environment
    from trellis.bench.run import run
    from trellis.bench.workloads import WORKLOADS
    from trellis.progress import ProgressLine

    _check_writable(arguments.json)
    report = BenchReport(
        environment(sys.argv, {protocol: str(target) for protocol, target in targets.items()}), []
    )
    progress, stopped = ProgressLine(), None
    try:
        processes = Processes(arguments.pid, arguments.children)
        for name in names:
            report.workloads.append(
                run(
                    WORKLOADS[name],
                    options,
                    targets,
                    processes,
                    progress,
                    report.environment.servers,
                )
            )
    except Unreachable as error:
        stopped = str(error)
    finally:
        progress.end()
        if arguments.json != "-":
            _show(report)
        if arguments.json and report.workloads:
            _write(arguments.json, report)
    failed = [f"{result.name}: {result.error}" for result in report.workloads if result.error]
    for line in failed:
        print(f"trellis: {line}", file=sys.stderr)
    if stopped:
        raise CommandError(stopped)
    return 1 if failed else 0


def _show(report: BenchReport) -> None:
    from trellis.bench.report import heading, rows

    lines = rows(report.workloads)
    if lines:
        print(heading(report.environment))
        print(table(lines, columns_of(lines)))


def _check_writable(path: str | None) -> None:
    """Raise CommandError if a file cannot be written. Called before the measurements begin."""
    try:
        if path not in (None, "-"):
            with open(str(path), "a"):
                pass
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}", 2) from None


def _write(path: str, report: BenchReport) -> None:
    text = msgspec.json.format(msgspec.json.encode(report)).decode() + "\n"
    if path == "-":
        sys.stdout.write(text)
        return
    with open(path, "w") as file:
        file.write(text)


def _targets(arguments: argparse.Namespace) -> dict[str, BrokerTarget]:
    """Return the brokers of --amqp and --mqtt by protocol; if neither flag is given, the default
    brokers.

    Raises CommandError for an invalid URL.
    """
    from trellis.bench.target import DEFAULTS, parse

    targets: dict[str, BrokerTarget] = {}
    for protocol in ("amqp", "mqtt"):
        url = getattr(arguments, protocol)
        try:
            if url is not None:
                targets[protocol] = parse(protocol, url)
        except ValueError as error:
            raise CommandError(f'--{protocol}: {error}, got "{url}"', 2) from None
    return targets or dict(DEFAULTS)


def _needs_tool(arguments: argparse.Namespace) -> int:
    """Print the help of `trellis bench`; return 2, because `load` or `matching` is missing."""
    arguments.parser.print_help()
    return 2


def _pids(text: str) -> list[int]:
    if not all(word.isdecimal() for word in text.split(",")):
        raise argparse.ArgumentTypeError(
            f'must be process IDs separated by commas, such as 1200,1201, got "{text}"'
        )
    return [int(word) for word in text.split(",")]
