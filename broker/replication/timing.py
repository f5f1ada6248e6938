"""The time limits of a cluster: their defaults and their rule.

The settings need no more of this package at the start of a broker without a cluster. So this module
imports nothing but the error: the other modules would take 8 ms of each start.
"""

from __future__ import annotations

from typing import Final

from broker.replication.errors import ReplicationError

#: A standby claims the log after it has read no record of the owner for this time, in seconds.
SILENCE: Final = 3.5
#: The owner may act until this time, in seconds, has passed since it sent its last acknowledged
#: record.
LEASE: Final = 2.5
#: The owner appends a beat if it has sent no record for this time, in seconds.
BEAT: Final = 0.3


def check_times(silence: float, lease: float, beat: float) -> None:
    """Raise ReplicationError unless 2 * `beat` < `lease` < `silence`; all are in seconds.

    With these times, one late beat does not end the owner's lease, and the lease ends before a
    standby claims the log.
    """
    if not 0 < 2 * beat < lease < silence:
        raise ReplicationError(
            f"silence {silence:g} s, lease {lease:g} s and beat {beat:g} s do not fit together: "
            "twice cluster.beat must be below cluster.lease, and cluster.lease below "
            "cluster.silence"
        )
