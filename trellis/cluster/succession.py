"""The choice of the standby to which the active node can hand its log over at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.replication.errors import ReplicationError
from broker.replication.report import NodeReport

#: Largest age in seconds of the last report of a successor.
REPORT_AGE_MAX: Final = 12.0
#: Largest number of batches that a successor may lack in its last report, which may be a second
#: old.
BATCHES_MAX: Final = 50_000


def successor(
    reports: Mapping[str, NodeReport],
    owner: str,
    batch: int,
    wall: int,
    wanted: str = "",
    lacking_most: int = BATCHES_MAX,
) -> tuple[str, NodeReport]:
    """Return the name and the report of the node to which the log can be handed over.

    `owner` is the name of the node that owns the log, `batch` the number of its last batch, and
    `wall` the time of its wall clock in ms. `wanted` is the name of the successor; "" chooses the
    node that has most of the log. The successor lacks at most `lacking_most` batches. Raises
    ReplicationError if no such node can take over.
    """
    if wanted:
        reason = _refusal(wanted, reports.get(wanted), owner, batch, wall, lacking_most)
        if reason:
            raise ReplicationError(reason)
        return wanted, reports[wanted]
    ready = {
        name: report
        for name, report in reports.items()
        if not _refusal(name, report, owner, batch, wall, lacking_most)
    }
    if not ready:
        refusals = [
            _refusal(name, reports[name], owner, batch, wall, lacking_most)
            for name in sorted(reports.keys() - {owner})
        ]
        raise ReplicationError(
            f"no standby can take over from '{owner}' "
            f"({'; '.join(refusals) or 'no other node has reported'}): start a standby, and wait "
            "until `trellis cluster status` shows it as following"
        )
    best = max(ready, key=lambda name: (ready[name].batch, ready[name].offset, name))
    return best, ready[best]


def _refusal(
    name: str, report: NodeReport | None, owner: str, batch: int, wall: int, lacking_most: int
) -> str:
    """Return why the log cannot be handed over to a node; "" if the node can take over.

    `report` is the last report of the node; None if it has not reported. The other arguments are
    those of `successor`.
    """
    if name == owner:
        return f"node '{name}' is the active node already"
    if report is None:
        return f"node '{name}' has not reported: check the name with `trellis cluster status`"
    if report.state != "following":
        state = f"in the state '{report.state}'" if report.state else "in an unknown state"
        return f"node '{name}' is {state}, but must be 'following'"
    if not report.nonce:
        return (
            f"the last report of node '{name}' offers no handover: wait for its next report, and "
            "try again"
        )
    age = (wall - report.wall) / 1000
    if abs(age) > REPORT_AGE_MAX:
        return (
            f"the last report of node '{name}' is {age:.0f} s old by this node's clock: start the "
            "node, or correct the clocks"
        )
    if batch - report.batch > lacking_most:
        return f"node '{name}' lacks {batch - report.batch} batches: wait until it has caught up"
    return ""
