"""`trellis store`: verify, print, repair or copy the data directory."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trellis.cli.actions import add_result, print_json, print_result
from trellis.cli.parsing import (
    CommandError,
    Commands,
    Parser,
    add_command,
    add_settings,
    load_settings,
)
from trellis.progress import Interval, ProgressLine

if TYPE_CHECKING:
    from broker.store.entries import Defined
    from broker.store.findings import Finding
    from trellis.server.offline_audit import OfflineAudit

_USAGE = "verify|dump|repair|backup [ARGUMENT]... [--data-dir DIR] [--config FILE]..."
#: Seconds between two updates of the progress line.
PROGRESS_S = 0.2


def add(commands: Commands) -> None:
    """Add the parser of the command `trellis store`."""
    command = add_command(
        commands, "store", _needs_tool, "verify, dump, repair or back up the data directory", _USAGE
    )
    tools = command.add_subparsers(title="tools", metavar="TOOL", dest="tool")
    tool = _add(
        tools,
        "verify",
        verify,
        "read the whole data directory of a stopped broker, with its streams, and report damage; "
        "changes nothing (exit code 1 if there is damage)",
        "[--json] ",
    )
    add_result(tool)
    dump = _add(
        tools,
        "dump",
        dump_store,
        "print the definitions and every record of the log of a stopped broker",
    )
    dump.add_argument("--contents", action="store_true", help="print the contents of messages too")
    tool = _add(
        tools,
        "repair",
        repair,
        "rename objects whose names are not valid UTF-8, and rewrite damaged files of the log and "
        "the streams of a stopped broker without the damage; "
        "copies of the damaged files are kept in the directory quarantine beside them",
        "[--json] ",
        uses=("data.dir", "log.audit"),
    )
    add_result(tool)
    backup = _add(
        tools,
        "backup",
        back_up,
        "copy the data directory, also while the broker runs",
        "TARGET [--json] ",
    )
    add_result(backup)
    backup.add_argument(
        "target",
        metavar="TARGET",
        type=Path,
        help="new directory for the copy, from which a broker can be started",
    )


def _add(
    tools: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    text: str,
    arguments: str = "",
    uses: Collection[str] = ("data.dir",),
) -> Parser:
    usage = f"{arguments}[--data-dir DIR] [--config FILE]..."
    tool = add_command(tools, name, run, text, usage, group="store")
    add_settings(tool, uses=uses)
    return tool


def _needs_tool(arguments: argparse.Namespace) -> int:
    raise CommandError(
        "`trellis store` needs a tool: verify, dump, repair or backup (see `trellis store --help`)",
        2,
    )


def verify(arguments: argparse.Namespace) -> int:
    """Check each file of the store and of the streams; print the state and the damage of each file.

    The exit code is 1 if there is damage.
    """
    from broker.names import shown
    from broker.store import inspect
    from broker.store.findings import WRONG, Finding
    from broker.store.inspect import FINE
    from broker.store.renaming import invalid_names
    from broker.stream import inspect as streams

    damaged = 0
    printer = _FindingPrinter(arguments)
    with _store(arguments) as (directory, log):
        from broker.store.disk import RealDisk

        definitions, log_position = _read_catalog(directory)
        catalog = str(_catalog(directory))
        printer.add(Finding(FINE, catalog, 0, 0, f"{len(definitions)} definitions"))
        for number, entry in invalid_names(definitions):
            damaged += 1
            reason = (
                f"the name of {entry.kind} '{shown(entry.name)}' in vhost '{entry.vhost}' "
                f"(definition number {number}) is not valid UTF-8; the broker does not restore it"
            )
            printer.add(Finding(WRONG, catalog, 0, 0, reason))
        check = inspect.EntryCheck()
        for finding in inspect.verify(RealDisk(), log, 0, check, log_position):
            damaged += _is_damage(finding)
            printer.add(finding)
        for finding in streams.verify(
            RealDisk(), _streams(directory), definitions, check.ends, damaged == 0
        ):
            damaged += _is_damage(finding)
            printer.add(finding)
    printer.end(
        f"damaged parts: {damaged}; `trellis store repair` quarantines or renames them"
        if damaged
        else "no damage found",
        damaged=damaged,
    )
    return 1 if damaged else 0


class _FindingPrinter:
    """Prints the findings of a check line by line, or with --json all findings at the end.

    A check that repairs a data directory gives `audit` and `directory`. Each finding whose kind is
    not FINE is then recorded in `audit`, with the path of the directory.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        audit: OfflineAudit | None = None,
        directory: Path | None = None,
    ) -> None:
        self._json = arguments.json
        self._audit = audit
        self._directory = directory
        self._rows: list[dict[str, Any]] = []

    def add(self, finding: Finding) -> None:
        """Print a finding, or with --json store it until `end`."""
        from broker.store.inspect import FINE

        names = ("kind", "file", "offset", "size", "reason", "copy")
        row: dict[str, Any] = {name: getattr(finding, name) for name in names}
        if self._json:
            self._rows.append(row)
        else:
            print(finding)
        if self._audit is not None and finding.kind != FINE:
            facts = {name: value for name, value in row.items() if name != "file" and value}
            facts["directory"] = str(self._directory)
            self._audit.add("repair", "file", finding.file, facts)

    def end(self, text: str = "", **fields: object) -> None:
        """Print `text`, or with --json an object with all findings and `fields`."""
        if self._json:
            print_json({"findings": self._rows, **fields})
        elif text:
            print(text)


