"""`trellis matchers` and `trellis bench matching`: algorithms for topic matching."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trellis.cli.parsing import CommandError, Commands, Parser, add_command, number
from trellis.cli.table import columns_of, table
from trellis.settings.errors import nearest

if TYPE_CHECKING:
    from trellis.bench.matching.contenders import Contender
    from trellis.bench.matching.results import MatchingResults

_USAGE = (
    "trellis bench matching [PART]... [--algorithms A,B] [--sizes N,M | --full] [--rounds N] "
    "[--seconds S] [--peers FOLDER] [--interpreted] [--json FILE] [--list]"
)
#: For a quick and for a full run: (seconds for the measurement of each figure, seconds to wait for
#: each answer).
_QUICK, _FULL = (0.01, 5.0), (0.3, 300.0)
_PEERS = Path("benchmarks", "matching")


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis matchers`."""
    command = add_command(
        commands, "matchers", matchers, "list the algorithms for topic matching", "[--json]"
    )
    command.add_argument("--json", action="store_true", help="print a JSON list of objects")


def add_bench(tools: Any) -> None:
    """Add the parser of the command `trellis bench matching`."""
    tool: Parser = tools.add_parser(
        "matching",
        prog="trellis bench matching",
        usage=_USAGE,
        help="measure the algorithms for topic matching, and libraries for comparison",
        description="Measure the algorithms for topic matching and libraries for comparison "
        "(peers), and check their answers. The command takes about a minute.",
    )
    tool.set_defaults(run=bench, parser=tool)
    tool.add_argument(
        "part",
        metavar="PART",
        nargs="*",
        help="part to run, see --list [tp, iot and adv; with --full all]",
    )
    tool.add_argument(
        "--algorithms",
        metavar="A,B",
        type=_names,
        default=[],
        help="algorithms and peers to measure [all]",
    )
    tool.add_argument(
        "--sizes",
        metavar="N,M",
        type=_sizes,
        default=[],
        help="numbers of subscriptions, separated by commas [1000]",
    )
    tool.add_argument(
        "--rounds",
        metavar="N",
        type=number(int, 1),
        default=5,
        help="number of rounds; the medians of the rounds are shown [5]",
    )
    tool.add_argument(
        "--seconds",
        metavar="S",
        type=_seconds,
        default=0.0,
        help="seconds for which each figure is measured [0.01; with --full 0.3]",
    )
    tool.add_argument(
        "--full",
        action="store_true",
        help="run all parts with up to a million subscriptions; takes hours",
    )
    tool.add_argument(
        "--peers",
        metavar="FOLDER",
        type=Path,
        help="folder with peers.toml; `none`: measure no peers [benchmarks/matching, if it exists]",
    )
    tool.add_argument(
        "--interpreted",
        action="store_true",
        help="measure some algorithms also without compilation (--full includes this flag)",
    )
    tool.add_argument(
        "--json",
        metavar="FILE",
        help="write all figures of all rounds to FILE; - is standard output, without tables",
    )
    tool.add_argument(
        "--list",
        action="store_true",
        help="list the parts of the benchmark (PART), the algorithms and the peers",
    )


def matchers(arguments: argparse.Namespace) -> int:
    """Print the algorithms for topic matching, and which of them can be loaded here."""
    from matching import algorithms
    from trellis.bench.matching.contenders import missing

    rows: list[dict[str, str | int | float | bool | None]] = []
    for each in algorithms():
        lacks = missing(each)
        rows.append(
            {
                "name": each.name,
                "lookup": each.lookup,
                "subscribe": each.subscribe,
                "origin": each.origin,
                "requires": each.requires,
                "usable": not lacks,
                "idea": each.idea,
            }
        )
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
    else:
        print(table(rows, columns_of(rows)))
        print(
            "L is the number of words of a topic, N the number of patterns; docs/matching.md lists "
            "the articles"
        )
    return 0


def bench(arguments: argparse.Namespace) -> int:
    """Measure the chosen matching algorithms and peers (libraries for comparison), or list them.

    The exit code is 1 if an answer was wrong or missing, or if the process of an algorithm or peer
    ended.
    """
    from trellis.bench.matching.cases import FULL, PARTS, QUICK, batches
    from trellis.bench.matching.rounds import RoundPlan

    contenders = _contenders(arguments)
    if arguments.list:
        _list(contenders)
        return 0
    for name in arguments.part:
        if name not in PARTS:
            raise CommandError(f"unknown part {name}; the nearest is {nearest(name, PARTS)}", 2)
    names = arguments.part or (list(PARTS) if arguments.full else ["tp", "iot", "adv"])
    sizes = arguments.sizes or (FULL if arguments.full else QUICK)
    seconds, patience = _FULL if arguments.full or max(sizes) > 10_000 else _QUICK
    chosen = arguments.seconds or seconds
    able = [each for each in contenders if not each.missing]
    if not able:
        raise CommandError(
            "none of the chosen algorithms and peers can run here: "
            + "; ".join(each.missing for each in contenders)
        )
    plan = RoundPlan(able, batches(names, sizes), arguments.rounds, chosen, patience + 20 * chosen)
    return _run(arguments, contenders, plan)


