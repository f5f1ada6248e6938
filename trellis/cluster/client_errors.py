"""Errors of the replicated log on Kafka, and errors of Kafka's library as one line of text."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException

from broker.replication.contract import LogUnreachable
from broker.replication.errors import ReplicationError
from trellis.settings.cluster import ClusterSettings

#: The reason in errors of requests after `close`.
CLOSED: Final = "this node closed the log"
#: Advice for an operator, by the name of an error.
_ADVICE: Final = {
    "TOPIC_AUTHORIZATION_FAILED": "permit Read, Write, Describe, DescribeConfigs and Delete on the "
    "topic",
    "GROUP_AUTHORIZATION_FAILED": "permit Read on groups whose names begin with `trellis.`",
    "CLUSTER_AUTHORIZATION_FAILED": "permit IdempotentWrite, or Write on the topic",
    "SASL_AUTHENTICATION_FAILED": "check the sasl options in cluster.options",
    "_AUTHENTICATION": "check the sasl options in cluster.options",
    "_SSL": "check the ssl options in cluster.options",
    "_MSG_TIMED_OUT": "check that at least min.insync.replicas nodes of Kafka can be reached",
    "MSG_SIZE_TOO_LARGE": "raise max.message.bytes of the topic",
    "RECORD_LIST_TOO_LARGE": "raise segment.bytes of the topic",
    "INVALID_REPLICATION_FACTOR": "start at least 3 Kafka nodes",
    "UNKNOWN_TOPIC_OR_PART": "create the topic with `trellis cluster check --create`",
    "_UNKNOWN_TOPIC": "create the topic with `trellis cluster check --create`",
}
#: The advice for all other errors.
DEFAULT_ADVICE: Final = "check that the nodes in cluster.servers run and can be reached"


class TopicAbsent(LogUnreachable):
    """Raised if the topic of the log does not exist."""


class GroupAbsent(LogUnreachable):
    """Raised if Kafka has no consumer group of this name.

    The group of a node exists only after the node has reported an offset.
    """


class TopicReplaced(ReplicationError):
    """Raised if another topic of the same name replaced the topic that this node followed."""


class LogBehind(LogUnreachable):
    """Raised if the leader of the partition says that the log ends before the offset to read.

    The caller may retry, because a new leader may report an old end of the log for a moment.
    """


class LogShorter(ReplicationError):
    """Raised if the log lost records, or its topic was created again.

    The error is raised if, for several seconds, the log ends before the offset to read. A change of
    the partition's leader shortens the log for a moment only (LogBehind).
    """


class LogHole(ReplicationError):
    """Raised if records of the log are missing.

    The reason is that the topic of the log was compacted, or that other programs write to it.
    """


#: Errors of requests that no Kafka node answered.
_NO_ANSWER: Final = (
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._ALL_BROKERS_DOWN,
)
#: Errors of the library that have a class of their own, because callers handle them differently.
_CLASSES: Final[dict[int, type[LogUnreachable]]] = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: TopicAbsent,
    KafkaError._UNKNOWN_TOPIC: TopicAbsent,
    KafkaError.GROUP_ID_NOT_FOUND: GroupAbsent,
}


def described(error: KafkaError) -> str:
    """Return an error and the advice for it, such as `TEXT (NAME): ADVICE`."""
    return f"{error.str()} ({error.name()}): {_ADVICE.get(error.name(), DEFAULT_ADVICE)}"


def unreachable(
    task: str, cluster: ClusterSettings, error: KafkaError, reason: str = ""
) -> LogUnreachable:
    """Return the error of a request to Kafka that failed.

    `task` is the text after "cannot" in the error, such as "append to topic". `reason` is the last
    log line of the client library. If no Kafka node answered, the returned error has `reason` as a
    note, because `error` does not say why no node answered.
    """
    text = f"cannot {task} '{cluster.log_topic}' at {cluster.servers}: {described(error)}"
    failure = _CLASSES.get(error.code(), LogUnreachable)(text)
    if reason and error.code() in _NO_ANSWER:
        failure.add_note(reason)
    return failure


def error_in(error: KafkaException) -> KafkaError:
    """Return the error of Kafka's client library in an exception."""
    kafka_error: KafkaError = error.args[0]
    return kafka_error