def dump_store(arguments: argparse.Namespace) -> int:
    """Print the definitions and the records of the log."""
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
    """Copy damaged files to quarantine, rewrite the files without the damage, print the changes.

    Each change is recorded in the audit log of offline changes.
    """
    from broker.store import inspect
    from broker.stream import inspect as streams
    from trellis.server.offline_audit import OfflineAudit

    settings = load_settings(arguments).settings
    with (
        _store(arguments) as (directory, log),
        OfflineAudit(settings, "trellis store repair") as audit,
    ):
        _refuse_replica(directory)
        from broker.store.disk import RealDisk

        printer = _FindingPrinter(arguments, audit, directory)
        _rename_invalid(directory, printer)
        check = inspect.EntryCheck()
        undamaged = True
        for finding in inspect.repair(RealDisk(), log, check=check):
            undamaged = undamaged and not _is_damage(finding)
            printer.add(finding)
        for finding in streams.repair(
            RealDisk(), _streams(directory), _definitions(directory), check.ends, undamaged
        ):
            printer.add(finding)
        printer.end()
    return 0


def _refuse_replica(directory: Path) -> None:
    """Raise CommandError if the data directory belongs to a node of a cluster.

    A repair would change this directory, while the directories of the other nodes stay the same.
    """
    from broker.store.catalog import Catalog

    catalog = Catalog(str(_catalog(directory)))
    state = catalog.replica_state
    catalog.close()
    if state:
        raise CommandError(
            f"{directory} belongs to a node of a cluster, and a repair would make the node "
            "differ from the other nodes: move the directory away, and start the node with an "
            "empty directory"
        )


def _rename_invalid(directory: Path, printer: _FindingPrinter) -> None:
    """Rename objects in the catalog whose names are not valid UTF-8; print old and new names."""
    from broker.names import shown
    from broker.store.catalog import Catalog
    from broker.store.findings import Finding
    from broker.store.inspect import REPAIRED
    from broker.store.renaming import rename_invalid

    path = _catalog(directory)
    catalog = Catalog(str(path))
    try:
        for entry, name in rename_invalid(catalog, list(catalog.load())):
            reason = (
                f"{entry.kind} '{shown(entry.name)}' in vhost '{entry.vhost}' is called '{name}' "
                "now"
            )
            printer.add(Finding(REPAIRED, str(path), 0, 0, reason))
    finally:
        catalog.close()


def _is_damage(finding: Finding) -> bool:
    from broker.store.findings import CUT
    from broker.store.inspect import FINE

    return finding.kind not in (FINE, CUT)


def back_up(arguments: argparse.Namespace) -> int:
    """Copy the data directory to a new directory, also while the broker runs."""
    size = copy_directory(str(data_directory(arguments)), str(arguments.target.expanduser()))
    text = f"{size} bytes copied to {arguments.target}"
    print_result(arguments, text, target=str(arguments.target), bytes=size)
    return 0


def copy_directory(directory: str, target: str) -> int:
    """Copy a data directory to the new directory `target`; return the size of the copy in bytes.

    Show a progress bar. Raises CommandError.
    """
    from broker.store.backup import back_up as copy
    from broker.store.disk import StoreError

    line, interval = ProgressLine(), Interval(PROGRESS_S)
    line.begin("copying")

    def progress(done: int, total: int) -> None:
        if interval.due():
            line.bar(done / total, f"{done / 1e6:.0f} of {total / 1e6:.0f} MB")

    try:
        return copy(directory, target, progress)
    except StoreError as error:
        raise CommandError(str(error)) from error
    finally:
        line.end()


def data_directory(arguments: argparse.Namespace) -> Path:
    """Return the data directory that the settings name. Raises CommandError."""
    directory = load_settings(arguments).settings.data.directory
    if directory is None:
        raise CommandError(
            "data.dir is :memory:, which keeps nothing on disk; give a directory with --data-dir", 2
        )
    if not directory.is_dir():
        raise CommandError(
            f"data.dir: there is no directory {directory}; give the data directory with --data-dir",
            2,
        )
    return directory


def _catalog(directory: Path) -> Path:
    from broker.store.opening import CATALOG

    return directory / CATALOG


def _streams(directory: Path) -> str:
    from broker.store.opening import STREAMS

    return str(directory / STREAMS)


def _definitions(directory: Path) -> Iterator[tuple[int, Defined]]:
    """Yield (number, definition) for each definition in the catalog. Raises StoreError."""
    yield from _read_catalog(directory)[0]


def _read_catalog(directory: Path) -> tuple[list[tuple[int, Defined]], int]:
    """Return the (number, definition) pairs of the catalog, and a position in the log.

    The position is the end of the log when the catalog was last written. Raises StoreError.
    """
    from broker.store.catalog import Catalog

    catalog = Catalog(str(_catalog(directory)))
    try:
        return list(catalog.load()), catalog.log_position
    finally:
        catalog.close()


@contextmanager
def _store(arguments: argparse.Namespace) -> Iterator[tuple[Path, str]]:
    """Lock the data directory of a stopped broker; yield the directory and the path of its log.

    Raises CommandError if there is no store, a broker runs on the directory, or the body of the
    `with` statement raises StoreError.
    """
    from broker.store.disk import Lock, StoreError
    from broker.store.opening import LOG

    directory = data_directory(arguments)
    if not _catalog(directory).exists():
        raise CommandError(
            f"there is no store in {directory}; give the data directory with --data-dir"
        )
    try:
        lock = Lock(str(directory))
        try:
            yield directory, str(directory / LOG)
        finally:
            lock.release()
    except StoreError as error:
        raise CommandError(str(error)) from error