def _run(arguments: argparse.Namespace, contenders: list[Contender], plan: Any) -> int:
    from trellis.bench.matching.contenders import ContenderFailed, RunningContender, Slow
    from trellis.bench.matching.measure import loop_ns
    from trellis.bench.matching.report import environment, exceptions
    from trellis.bench.matching.results import MatchingAbout, MatchingResults
    from trellis.bench.matching.rounds import Disagreement, measure
    from trellis.progress import ProgressLine

    path = None if arguments.json in (None, "-") else Path(arguments.json)
    about = {
        each.name: MatchingAbout(
            each.title, each.ours, each.idea, each.origin, missing=each.missing
        )
        for each in contenders
    }
    results = MatchingResults(environment(sys.argv), plan.rounds, plan.seconds, loop_ns(), about)

    def save() -> None:
        if path is not None:
            results.write(path)

    try:
        save()  # If the file cannot be written, fail now and not after hours of measuring.
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}", 2) from None
    progress = ProgressLine()
    progress.begin("matching")
    steps = plan.steps

    def tell(done: int, what: str) -> None:
        progress.bar(done / max(1, steps), f"{done}/{steps}  {what}")

    stopped = None
    try:
        for each in plan.contenders:
            with RunningContender(each) as process:
                about[each.name].version = str(
                    process.ask({"kind": "about"}, 60).get("version", "")
                )
        measure(plan, results, tell, save)
    except (Disagreement, ContenderFailed, Slow) as error:
        stopped = str(error)
    finally:
        progress.end()
        save()
        if arguments.json == "-":
            sys.stdout.write(results.text())
        else:
            _show(results)
    problems = exceptions(results)
    for line in problems:
        print(f"trellis: {line}", file=sys.stderr)
    if stopped:
        raise CommandError(stopped)
    return 1 if problems else 0


def _show(results: MatchingResults) -> None:
    from trellis.bench.matching.report import heading, tables

    print(heading(results))
    for title, rows in tables(results):
        print(f"\n{title}\n{table(rows, columns_of(rows))}")
    absent = [
        f"{name} ({about.missing})" for name, about in results.contenders.items() if about.missing
    ]
    if absent:
        print(f"\nnot installed: {'; '.join(absent)}")


def _contenders(arguments: argparse.Namespace) -> list[Contender]:
    """Return the matching algorithms and peers to measure.

    Raises CommandError for an unknown name.
    """
    from trellis.bench.matching.contenders import INTERPRETED, ours, peers
    from trellis.bench.matching.step import CACHED

    contenders = ours(INTERPRETED if arguments.interpreted or arguments.full else ())
    folder: Path | None = arguments.peers
    if folder is None and (_PEERS / "peers.toml").exists():
        folder = _PEERS
    try:
        if folder is not None and str(folder) != "none":
            contenders += peers(folder)
    except ValueError as error:
        raise CommandError(f"--peers: {error}", 2) from None
    known = {each.name: each for each in contenders}
    for name in arguments.algorithms:
        if name not in known:
            raise CommandError(
                f"unknown algorithm {name}; the nearest is {nearest(name, known)}", 2
            )
    if not arguments.part and not arguments.full:
        known.pop(CACHED, None)  # Only the part `churn` measures the route cache.
    return [known[name] for name in arguments.algorithms or known if name in known]


def _list(contenders: list[Contender]) -> None:
    from trellis.bench.matching.cases import PARTS

    for part in PARTS.values():
        print(f"{part.name:20} {part.text}")
    print()
    for each in contenders:
        print(f"{each.name:20} {f'not installed: {each.missing}' if each.missing else each.idea}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _sizes(text: str) -> list[int]:
    size_of = number(int, 1)
    return sorted({size_of(size) for size in text.split(",")})


def _seconds(text: str) -> float:
    try:
        value = float(text)
        if 0.0001 <= value < 3600:
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(
        f'must be a number of seconds from 0.0001 to 3600, got "{text}"'
    )
