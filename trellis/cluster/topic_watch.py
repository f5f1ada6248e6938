"""Checks the properties of the topic again and again while a node runs.

An operator may change the settings of the topic at any time. A topic that can lose confirmed
messages is refused as at the start of a node: the active node then appends no batch, so it confirms
nothing, until the setting is mended. A standby goes on following.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from trellis import logs
from trellis.cluster.topic import KafkaTopic
from trellis.cluster.topic_safety import (
    TopicFinding,
    mending_command,
    refusal_of,
    topic_findings,
)
from trellis.settings.cluster import ClusterSettings

#: Seconds between two checks of the topic, and the same while the topic is refused.
CHECK_SECONDS: Final = 60.0
REFUSED_SECONDS: Final = 5.0


class TopicWatch:
    """The findings about the topic at the last check. One thread calls `look`."""

    def __init__(
        self,
        topic: KafkaTopic,
        cluster: ClusterSettings,
        findings: list[TopicFinding],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with the findings when the node connected, which are logged already."""
        self._topic = topic
        self._cluster = cluster
        self._findings = findings
        self._clock = clock
        self._checked = clock()
        #: The reason why no batch may be appended to the topic; "" if batches may be appended. Any
        #: thread may read it.
        self.refusal = ""

    def look(self) -> None:
        """Check the topic, if a check is due, and log each change of the findings.

        Raises LogUnreachable: the result of the last check then stays in force.
        """
        now = self._clock()
        if now < self._checked + (REFUSED_SECONDS if self.refusal else CHECK_SECONDS):
            return
        self._checked = now
        facts, settings = self._topic.facts(), self._topic.settings()
        findings = topic_findings(facts, settings)
        self.refusal = refusal_of(self._cluster, findings, settings)
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

    `refusal` is the reason why no batch may be appended to the topic; "" if batches may be.
    """
    topic, mend = cluster.log_topic, mending_command(cluster, finding)
    if refusal and finding.loses:
        logs.error(
            "cluster_topic_refused",
            topic=topic,
            finding=finding.text,
            mend=mend,
            note="the active node confirms nothing until this is mended",
        )
    else:
        logs.warning("cluster_unsafe", topic=topic, finding=finding.text, mend=mend)
