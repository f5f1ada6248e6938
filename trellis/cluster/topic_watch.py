"""Checks the properties of the topic again and again while a node runs.

An operator may change the settings of the topic at any time. The new settings may be unusable for
the log, or may let the topic lose confirmed messages. The active node then appends no batch until
the settings are mended, so it confirms no message. A standby continues to follow the log. (A node
that starts with such a topic ends with an error.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from broker.replication.contract import CHUNK_SIZE
from trellis import logs
from trellis.cluster.topic import KafkaTopic
from trellis.cluster.topic_safety import (
    TopicFinding,
    chunk_size_of,
    mending_command,
    refusal_of,
    topic_findings,
)
from trellis.settings.cluster import ClusterSettings

#: Seconds between two checks of the topic: while the topic is accepted, and while it is refused.
CHECK_SECONDS: Final = 60.0
REFUSED_SECONDS: Final = 5.0


class TopicWatch:
    """The findings about the topic at the last check. Any thread may use this object."""

    def __init__(
        self,
        topic: KafkaTopic,
        cluster: ClusterSettings,
        findings: list[TopicFinding],
        clock: Callable[[], float] = time.monotonic,
        chunk_size: int = CHUNK_SIZE,
    ) -> None:
        """Begin with the results of the check that the node made when it connected.

        `findings` are logged already. `chunk_size` is the largest payload of a chunk that the topic
        accepted at that check, in bytes.
        """
        self._topic = topic
        self._cluster = cluster
        self._findings = findings
        self._clock = clock
        self._checked = clock()
        self._lock = threading.Lock()
        #: The reason why no batch may be appended to the topic; "" if batches may be appended.
        self.refusal = ""
        #: The largest payload of a chunk that the topic accepts, in bytes.
        self.chunk_size = chunk_size

    def look(self, now: bool = False) -> None:
        """Check the topic, if a check is due, and log each change of the findings.

        If `now` is True, check at once. Raises LogUnreachable: the results of the last check then
        stay in force.
        """
        with self._lock:
            time_now = self._clock()
            seconds = REFUSED_SECONDS if self.refusal else CHECK_SECONDS
            if now or time_now >= self._checked + seconds:
                self._checked = time_now
                self._check()

    def _check(self) -> None:
        facts, settings = self._topic.facts(), self._topic.settings()
        findings = topic_findings(facts, settings)
        self.refusal = refusal_of(self._cluster, findings, settings)
        self.chunk_size = chunk_size_of(settings)
        before, self._findings = self._findings, findings
        for finding in findings:
            if finding not in before:
                log_unsafe(self._cluster, finding, self.refusal)
        unsafe = {finding.name for finding in findings}
        for finding in before:
            if finding.name not in unsafe:
                logs.info("cluster_safe", topic=self._cluster.log_topic, finding=finding.text)


def log_unsafe(cluster: ClusterSettings, finding: TopicFinding, refusal: str = "") -> None:
    """Log an unsafe property of the topic, with the command of Kafka that mends it.

    `refusal` is the reason why no batch may be appended to the topic; "" if there is none.
    """
    topic, mend = cluster.log_topic, mending_command(cluster, finding)
    if refusal and finding.is_refused(cluster):
        logs.error(
            "cluster_topic_refused",
            topic=topic,
            finding=finding.text,
            mend=mend,
            note="the active node confirms no message until the topic is repaired",
        )
    else:
        logs.warning("cluster_unsafe", topic=topic, finding=finding.text, mend=mend)
