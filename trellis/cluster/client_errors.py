"""Errors of Kafka's client library as one line of text."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException

from broker.replication.contract import LogUnreachable
from broker.replication.records import ReplicationError
from trellis.settings.cluster import ClusterSettings

#: The reason in errors of requests after `close`.
CLOSED: Final = "this node closed the log"
#: Advice for an operator, by the name of an error.
_ADVICE: Final = {
    "TOPIC_AUTHORIZATION_FAILED": "permit Read, Write, Describe, DescribeConfigs and Delete on it",
    "GROUP_AUTHORIZATION_FAILED": "permit Read on groups whose names begin with `trellis.`",
    "CLUSTER_AUTHORIZATION_FAILED": "permit IdempotentWrite, or Write on the topic",
    "SASL_AUTHENTICATION_FAILED": "check the sasl options in cluster.options",
    "_AUTHENTICATION": "check the sasl options in cluster.options",
    "_SSL": "check the ssl options in cluster.options",
    "_MSG_TIMED_OUT": "check that at least min.insync.replicas nodes of Kafka can be reached",
    "MSG_SIZE_TOO_LARGE": "raise max.message.bytes of the topic",
    "INVALID_REPLICATION_FACTOR": "start at least 3 Kafka nodes",
    "UNKNOWN_TOPIC_OR_PART": "create it with `trellis cluster check --create`",
    "_UNKNOWN_TOPIC": "create it with `trellis cluster check --create`",
}
_DEFAULT_ADVICE: Final = "check that the nodes in cluster.servers run and can be reached"


class TopicAbsent(LogUnreachable):
    """An error: the topic of the log does not exist."""


class GroupAbsent(LogUnreachable):
    """An error: Kafka has no consumer group of this name.

    A node's group exists only after the node has reported an offset.
    """


class TopicReplaced(ReplicationError):
    """An error: the topic that this node followed was replaced by another topic of its name."""


class LogBehind(LogUnreachable):
    """An error: the log ends before the offset to read, as the partition's leader reports it.

    The caller may retry, because a new leader may report an old end of the log for a moment.
    """


class LogShorter(ReplicationError):
    """An error: the log lost records, or its topic was created again.

    Raised if the end of the log stays before the offset to read for longer than a change of the
    partition's leader explains.
    """


class LogHole(ReplicationError):
    """An error: the log lacks records. The topic was compacted, or other programs write to it."""


#: Errors of the library that have a class of their own, because callers handle them differently.
_CLASSES: Final[dict[int, type[LogUnreachable]]] = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: TopicAbsent,
    KafkaError._UNKNOWN_TOPIC: TopicAbsent,
    KafkaError.GROUP_ID_NOT_FOUND: GroupAbsent,
}


def described(error: KafkaError) -> str:
    """Return an error and the advice for it, such as `TEXT (NAME): ADVICE`."""
    return f"{error.str()} ({error.name()}): {_ADVICE.get(error.name(), _DEFAULT_ADVICE)}"


def unreachable(task: str, cluster: ClusterSettings, error: KafkaError) -> LogUnreachable:
    """Return the error of a request to Kafka that failed.

    `task` is the text after "cannot" in the error, such as "append to topic".
    """
    text = f"cannot {task} '{cluster.log_topic}' at {cluster.servers}: {described(error)}"
    return _CLASSES.get(error.code(), LogUnreachable)(text)


def error_in(error: KafkaException) -> KafkaError:
    """Return the error of Kafka's client library in an exception."""
    found: KafkaError = error.args[0]
    return found
