"""Builds the Membership of a node in a cluster whose replicated log is on Kafka."""

from __future__ import annotations

from broker.replication.engine import ReplicatedLog
from trellis import logs
from trellis.cluster.kafka_log import KafkaLog
from trellis.cluster.membership import Membership
from trellis.cluster.topic_watch import log_unsafe
from trellis.settings import Settings


def membership_from_settings(settings: Settings) -> Membership:
    """Return the membership of this node in the cluster of the settings section [cluster].

    The membership connects to Kafka when it opens the log.
    """
    cluster = settings.cluster

    def open_log() -> ReplicatedLog:
        log = KafkaLog(cluster, settings.node.name)
        try:
            log.connect()
        except BaseException:
            log.close()
            raise
        if cluster.unsafe:
            logs.warning(
                "cluster_unsafe_allowed",
                topic=cluster.log_topic,
                note="cluster.unsafe is true: this node accepts a topic that can lose confirmed "
                "messages; outside trials, set cluster.unsafe to false",
            )
        for finding in log.findings:
            log_unsafe(cluster, finding)
        return log

    return Membership(cluster.name, cluster.timing, open_log)
