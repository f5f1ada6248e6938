"""Opening a data directory: the catalog, then the log; what is in them, ready to be restored.

    DIRECTORY/catalog.sqlite, log/ --> definitions with their numbers, survivors, a store at the next free position
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.store.catalog import Catalog
from broker.store.contract import HOLDERS, Defined
from broker.store.disk import Disk, StoreError
from broker.store.durable import DurableStore
from broker.store.records import Codecs
from broker.store.recovery import MISSING, Finding, Recovery
from broker.store.segments import SEGMENT_OCTETS, SegmentLog
from broker.store.survivors import Survivors

CATALOG: Final = "catalog.sqlite"
LOG: Final = "log"


class Opened:
    """A store, and what was in it."""

    def __init__(self, store: DurableStore, definitions: list[tuple[int, Defined]], survivors: Survivors, recovery: Recovery) -> None:
        self.store = store
        self.definitions = definitions
        self.survivors = survivors
        self.recovery = recovery


def open_store(disk: Disk, directory: str, codecs: Codecs, salt: int, report: Callable[[str], None],
               progress: Callable[[Recovery], None], segment_octets: int = SEGMENT_OCTETS) -> Opened:
    """Open what is there, or begin. `salt` is a random number below 2**32. Raises StoreError."""
    catalog = Catalog(f"{directory}/{CATALOG}")
    try:
        definitions = list(catalog.load())
        survivors = Survivors({number for number, entry in definitions if entry.kind in HOLDERS})
        log = SegmentLog(disk, f"{directory}/{LOG}", segment_octets, salt)
        recovery = log.open(survivors, progress)
    except StoreError:
        catalog.close()
        raise
    if recovery.last < catalog.seen:
        recovery.findings.append(Finding(
            MISSING, LOG, 0, 0, f"the log ends at position {recovery.last}, and it was written up to {catalog.seen} once"))
    position = max(int(recovery.next) - 1, catalog.last)
    return Opened(DurableStore(log, catalog, codecs, position, survivors.exist, report), definitions, survivors, recovery)
