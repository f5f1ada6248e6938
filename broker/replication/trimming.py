"""Trimming: which records of the log all nodes have, so that the owner may remove them.

The log is trimmed up to a mark, a record at which a node can begin to read. The owner may remove
the records before a mark if each listed node would begin to read at the mark or later. While a
listed node has not reported its offset, nothing is removed, because the node may need any record.

The list of nodes is stored as a definition, so that a new owner knows it. A node enters the list by
its first report. A node leaves the list if an operator removes the node. The owner also strikes a
node that is far behind, if the log therefore grows beyond `cluster.keep_most`. An operator must
seed a struck node (`trellis cluster seed`) before it can follow the log again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from broker.replication.report import NodeReport


@dataclass(frozen=True, slots=True)
class NodeList:
    """The listed nodes of a cluster, and the struck nodes, each with its last reported offset."""

    listed: frozenset[str] = frozenset()
    struck: Mapping[str, int] = field(default_factory=dict)
    #: Offset of the last mark. The list is stored again after each mark: a batch with a definition
    #: lets each node store its state, so each node has durable state up to the mark.
    mark: int = -1
    #: Identity of the replicated log (`ReplicatedLog.identity`) of this list; "" in the list of an
    #: earlier version. A log that was begun anew (`trellis cluster adopt`) has other nodes.
    log: str = ""
    #: Size in bytes of the batches between the offsets `begin` and `mark`, where `begin` was the
    #: first offset of the log. A new owner may not have read these batches.
    size: int = 0
    begin: int = -1

    def of_log(self, identity: str) -> NodeList:
        """Return this list if it belongs to the log with this identity; otherwise an empty list.

        A list that an earlier version of Trellis stored has no identity, and counts as a list of
        this log.
        """
        if self.log in ("", identity):
            return replace(self, log=identity)
        return NodeList(log=identity)

    def value(self) -> dict[str, object]:
        """Return the list of nodes as a value that JSON can hold; `from_value` reads it."""
        return {
            "listed": sorted(self.listed),
            "struck": dict(sorted(self.struck.items())),
            "mark": self.mark,
            "log": self.log,
            "size": self.size,
            "begin": self.begin,
        }

    @staticmethod
    def from_value(value: object) -> NodeList:
        """Return the list of nodes from the result of the property `value`.

        Return an empty list for any other object.
        """
        document = value if isinstance(value, dict) else {}
        listed, struck, mark = document.get("listed"), document.get("struck"), document.get("mark")
        log, size, begin = document.get("log"), document.get("size"), document.get("begin")
        return NodeList(
            frozenset(name for name in listed if isinstance(name, str))
            if isinstance(listed, list)
            else frozenset(),
            {name: offset for name, offset in struck.items() if isinstance(offset, int)}
            if isinstance(struck, dict)
            else {},
            mark if isinstance(mark, int) else -1,
            log if isinstance(log, str) else "",
            size if isinstance(size, int) else 0,
            begin if isinstance(begin, int) else -1,
        )

    def after(self, reports: Mapping[str, NodeReport], low: int) -> NodeList:
        """Return this list, updated by the reports of all nodes.

        A new node enters the list, and a node that an operator removed leaves it. A node that would
        begin to read before `low`, the offset of the log's first record, cannot follow the log, so
        it does not enter the list.
        """
        listed, struck = set(self.listed), dict(self.struck)
        for name, report in reports.items():
            if report.forgotten:
                listed.discard(name)
                struck.pop(name, None)
            elif name not in listed and report.offset > max(struck.get(name, -1), low - 1):
                listed.add(name)
                struck.pop(name, None)
        return replace(self, listed=frozenset(listed), struck=struck)

    def without_last(self, reports: Mapping[str, NodeReport], owner: str) -> NodeList:
        """Strike the listed node that is farthest behind; return the new list.

        The node `owner` is never struck: if no other node is listed, return this list.
        """
        others = {
            name: reports[name].offset if name in reports else -1 for name in self.listed - {owner}
        }
        if not others:
            return self
        last = min(others, key=lambda name: (others[name], name))
        return replace(
            self, listed=self.listed - {last}, struck={**self.struck, last: others[last]}
        )

    def unreported(self, reports: Mapping[str, NodeReport]) -> list[str]:
        """Return the names of the listed nodes without a report: they prevent trims of the log."""
        return sorted(self.listed - reports.keys())

    def offsets(self, reports: Mapping[str, NodeReport]) -> list[int | None]:
        """Return each listed node's reported offset, ordered by name; None without a report."""
        return [reports[name].offset if name in reports else None for name in sorted(self.listed)]
