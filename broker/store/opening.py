"""Opening a data directory: the catalog, then the log; what is in them, ready to be restored.

DIRECTORY/catalog.sqlite, log/ --> definitions with their numbers, survivors, a store at the next
free position
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.store.catalog import Catalog, CatalogUnwritten
from broker.store.codecs import Codecs
from broker.store.contract import HOLDERS, Defined
from broker.store.disk import Disk, StoreError
from broker.store.durable import DurableStore
from broker.store.files import parse_name
from broker.store.findings import CUT, MISSING, QUARANTINED, WRONG, Finding
from broker.store.recovery import Recovery
from broker.store.segments import SEGMENT_OCTETS, SegmentLog
from broker.store.survivors import Survivors

CATALOG: Final = "catalog.sqlite"
LOG: Final = "log"
STREAMS: Final = "streams"


class Opened:
    """A store, and what was in it."""

    def __init__(
        self,
        store: DurableStore,
        definitions: list[tuple[int, Defined]],
        survivors: Survivors,
        recovery: Recovery,
    ) -> None:
        self.store = store
        self.definitions = definitions
        self.survivors = survivors
        self.recovery = recovery


def open_store(
    disk: Disk,
    directory: str,
    codecs: Codecs,
    salt: int,
    report: Callable[[str], None],
    progress: Callable[[Recovery], None],
    segment_octets: int = SEGMENT_OCTETS,
) -> Opened:
    """Open what is there, or begin. `salt` is a random number below 2**32. Raises StoreError."""
    catalog = Catalog(f"{directory}/{CATALOG}", _has_log(disk, f"{directory}/{LOG}"))
    try:
        definitions = list(catalog.load())
        survivors = Survivors(
            {number for number, entry in definitions if entry.kind in HOLDERS}, catalog.last
        )
        log = SegmentLog(disk, f"{directory}/{LOG}", segment_octets, salt)
        recovery = log.open(survivors, progress)
    except StoreError:
        catalog.close()
        raise
    live = survivors.copies.octets
    if 2 * live > log.octets:
        log.measured(live)
    _compare(catalog, survivors, recovery)
    position = max(int(recovery.next) - 1, catalog.last)
    store = DurableStore(log, catalog, codecs, position, survivors.exist, report)
    store.stream_ends = {number: end for number, (end, _) in survivors.streams.items()}
    store.stream_ends_sure = not any(
        finding.what in (QUARANTINED, MISSING, WRONG) and finding.file != CATALOG
        for finding in recovery.findings
    )
    store.sequences = {key: sequence for key, (sequence, _) in survivors.sequences.items()}
    return Opened(store, definitions, survivors, recovery)


def _compare(catalog: Catalog, survivors: Survivors, recovery: Recovery) -> None:
    """The catalog and the log each know something about the other's end."""

    def found(what: str, name: str, reason: str, at: int = 0, octets: int = 0) -> None:
        recovery.findings.append(Finding(what, name, at, octets, reason))

    wal = catalog.wal
    if wal.torn:
        found(CUT, f"{CATALOG}-wal", "a transaction is cut off", int(wal.torn_at), int(wal.torn))
    if catalog.seen >= recovery.next:
        found(
            MISSING,
            LOG,
            f"the log ends at position {recovery.last}, and was written up to {catalog.seen}",
        )
    later = "copies of messages for queues and sessions that were declared later"
    if survivors.strange:
        found(
            MISSING,
            CATALOG,
            f"the catalog ends at position {catalog.last}, and the log has "
            f"{survivors.strange + survivors.unpromised} {later}",
        )
    elif survivors.unpromised:
        found(
            CUT,
            CATALOG,
            f"the catalog ends at position {catalog.last}, and the log's last batch has {survivors.unpromised} {later}: "
            "they were declared in that batch, and nobody was told that they are there",
        )
    if survivors.strange or survivors.unpromised:
        try:
            catalog.write([], int(recovery.last))  # It is told once.
        except CatalogUnwritten:
            pass  # ... or again, after a full disk.


def _has_log(disk: Disk, directory: str) -> bool:
    """Whether something was ever written there."""
    try:
        return any(parse_name(name) is not None for name in disk.list(directory))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"cannot read '{directory}': {error.strerror or error}") from error
