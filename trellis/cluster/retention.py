"""The retention of the replicated log: the owner removes the records that all listed nodes have.

The owner appends marks to the log. A mark holds the state of the log, so a reader may begin there.
The owner trims the log up to a mark: it removes all records before the mark.

The list of nodes is the global parameter NODES, which the event loop's thread changes. The thread
of this module uses a new list only once the list is durable: a new owner must know every node for
which the log was kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from broker.replication.contract import AppendRefused, LogUnreachable
from broker.replication.engine import ReplicatedLog
from broker.replication.owner import LogOwner
from broker.replication.read_sizes import ReadSizes
from broker.replication.report import NodeReport
from broker.replication.trimming import NodeList
from trellis import logs
from trellis.cluster.format_upgrade import FormatUpgrade

#: Seconds between two checks of the nodes' reports.
LOOK_SECONDS: Final = 2.0
#: The owner appends a mark each time it has appended this part of `Retention.bytes`. Kafka frees
#: the space of removed records minutes later, and by then the log must not be larger than
#: `Retention.bytes` and two segments.
MARK_PART: Final = 1 / 4


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits for the log: its wanted size, the seconds between two marks, and its largest size."""

    #: Wanted size of the log in bytes. The owner appends a mark after MARK_PART of this size.
    bytes: int
    #: The owner also appends a mark after this number of seconds.
    seconds: float
    #: Size of the log in bytes above which the node that is farthest behind is struck from the
    #: list.
    most: int


class NodeListStore(Protocol):
    """The interface of the durable list of nodes.

    The log keeps each record until all listed nodes have that record.
    """

    @property
    def durable(self) -> NodeList:
        """The list of the nodes in the store, which survives a crash."""

    def change(self, wanted: NodeList) -> None:
        """Replace the stored list of the nodes in a later turn of the event loop.

        Any thread may call.
        """


