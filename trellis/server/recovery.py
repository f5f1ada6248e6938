"""Recovery at the start: read the data directory, and restore the broker's state from it.

Progress is logged every second. The store must be locked before it is read.
"""

from __future__ import annotations

import gc
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from broker.broker import Broker
from broker.definitions.restore import RestoreReport, restore_broker
from broker.definitions.session_restorer import SessionRestorer
from broker.store.codecs import Codecs
from broker.store.disk import Disk, StoreError
from broker.store.findings import CUT
from broker.store.opening import OpenedStore, open_store
from broker.store.replay import Recovery
from protocols.amqp.codec import stored as amqp_stored
from protocols.mqtt.codec import stored as mqtt_stored
from protocols.mqtt.session import restoring  # noqa: F401 - see protocols/mqtt/session/sessions.py
from trellis import logs
from trellis.progress import Interval
from trellis.settings.schema import StoreSettings

#: Seconds between two log lines about the progress.
PROGRESS_INTERVAL: Final = 1.0
#: Largest number of findings, and of refused definitions, that get a log line each.
MAX_LOGGED: Final = 100
MB: Final = 1_000_000


class RecoveryProgress:
    """A callback that logs the progress of a recovery every PROGRESS_INTERVAL seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = Interval(PROGRESS_INTERVAL, clock)

    def __call__(self, recovery: Recovery) -> None:
        if not self._interval.due():
            return
        rate = int(recovery.bytes_read) / self._interval.elapsed
        left = (int(recovery.bytes_total) - int(recovery.bytes_read)) / rate if rate else 0.0
        logs.info(
            "recovery",
            messages=int(recovery.messages),
            done=f"{100 * int(recovery.bytes_read) // max(int(recovery.bytes_total), 1)}%",
            rate=f"{rate / MB:.0f}MB/s",
            left=f"{left:.0f}s",
        )


def codecs() -> Codecs:
    """Return the codecs for the stored message contents of all protocols."""
    registry = Codecs()
    amqp_stored.register(registry)
    mqtt_stored.register(registry)
    return registry


def report(line: str) -> None:
    """Log a line about a stored message that cannot be read and is lost."""
    logs.error("store_damaged", reason=line)


@contextmanager
def without_collections() -> Iterator[None]:
    """Switch garbage collection off in this context, because a recovery makes no garbage."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def open_directory(disk: Disk, directory: Path, settings: StoreSettings) -> OpenedStore:
    """Read the data directory, and return its store. The caller must have locked the directory.

    Raises StoreError if the directory cannot be read, or belongs to a node of a cluster.
    The data directory of a cluster's node is refused, because another node may have settled the
    messages in it while this node did not run. (A node of a cluster opens its directory as a
    standby: broker/replication/directory.py.)
    """
    progress = RecoveryProgress()
    with without_collections():
        opened = open_store(
            disk,
            str(directory),
            codecs(),
            secrets.randbits(32),
            report,
            progress,
            settings.segment,
        )
    if opened.store.catalog.replica_state:
        opened.store.close()
        raise StoreError(
            f"the data directory '{directory}' belongs to a node of a cluster, and another node "
            "may have settled its messages: start the broker with the settings of the cluster "
            "(section [cluster]), or, if the cluster no longer exists, with `trellis serve --adopt`"
        )
    opened.store.window = settings.window
    for finding in opened.recovery.findings[:MAX_LOGGED]:
        (logs.info if finding.kind == CUT else logs.warning)("recovery_finding", what=str(finding))
    if len(opened.recovery.findings) > MAX_LOGGED:
        logs.warning(
            "recovery_finding",
            more=len(opened.recovery.findings) - MAX_LOGGED,
            note="`trellis store verify` shows all findings",
        )
    return opened


def adopt_directory(disk: Disk, directory: Path) -> str:
    """Take the data directory of a cluster's node out of its cluster; return the cluster's name.

    Return "" if the directory belongs to no cluster. Afterwards a broker without a cluster may use
    the directory. The caller must have locked the directory. Raises StoreError.
    """
    # Imported here, because no other start needs the package of the replicated log.
    from broker.replication.adoption import leave_cluster

    left = leave_cluster(disk, str(directory))
    if left.name:
        logs.warning(
            "cluster_given_up",
            cluster=left.name,
            batch=left.number,
            note="this data directory has left its cluster for good: stop the other nodes, because "
            "their messages differ from this broker's messages from now on; leave out "
            "--adopt at later starts",
        )
    return left.name


def _plural(kind: str) -> str:
    """Return the plural of a kind of definitions, such as "queue" or "policy"."""
    return f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"


def restore(opened: OpenedStore, broker: Broker, keeper: SessionRestorer) -> RestoreReport:
    """Restore the broker's state from an opened store, and log the result."""
    began = time.monotonic()
    with without_collections():
        result = restore_broker(broker, opened, keeper)
    for refused in result.refused[:MAX_LOGGED]:
        logs.warning(
            "not_restored",
            kind=refused.kind,
            name=refused.name,
            vhost=refused.vhost,
            reason=refused.reason,
            note="the definition of this object, and its messages, stay in the store: remove the "
            "cause that `reason` names, and start the broker again; a newer version of Trellis may "
            "be needed",
        )
    if len(result.refused) > MAX_LOGGED:
        logs.warning("not_restored", more=len(result.refused) - MAX_LOGGED)
    for adapted in result.adapted[:MAX_LOGGED]:
        logs.warning(
            "restored_without_arguments",
            kind=adapted.kind,
            name=adapted.name,
            vhost=adapted.vhost,
            reason=adapted.reason,
            note="an earlier version stored the arguments unchecked; they have no effect, and the "
            "queue keeps its messages; declare the queue again without the arguments, or with "
            "valid ones",
        )
    for finding in broker.streams.findings[:MAX_LOGGED]:
        (logs.info if finding.kind == CUT else logs.warning)("stream_finding", what=str(finding))
    recovery = opened.recovery
    if result.restored or result.copies or result.retained:
        logs.info(
            "recovered",
            messages=result.copies,
            retained=result.retained,
            kept_for_refused=result.orphaned,
            **{_plural(kind): count for kind, count in sorted(result.restored.items())},
            bytes=int(recovery.bytes_read),
            restoring=f"{time.monotonic() - began:.3f}s",
        )
    return result
