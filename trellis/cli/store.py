"""`trellis store`: look into the data directory, mend it, copy it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trellis.cli.parsing import (
    CommandError,
    Commands,
    Parser,
    add_command,
    add_settings,
    load_settings,
)

if TYPE_CHECKING:
    from broker.store.contract import Defined
    from broker.store.findings import Finding

_USAGE = "verify|dump|repair|backup [ARGUMENT]... [--data-dir DIR] [--config FILE]..."


def add(commands: Commands) -> None:
    command = add_command(
        commands, "store", _help, "verify, dump, repair or back up the data directory", _USAGE
    )
    tools = command.add_subparsers(title="tools", metavar="TOOL", dest="tool")
    _add(
        tools,
        "verify",
        verify,
        "read everything in the data directory of a stopped broker, streams too, change nothing, and say what is "
        "wrong (exit code 1 if something is)",
    )
    dump = _add(
        tools,
        "dump",
        dump_store,
        "print the definitions and every record of the log of a stopped broker",
    )
    dump.add_argument("--contents", action="store_true", help="show the messages too")
    _add(
        tools,
        "repair",
        repair,
        "set what is damaged in the log and the streams of a stopped broker aside, in a directory quarantine "
        "beside it, and write the rest anew",
    )
    backup = _add(
        tools, "backup", back_up, "copy the data directory, also while the broker runs", "TARGET "
    )
    backup.add_argument(
        "target",
        metavar="TARGET",
        type=Path,
        help="a directory that is not there yet; a broker may start on it",
    )


def _add(
    tools: Any, name: str, run: Callable[[argparse.Namespace], int], text: str, arguments: str = ""
) -> Parser:
    tool: Parser = tools.add_parser(
        name,
        prog=f"trellis store {name}",
        help=text,
        description=text[:1].upper() + text[1:] + ".",
        usage=f"trellis store {name} {arguments}[--data-dir DIR] [--config FILE]...",
    )
    tool.set_defaults(run=run, parser=tool)
    add_settings(tool, "data")
    return tool


def _help(arguments: argparse.Namespace) -> int:
    raise CommandError(
        "name a tool: verify, dump, repair or backup (see `trellis store --help`)", 2
    )


def verify(arguments: argparse.Namespace) -> int:
    from broker.store import inspect
    from broker.stream import inspect as streams

    wrong = 0
    with _store(arguments) as (directory, log):
        from broker.store.disk import RealDisk

        definitions = list(_definitions(directory))
        print(f"fine: {_catalog(directory)}: {len(definitions)} definitions")
        checking = inspect.Checking()
        for finding in inspect.verify(RealDisk(), log, checking=checking):
            wrong += _is_wrong(finding)
            print(finding)
        for finding in streams.verify(
            RealDisk(), _streams(directory), definitions, checking.ends, wrong == 0
        ):
            wrong += _is_wrong(finding)
            print(finding)
    print(
        f"{wrong} found to be wrong; `trellis store repair` sets damage aside"
        if wrong
        else "all is well"
    )
    return 1 if wrong else 0


def dump_store(arguments: argparse.Namespace) -> int:
    with _store(arguments) as (directory, log):
        from broker.store.disk import RealDisk
        from broker.store.inspect import dump

        for number, entry in _definitions(directory):
            print(
                f"{number} {entry.kind} vhost={entry.vhost} name={entry.name!r} {entry.definition}"
            )
        for line in dump(RealDisk(), log, arguments.contents):
            print(line)
    return 0


def repair(arguments: argparse.Namespace) -> int:
    from broker.store import inspect
    from broker.stream import inspect as streams

    with _store(arguments) as (directory, log):
        from broker.store.disk import RealDisk

        checking = inspect.Checking()
        sure = True
        for finding in inspect.repair(RealDisk(), log, checking=checking):
            sure = sure and not _is_wrong(finding)
            print(finding)
        for finding in streams.repair(
            RealDisk(), _streams(directory), _definitions(directory), checking.ends, sure
        ):
            print(finding)
    return 0


def _is_wrong(finding: Finding) -> bool:
    from broker.store.findings import CUT
    from broker.store.inspect import FINE

    return finding.what not in (FINE, CUT)


def back_up(arguments: argparse.Namespace) -> int:
    from broker.store.backup import back_up as copy
    from broker.store.disk import StoreError

    directory = _directory(arguments)
    try:
        octets = copy(str(directory), str(arguments.target.expanduser()), _Bar())
    except StoreError as error:
        raise CommandError(str(error)) from error
    print(f"{octets} octets copied to {arguments.target}")
    return 0


class _Bar:
    """How far the copy is, on a terminal."""

    def __init__(self) -> None:
        self._said = time.monotonic()
        self._shown = sys.stderr.isatty()

    def __call__(self, done: int, total: int) -> None:
        if self._shown and (done == total or time.monotonic() - self._said > 0.2):
            self._said = time.monotonic()
            print(
                f"\r{done / 1e6:.0f} of {total / 1e6:.0f} MB",
                end="\n" if done == total else "",
                file=sys.stderr,
                flush=True,
            )


def _directory(arguments: argparse.Namespace) -> Path:
    directory = load_settings(arguments).settings.data.directory
    if directory is None:
        raise CommandError(
            "data.dir is :memory:, and keeps nothing; name a directory with --data-dir", 2
        )
    if not directory.is_dir():
        raise CommandError(f"data.dir: there is no directory {directory}", 2)
    return directory


def _catalog(directory: Path) -> Path:
    from broker.store.opening import CATALOG

    return directory / CATALOG


def _streams(directory: Path) -> str:
    from broker.store.opening import STREAMS

    return str(directory / STREAMS)


def _definitions(directory: Path) -> Iterator[tuple[int, Defined]]:
    """With their numbers. Raises StoreError."""
    from broker.store.catalog import Catalog

    catalog = Catalog(str(_catalog(directory)))
    try:
        yield from catalog.load()
    finally:
        catalog.close()


@contextmanager
def _store(arguments: argparse.Namespace) -> Iterator[tuple[Path, str]]:
    """The data directory and its log, while no broker runs on it."""
    from broker.store.disk import Lock, StoreError
    from broker.store.opening import LOG

    directory = _directory(arguments)
    if not _catalog(directory).exists():
        raise CommandError(f"there is no store in {directory}")
    try:
        lock = Lock(str(directory))
        try:
            yield directory, str(directory / LOG)
        finally:
            lock.release()
    except StoreError as error:
        raise CommandError(str(error)) from error
