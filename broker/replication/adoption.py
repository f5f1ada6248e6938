"""Adoption: the data directory of a stopped broker becomes the beginning of a replicated log.

    survey_directory    reads the facts that an adoption needs, without changing the directory
    AdoptedDirectory    the data directory, opened as each start of a broker opens it
    adoption_claim      the first record of the log

An epoch is the time between two claims in force. The new log begins EPOCHS_SKIPPED epochs after the
last epoch that the directory or the log knows. Every other node has an empty directory, or a
directory from an earlier log. Such a node reads an epoch that does not follow the epoch in its
directory, so it stops, and asks to be seeded. Without the gap, the node could ignore the records of
the new log as invalid, and claim the log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from broker.replication.errors import ReplicationError
from broker.replication.formats import FORMATS
from broker.replication.records import CLAIM, DIGEST_SIZE, Claim, ClusterState
from broker.store.catalog import Catalog
from broker.store.codecs import Codecs
from broker.store.disk import Disk, StoreError
from broker.store.findings import MISSING, QUARANTINED, WRONG, Finding
from broker.store.inspect import EntryCheck
from broker.store.opening import CATALOG, LOG, STREAMS, has_log, open_store
from broker.store.recovery import Recoverer
from broker.store.replay import missing_end
from broker.store.segments import SEGMENT_SIZE
from broker.stream.recovery import StreamRecovery
from broker.stream.segments import directory_name

#: Number of epochs that an adoption skips after the last epoch that the data directory or the log
#: knows.
EPOCHS_SKIPPED: Final = 1_000
#: Findings after which a data directory cannot become the beginning of a log.
_DAMAGE: Final = (QUARANTINED, MISSING, WRONG)


@dataclass(frozen=True, slots=True)
class DirectorySurvey:
    """The facts that an adoption needs: a data directory's state, last position and definitions."""

    path: str
    #: The stored state of a node of a cluster; its name is empty if the directory belongs to no
    #: cluster.
    state: ClusterState
    #: The position of the last change. The directories of a cluster have the same changes at the
    #: same positions, so the directory with the highest position has most of the log.
    position: int
    #: Number of definitions.
    definitions: int


def survey_directory(disk: Disk, path: str) -> DirectorySurvey:
    """Return the facts that an adoption needs about the data directory of a stopped broker.

    The log is read, and not changed. The caller must have locked the directory. Raises StoreError,
    and ReplicationError if the directory is damaged.
    """
    log = f"{path}/{LOG}"
    with_log = has_log(disk, log)
    catalog = Catalog(f"{path}/{CATALOG}", with_log)
    try:
        definitions = sum(1 for _ in catalog.load())
        state = ClusterState("")
        if catalog.replica_state:
            state = ClusterState.decode(catalog.replica_state)
        position = max(catalog.last, state.position)
        if with_log:
            recoverer = Recoverer(disk, log, 0, EntryCheck(), changes_files=False)
            recoverer.run()
            findings = list(recoverer.report.findings)
            missing = missing_end(recoverer.report, catalog.log_position)
            _refuse_damage(path, findings if missing is None else [*findings, missing])
            position = max(position, int(recoverer.report.next) - 1)
    finally:
        catalog.close()
    return DirectorySurvey(path, state, position, definitions)


def _refuse_damage(path: str, findings: list[Finding]) -> None:
    """Raise ReplicationError if the log or a stream of a directory is damaged."""
    for finding in findings:
        if finding.kind in _DAMAGE:
            raise ReplicationError(
                f"the data directory '{path}' is damaged, and a cluster cannot begin with it: "
                f"{finding}; use the directory of another node, or repair this directory with "
                "`trellis store repair`; if this directory belongs to a node of a cluster, run "
                "`trellis serve --adopt` once before the repair"
            )


