"""Figures about a node of a cluster, which the metrics report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """The numbers and states of one node of a cluster, at one moment, for the metrics."""

    #: Name of the broker, the same on all its nodes.
    cluster: str
    #: State of the node: following, claiming, opening, active or fenced.
    state: str
    #: Epoch of the claim in force; 0 before the first claim.
    epoch: int = 0
    #: Offset of the last valid record of the log; -1 before the first valid record.
    offset: int = -1
    #: Number of the last whole batch.
    batch: int = 0
    #: Seconds without a record of the owner, as a standby counts them; 0 on the owner.
    silence: float = 0.0
    #: Seconds for which the owner may still act without another acknowledged record; 0 on a
    #: standby.
    lease: float = 0.0
    #: Number of batches that this node appended as the owner, and total seconds of these appends.
    appended: int = 0
    append_seconds: float = 0.0
    #: The offset up to which this node trimmed the log as the owner; -1 if it has not.
    trimmed: int = -1
    #: Size in bytes of the batches in the log, as the owner counts them; 0 on a standby.
    log_bytes: int = 0
    #: Number of listed nodes, for which the log is kept, and of nodes that were struck from the
    #: list; 0 on a standby.
    listed: int = 0
    struck: int = 0
    #: Memory in bytes of the live records that a standby keeps up to date; 0 on the active node.
    survivor_bytes: int = 0
