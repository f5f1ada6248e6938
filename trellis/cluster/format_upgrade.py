"""Puts a newer batch format in force once all nodes of the cluster can read it.

A batch format is the encoding of batches in the replicated log (broker/replication/formats.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.replication.formats import common_format, nodes_without
from broker.replication.owner import LogOwner
from broker.replication.report import NodeReport
from broker.replication.trimming import NodeList
from trellis import logs
from trellis.cluster.clock import wall_ms


class FormatUpgrade:
    """The upgrade of the batch format by the owner of the replicated log.

    `newest` is the number of the newest format that the owner reads. `raise_format` is called with
    the number of a format, in which the owner then writes its batches.
    """

    def __init__(
        self, node: str, owner: LogOwner, newest: int, raise_format: Callable[[int], None]
    ) -> None:
        self._node = node
        self._owner = owner
        self._newest = newest
        self._raise = raise_format
        #: The nodes in the last log line, which cannot read the newest format yet.
        self._late: list[str] = []

    def look(self, nodes: NodeList, reports: Mapping[str, NodeReport]) -> None:
        """Put in force the newest batch format that all nodes can read. May block.

        Do nothing if that format is in force already. `nodes` is the durable list of the nodes,
        `reports` are their last reports by name.
        """
        in_force = self._owner.judge.state.format
        wall = wall_ms()
        number = common_format(in_force, self._newest, nodes, reports, self._node, wall)
        if number > in_force:
            self._raise(number)
            logs.info("cluster_format_raised", format=number, before=in_force)
        elif self._newest > in_force:
            self._note_late(in_force, nodes_without(in_force + 1, nodes, reports, wall))

    def _note_late(self, in_force: int, names: list[str]) -> None:
        """Log the other nodes in `names`, because of which the owner keeps the format `in_force`.

        Log nothing if the last call named the same nodes.
        """
        late = [name for name in names if name != self._node]
        if late and late != self._late:
            logs.info(
                "cluster_format_waits",
                format=in_force,
                nodes=",".join(late),
                note="the named nodes do not read the next format of batches; upgrade them, or "
                "remove nodes that do not exist any more with `trellis cluster forget NODE`",
            )
        self._late = late