class LogRetention:
    """The owner's thread that appends marks to the log, and removes the records before a mark.

    `shipped` returns the total size in bytes of all batches that this owner has appended. `mark`
    appends a mark: a record at which a reader may begin to read the log. `read` has the sizes of
    the batches that this node has read as a standby.
    """

    def __init__(
        self,
        node: str,
        owner: LogOwner,
        log: ReplicatedLog,
        limits: Retention,
        nodes: NodeListStore,
        clock: Callable[[], float],
        shipped: Callable[[], int],
        mark: Callable[[], None],
        read: ReadSizes,
    ) -> None:
        self._node = node
        self._owner = owner
        self._log = log
        self._limits = limits
        self._nodes = nodes
        self._clock = clock
        self._shipped = shipped
        self._mark = mark
        self._marked_at = clock()
        self._marked_bytes = 0
        #: For each mark that the log still has, by offset: the value of `shipped` when the mark was
        #: appended.
        self._sizes: dict[int, int] = {}
        self._read = read
        #: The value that `shipped` would have had at the first record of the log. It is negative if
        #: the log has batches of earlier owners; None before the first look.
        self._begin_bytes: int | None = None
        #: The offset up to which this owner has trimmed the log; -1 if it has not trimmed the log.
        self.trimmed = -1
        #: Puts a newer format of batches in force, once all nodes can read it.
        self.upgrade: FormatUpgrade | None = None
        #: Names of the listed nodes without a report. The log is not trimmed while there is any.
        self.unreported: list[str] = []
        self._unreachable = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    @property
    def size(self) -> int:
        """Size in bytes of the batches that the log has, of this owner and of earlier owners."""
        return self._shipped() - (self._begin_bytes or 0)

    @property
    def nodes(self) -> NodeList:
        """The durable list of the nodes."""
        return self._nodes.durable

    def start(self) -> None:
        """Begin to append marks, and to trim the log."""
        self._thread.start()

    def stop(self) -> None:
        """Stop appending marks and trimming the log."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            try:
                self.look()
            except (AppendRefused, LogUnreachable) as error:
                if str(error) != self._unreachable:
                    self._unreachable = str(error)
                    logs.warning("cluster_not_trimmed", reason=self._unreachable)
            else:
                self._unreachable = ""

    def look(self) -> None:
        """Append a mark if one is due, update the list of nodes, and trim the log. May block.

        Raises LogUnreachable, or AppendRefused if the log refuses the mark or the claim for a newer
        format of batches.
        """
        if self._mark_is_due():
            self._append_mark()
        reports = self._log.reports()
        known, low = self._nodes.durable, self._log.bounds()[0]
        if self._begin_bytes is None:
            self._begin_bytes = -self._read.of_log(low, known)
        wanted = known.after(reports, low)
        if self.size > self._limits.most and self._owner.marks:
            wanted = self._strike(wanted, reports)
        if self._owner.marks:
            mark = self._owner.marks[-1]
            size = self._sizes[mark] - self._begin_bytes
            wanted = replace(wanted, mark=mark, size=size, begin=low)
        if wanted != known:
            self._nodes.change(wanted)
        for name, report in reports.items():
            if report.forgotten and name not in known.listed:
                self._log.remove_report(name)
        if self.upgrade is not None:
            self.upgrade.look(known, reports)
        self._note_unreported(wanted.unreported(reports))
        if self._node in wanted.listed:
            self._trim(NodeList(known.listed | wanted.listed), reports)

    def _note_unreported(self, names: list[str]) -> None:
        """Log the names of nodes that have sent no report, unless they are already logged."""
        if names and names != self.unreported:
            logs.warning(
                "cluster_node_unreported",
                nodes=",".join(names),
                note="the log is not trimmed: Kafka has no report of these nodes (it forgets the "
                "report of a node that was stopped for days), so the records that they lack are "
                "unknown; "
                "start them, or remove them with `trellis cluster forget NODE`",
            )
        self.unreported = names

    def _mark_is_due(self) -> bool:
        return (
            self._shipped() - self._marked_bytes >= self._limits.bytes * MARK_PART
            or self._clock() - self._marked_at >= self._limits.seconds
            # The log can only be trimmed to a mark of this owner.
            or self.size > self._limits.most
            and not self._owner.marks
        )

    def _append_mark(self) -> None:
        size = self._shipped()
        self._mark()
        self._sizes[self._owner.marks[-1]] = size
        self._marked_at, self._marked_bytes = self._clock(), size

    def _strike(self, nodes: NodeList, reports: Mapping[str, NodeReport]) -> NodeList:
        """Return the list of nodes without the node that has least of the log.

        The log is no longer kept for the removed (struck) node. If no node lacks records before
        the newest mark, return the list unchanged.
        """
        newest = self._owner.marks[-1]
        behind = [
            name
            for name in nodes.listed - {self._node}
            if name not in reports or reports[name].offset < newest
        ]
        if not behind:
            return nodes
        left = nodes.without_last(reports, self._node)
        for name in nodes.listed - left.listed:
            logs.error(
                "cluster_node_struck",
                node=name,
                offset=left.struck[name],
                note="the log has grown beyond cluster.keep_most because this node does not "
                "follow it; its records are removed now, so give the node a copy of another "
                "node's data directory (`trellis cluster seed`)",
            )
        return left

    def _trim(self, nodes: NodeList, reports: Mapping[str, NodeReport]) -> None:
        """Remove the records before the last mark that all nodes of the list have reached.

        Raises LogUnreachable.
        """
        offset = self._owner.trimmable(nodes.offsets(reports))
        if offset is None or offset <= self.trimmed:
            return
        self._log.trim(offset)
        self.trimmed = offset
        self._begin_bytes = self._sizes[offset]
        self._owner.marks = [mark for mark in self._owner.marks if mark >= offset]
        self._sizes = {mark: self._sizes[mark] for mark in self._owner.marks}