class AdoptedDirectory:
    """The open data directory with which a replicated log begins.

    Opening recovers the log and the streams, as each start of the broker does. The caller must have
    locked the directory.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        codecs: Codecs,
        salt: int,
        report: Callable[[str], None],
        segment_size: int = SEGMENT_SIZE,
    ) -> None:
        """Open the directory.

        `salt` is a random number below 2**32: the salt of the local log, if the directory has none.
        `report` is called with a text about each message that cannot be read. Raises StoreError,
        and ReplicationError if the directory is damaged.
        """
        opened = open_store(disk, path, codecs, salt, report, lambda recovery: None, segment_size)
        self._store = opened.store
        try:
            _refuse_damage(path, opened.recovery.findings)
            self.salt = int(opened.store.log.salt)
            self.position = max(int(opened.recovery.next) - 1, opened.store.catalog.last)
            self._log_position = max(int(opened.recovery.last), opened.store.catalog.log_position)
            ends = opened.store.stream_ends
            for number, entry in opened.definitions:
                if entry.kind == "queue" and number in ends:
                    place = f"{directory_name(entry.vhost)}/{directory_name(entry.name)}"
                    root = f"{path}/{STREAMS}/{place}"
                    stream_recovery = StreamRecovery(disk, root, number, ends[number])
                    _refuse_damage(path, stream_recovery.findings)
        except BaseException:
            self._store.close()
            raise

    def store(self, state: ClusterState) -> None:
        """Store `state`: the directory belongs to a cluster from then on. Raises StoreError."""
        self._store.catalog.write([], self._log_position, state.encode())

    def close(self) -> None:
        """Close the files."""
        self._store.close()


def adoption_claim(
    name: str,
    state: ClusterState,
    directory: AdoptedDirectory,
    log_epoch: int,
    tip: int,
    nonce: int,
    wall: int,
    description: str,
) -> Claim:
    """Return the claim that is the first record of a replicated log made from a data directory.

    `name` is the name of the broker, and `description` describes this node (NodeDescription).
    `state` is the state that the directory has now. `log_epoch` is the highest epoch in the log, 0
    for an empty log. `tip` is the offset that the claim will have. `nonce` is a random number that
    identifies the claim. `wall` is the wall clock in ms.
    """
    begun = ClusterState(
        name,
        salt=directory.salt,
        format=state.format or FORMATS.oldest,
        position=max(directory.position, state.position),
        number=state.number,
        wall=max(wall, state.wall),
        owner=description,
    )
    epoch = max(state.epoch, log_epoch) + EPOCHS_SKIPPED
    return Claim(CLAIM, epoch, nonce, wall, tip - 1, begun, bytes(DIGEST_SIZE))


def state_after(claim: Claim, offset: int) -> ClusterState:
    """Return the state to store in an adopted directory when the log has `claim` at `offset`."""
    return replace(claim.state, epoch=claim.epoch, nonce=claim.nonce, last=offset)


def is_same_adoption(claim: Claim, survey: DirectorySurvey, name: str) -> bool:
    """True if `claim` is from an earlier, interrupted adoption of the same directory.

    `survey` has the facts about this directory; `name` is the name of the broker.
    """
    begun, state = claim.state, survey.state
    return (
        (begun.name, begun.position, begun.number) == (name, survey.position, state.number)
        and claim.epoch >= state.epoch + EPOCHS_SKIPPED
        and claim.nonce != state.nonce
    )


def leave_cluster(disk: Disk, path: str) -> ClusterState:
    """Take a data directory out of its cluster, so that a broker without a cluster may use it.

    Return the state that the directory had; its name is empty if it belonged to no cluster. The
    caller must have locked the directory. Raises StoreError.
    """
    catalog = Catalog(f"{path}/{CATALOG}", has_log(disk, f"{path}/{LOG}"))
    try:
        if not catalog.replica_state:
            return ClusterState("")
        try:
            state = ClusterState.decode(catalog.replica_state)
        except ReplicationError as error:
            raise StoreError(f"cannot read the data directory '{path}': {error}") from error
        catalog.remove_replica_state()
        return state
    finally:
        catalog.close()
