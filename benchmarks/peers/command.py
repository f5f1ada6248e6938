"""The command line: `python benchmarks/peers list | run | report | charts`."""

from __future__ import annotations

import argparse
import datetime
import math
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from peers import workloads
from peers.brokers import chosen
from peers.load import BenchLoad
from peers.machine import busy, machine
from peers.peer import ROOT, PeerBroker, Tools
from peers.process import Failed, allow_files
from peers.report import report, write_charts
from peers.results import About, Results, read
from peers.rounds import PeerPlan, calibrate, duration, measure_all

#: The default length of a measurement in seconds, and the shortest that `--minutes` may choose.
LENGTH: Final = 3.0
SHORTEST: Final = 0.5
#: The load tool's warm-up before a measurement, as a share of the measurement's length.
WARM: Final = 0.2
#: Fewer rounds than this give no reliable median.
FEWEST: Final = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (default: sys.argv); return the exit code.

    0: done; 1: a program is missing or failed; 2: wrong arguments; 130: interrupted by Ctrl-C.
    """
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.command(arguments)
        return code
    except (ValueError, Failed, OSError) as error:
        print(f"peers: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except KeyboardInterrupt:
        print("peers: interrupted; the results file has the completed rounds", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/peers", description="Measure Trellis beside other brokers."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="show the installed peers and the workloads")
    listing.set_defaults(command=_list)
    _add_choice(listing)

    run = commands.add_parser("run", help="measure, and write results")
    run.set_defaults(command=_run)
    _add_choice(run)
    run.add_argument(
        "--rounds",
        type=_positive,
        default=FEWEST,
        metavar="N",
        help=f"rounds of every peer [{FEWEST}]",
    )
    effort = run.add_mutually_exclusive_group()
    effort.add_argument(
        "--seconds",
        type=float,
        default=LENGTH,
        metavar="S",
        help=f"seconds of one measurement [{LENGTH:g}]",
    )
    effort.add_argument(
        "--minutes",
        type=float,
        metavar="M",
        help="instead of --seconds: measure as long as fits into a run of about M minutes",
    )
    effort.add_argument(
        "--messages",
        type=_positive,
        metavar="N",
        help="instead of --seconds: publish N messages in each measurement",
    )
    run.add_argument(
        "--require",
        action="store_true",
        help="fail if a chosen peer is not installed, instead of skipping it",
    )
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="show what would be measured and how long it takes",
    )
    run.add_argument(
        "--name", default="peers", help="last part of the default name of the results file [peers]"
    )
    run.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="write the results to this JSON file [benchmarks/results/DATE-NAME.json]",
    )

    writing = commands.add_parser(
        "report", help="write tables and charts into the marked part of a document"
    )
    writing.set_defaults(command=_report)
    writing.add_argument("results", type=Path, help="a results file written by `run`")
    writing.add_argument(
        "--into",
        type=Path,
        default=ROOT / "docs" / "performance.md",
        metavar="FILE",
        help="document to write into [docs/performance.md]",
    )
    writing.add_argument(
        "--charts",
        type=Path,
        metavar="FOLDER",
        help="directory for the charts, which are SVG files [the document's path without .md]",
    )

    drawing = commands.add_parser("charts", help="write the charts of a report, and no tables")
    drawing.set_defaults(command=_charts)
    drawing.add_argument("results", type=Path, help="a results file written by `run`")
    drawing.add_argument(
        "--charts",
        type=Path,
        default=ROOT / "docs" / "performance",
        metavar="FOLDER",
        help="directory for the charts, which are SVG files [docs/performance]",
    )
    return parser


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--peers", type=_names, default=(), metavar="A,B", help="only these peers [all]"
    )
    parser.add_argument(
        "--workloads", type=_names, default=(), metavar="A,B", help="only these workloads [all]"
    )
    parser.add_argument(
        "--trellis",
        type=Path,
        metavar="COMMAND",
        help="command `trellis` of an installed broker [.run/bin/trellis]",
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"the number must be at least 1, not {number}")
    return number


def tools(trellis: Path | None) -> Tools:
    """Return where programs are found; by default, search for an installed `trellis`.

    Raises ValueError if `trellis` is given and is not a file.
    """
    if trellis is not None and not trellis.is_file():
        raise ValueError(
            f"--trellis: {trellis} is not a file; name the installed command `trellis`"
        )
    # Symbolic links are not resolved: the environment's Python is beside the command, not beside
    # the link's target.
    candidates = (
        [trellis]
        if trellis
        else [ROOT / ".run" / "bin" / "trellis", Path(sys.executable).parent / "trellis"]
    )
    return Tools(trellis=next((each.absolute() for each in candidates if each.is_file()), None))


def _list(arguments: argparse.Namespace) -> int:
    for peer in chosen(arguments.peers, tools(arguments.trellis)):
        missing = peer.missing()
        print(f"{peer.name:12} {missing or peer.version()}")
        if peer.warning() if not missing else "":
            print(f"{'':12} WARNING: {peer.warning()}")
    print()
    for case in workloads.chosen(arguments.workloads):
        able = [
            peer.name
            for peer in chosen(arguments.peers, tools(arguments.trellis))
            if not peer.refusal(case)
        ]
        print(
            f"{case.name:18} "
            f"{case.family + ' ' if case.family != 'crossing' else ''}{case.title}\n{'':18} "
            f"{', '.join(able)}"
        )
    return 0


def _run(arguments: argparse.Namespace) -> int:
    installed = tools(arguments.trellis)
    wanted, cases = chosen(arguments.peers, installed), workloads.chosen(arguments.workloads)
    peers = [peer for peer in wanted if not _skipped(peer)]
    if arguments.require and len(peers) < len(wanted):
        raise Failed("--require: a chosen peer is not installed, see the lines above")
    if not peers:
        raise Failed("none of the chosen peers is installed, see the lines above")
    with tempfile.TemporaryDirectory(
        prefix="trellis-peers-", ignore_cleanup_errors=True
    ) as directory:
        plan = PeerPlan(peers, cases, arguments.rounds, Path(directory))
        seconds = length(plan, arguments.minutes) if arguments.minutes else arguments.seconds
        _tell(_estimate(plan, seconds, arguments.messages))
        if arguments.dry_run:
            return 0
        if installed.trellis is None:
            raise Failed(
                "the load tool is missing: install Trellis into .run with `make run`, or give "
                "--trellis COMMAND"
            )
        if busy():
            _tell(f"WARNING: {busy()}")
        if arguments.rounds < FEWEST:
            _tell(f"WARNING: fewer than {FEWEST} rounds give no reliable median")
        about = {peer.name: _about(peer) for peer in wanted}
        _measure(plan, about, BenchLoad(installed.trellis, seconds, arguments.messages), arguments)
    return 0


def _measure(
    plan: PeerPlan, about: dict[str, About], load: BenchLoad, arguments: argparse.Namespace
) -> None:
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    output = arguments.output or ROOT / "benchmarks" / "results" / f"{today}-{arguments.name}.json"
    command = ["python", "benchmarks/peers", *_words()]
    results = Results(
        arguments.name, today, command, machine(), rounds=0, load={}, peers=about, workloads={}
    )

    def save() -> None:
        results.load = load.about()
        results.write(output)

    # Treat SIGTERM like Ctrl-C, so that it stops the brokers too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    allow_files()
    calibrate(plan, load, _tell)
    results.workloads = {each.name: each.about(plan.rates.get(each.name)) for each in plan.cases}
    measure_all(plan, load, results, _over if sys.stderr.isatty() else _tell, save)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    if not load.environment.get("generator_compiled"):
        _tell(
            "WARNING: the load tool is not compiled here; it may have been slower than the broker"
        )
    for name, of in results.cells.items():
        for workload, cell in of.items():
            if cell.wrong or cell.failed:
                _tell(
                    f"{name}, {workload}: "
                    f"{'WRONG: ' + cell.wrong if cell.wrong else 'FAILED: ' + cell.failed}"
                )
    _tell(f"results: {output}")


def _report(arguments: argparse.Namespace) -> int:
    into: Path = arguments.into
    for path in report(read(arguments.results), into, arguments.charts or into.parent / into.stem):
        print(path)
    return 0


def _charts(arguments: argparse.Namespace) -> int:
    for path in write_charts(read(arguments.results), arguments.charts):
        print(path)
    return 0


def _skipped(peer: PeerBroker) -> bool:
    """Print a warning about the peer, if it has one; return True if the peer is not installed."""
    missing = peer.missing()
    if missing or peer.warning():
        _tell(f"skipped: {peer.name}: {missing}" if missing else f"WARNING: {peer.warning()}")
    return bool(missing)


def _about(peer: PeerBroker) -> About:
    missing = peer.missing()
    if missing:
        return About(peer.title, floor=peer.floor, missing=missing)
    return About(peer.title, peer.version(), peer.settings, peer.floor, peer.warning())


def length(plan: PeerPlan, minutes: float) -> float:
    """Return the seconds per measurement with which the run takes about `minutes` minutes.

    Raises ValueError if that would be less than SHORTEST.
    """
    seconds = (minutes * 60 - plan.overhead) / max(1, plan.steps) / (1 + WARM)
    if seconds < SHORTEST:
        least = plan.overhead + plan.steps * SHORTEST * (1 + WARM)
        raise ValueError(
            f"--minutes {minutes:g} is too short for {plan.steps} measurements: use --minutes "
            f"{math.ceil(least / 60)} or more, or fewer peers, workloads or rounds"
        )
    return round(seconds, 1)


def _estimate(plan: PeerPlan, seconds: float, messages: int | None) -> str:
    steps = (
        f"{plan.steps} measurements: {len(plan.peers)} peers, {len(plan.cases)} workloads, "
        f"{plan.rounds} rounds"
    )
    if messages:
        return f"{steps}, {messages:,} messages each"
    return (
        f"{steps}, {seconds:g} s each: about "
        f"{duration(plan.overhead + plan.steps * seconds * (1 + WARM))}"
    )


def _words() -> list[str]:
    """Return the command's arguments without paths of this machine."""
    words, skipped = [], False
    for word in sys.argv[1:]:
        option, equals, _ = word.partition("=")
        if skipped or option in ("--trellis", "--output"):
            skipped = not skipped and not equals
            continue
        words.append(shlex.quote(word))
    return words


def _over(line: str) -> None:
    """Replace the terminal's last line with `line`, cut to the terminal's width."""
    print(
        f"\r{line[: shutil.get_terminal_size().columns - 1]}\x1b[K",
        end="",
        file=sys.stderr,
        flush=True,
    )


def _tell(line: str) -> None:
    print(f"peers: {line}", file=sys.stderr, flush=True)
