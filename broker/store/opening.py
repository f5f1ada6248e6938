"""Opening of a data directory when the broker starts.

catalog.sqlite --> definitions with their numbers --+
log/ --> recovery --> Survivors (live records) -----+--> OpenedStore --> broker/definitions
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.store.catalog import Catalog, CatalogUnwritten
from broker.store.codecs import Codecs
from broker.store.disk import Disk, StoreError
from broker.store.durable import DurableStore
from broker.store.entries import HOLDERS, Defined
from broker.store.files import parse_name
from broker.store.findings import CUT, MISSING, QUARANTINED, WRONG, Finding
from broker.store.replay import Recovery, missing_end
from broker.store.segments import SEGMENT_SIZE, SegmentLog
from broker.store.survivors import Survivors

CATALOG: Final = "catalog.sqlite"
LOG: Final = "log"
STREAMS: Final = "streams"


class OpenedStore:
    """An open store, with its definitions, its live records and the report of the recovery."""

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
    segment_size: int = SEGMENT_SIZE,
) -> OpenedStore:
    """Open the store in a directory, or create it. Return the store. Raises StoreError if that
    fails.

    `salt` is a random number below 2**32, for a new store. `report` is called with a sentence about
    each lost message, `progress` while the log is read. `segment_size` is the size at which a
    segment is full, in bytes.
    """
    catalog = Catalog(f"{directory}/{CATALOG}", has_log(disk, f"{directory}/{LOG}"))
    try:
        definitions = list(catalog.load())
        survivors = Survivors(
            {number for number, entry in definitions if entry.kind in HOLDERS}, catalog.last
        )
        log = SegmentLog(disk, f"{directory}/{LOG}", segment_size, salt)
        recovery = log.open(survivors, progress)
    except StoreError:
        catalog.close()
        raise
    survivors.count_live(log)
    live = survivors.copies.size
    if 2 * live > log.size:
        log.postpone_checkpoint(live, log.reclaimable)
    _compare_catalog_and_log(catalog, survivors, recovery)
    position = max(int(recovery.next) - 1, catalog.last)
    store = DurableStore(log, catalog, codecs, position, survivors.holder_numbers, report)
    return opened_store(store, definitions, survivors, recovery)


def opened_store(
    store: DurableStore,
    definitions: list[tuple[int, Defined]],
    survivors: Survivors,
    recovery: Recovery,
) -> OpenedStore:
    """Return the OpenedStore of an open log and an open catalog, with their live records."""
    store.stream_ends = {number: end for number, (end, _) in survivors.streams.items()}
    store.stream_ends_exact = not any(
        finding.kind in (QUARANTINED, MISSING, WRONG) and finding.file != CATALOG
        for finding in recovery.findings
    )
    store.restore_marks({queue: survivors.marks_of(queue) for queue in survivors.marks})
    store.sequences = {key: sequence for key, (sequence, _) in survivors.sequences.items()}
    return OpenedStore(store, definitions, survivors, recovery)


def _compare_catalog_and_log(catalog: Catalog, survivors: Survivors, recovery: Recovery) -> None:
    """Add a finding if the log has lost its end, and a finding if the catalog has lost its end.

    The log has lost its end if the catalog refers to later positions. The catalog has lost its end
    if the log refers to queues, sessions or streams that were declared after its last definition.
    """

    def add(kind: str, name: str, reason: str, at: int = 0, size: int = 0) -> None:
        recovery.findings.append(Finding(kind, name, at, size, reason))

    wal = catalog.wal
    if wal.torn_size:
        add(
            CUT,
            f"{CATALOG}-wal",
            "the last transaction is cut off",
            int(wal.torn_offset),
            int(wal.torn_size),
        )
    missing = missing_end(recovery, catalog.log_position)
    if missing is not None:
        recovery.findings.append(missing)
    later = "copies of messages for queues and sessions that were declared later"
    if survivors.unknown_holders:
        add(
            MISSING,
            CATALOG,
            f"the catalog ends at position {catalog.last}, and the log has {later} (number of "
            f"copies: {survivors.unknown_holders + survivors.unconfirmed_holders})",
        )
    elif survivors.unconfirmed_holders:
        add(
            CUT,
            CATALOG,
            f"the catalog ends at position {catalog.last}, and the log's last batch has {later} "
            f"(number of copies: {survivors.unconfirmed_holders}): these queues and sessions were "
            "declared in that batch, and their declaration was not confirmed",
        )
    if survivors.unknown_holders or survivors.unconfirmed_holders:
        try:
            # Record the positions of the log, so that the next start does not report this again.
            catalog.write([], int(recovery.last))
        except CatalogUnwritten:
            pass


def has_log(disk: Disk, directory: str) -> bool:
    """True if the directory has files of a log. Raises StoreError if it cannot be read."""
    try:
        return any(parse_name(name) is not None for name in disk.list(directory))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"cannot read '{directory}': {error.strerror or error}") from error
