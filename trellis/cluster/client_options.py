"""Options of Kafka's client library (librdkafka); writes its log lines to Trellis's log."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final

from broker.replication.contract import CHUNK_SIZE
from trellis import logs
from trellis.settings.cluster import ClusterSettings, OptionValue

#: Number of bytes of a Kafka message besides the payload of a chunk of the log: fields of Trellis's
#: record and of Kafka.
MESSAGE_OVERHEAD: Final = 4096
#: The largest message that a node sends or receives, in bytes.
MESSAGE_MAX: Final = CHUNK_SIZE + MESSAGE_OVERHEAD
#: The shortest time in seconds after which the outcome of an append may be declared unknown.
DELIVERY_LEAST: Final = 30.0
#: The largest amount of data that the library holds for a reader, in KiB.
READ_AHEAD_KIB: Final = 32 << 10

#: The event name of the log lines in which Trellis writes the lines of the library.
CLIENT_EVENT: Final = "kafka client"
#: Seconds for which a log line is not repeated, and the number of lines that are remembered for
#: this.
REPEAT_SECONDS: Final = 30.0
LINES_MAX: Final = 100
#: Age in seconds up to which the last line of the library counts as the reason of a request that
#: fails. While no node of Kafka answers, the library writes a line more often than this.
REASON_SECONDS: Final = 60.0

Options = dict[str, OptionValue]

#: Options for the pauses before another attempt to connect or to send. The pauses are short, so
#: that a lost Kafka node does not cause a failover.
_COMMON: Final[Options] = {
    "allow.auto.create.topics": False,
    "enable.metrics.push": False,
    "metadata.max.age.ms": 6000,
    "reconnect.backoff.max.ms": 200,
    "reconnect.backoff.ms": 20,
    "socket.connection.setup.timeout.ms": 1000,
    "socket.keepalive.enable": True,
    "socket.nagle.disable": True,
    "socket.timeout.ms": 3000,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "topic.metadata.refresh.interval.ms": 2000,
}


class ClientLog:
    """The log of one client of the library: the library calls `log` for each line.

    While no node of Kafka answers, the library repeats its lines many times a second. Lines that
    differ only in numbers count as equal, and equal lines are written once in REPEAT_SECONDS.
    """

    def __init__(self, client: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Create the log of one client; `client` is the client's purpose, such as "append"."""
        self._client = client
        self._clock = clock
        #: The last line without the name of the library's thread, and the time at which it came.
        self._reason = ""
        self._reason_at = 0.0
        #: The time at which a line was written, and the number of its repetitions left out since;
        #: the key is the line without its numbers.
        self._written: dict[str, tuple[float, int]] = {}

    @property
    def reason(self) -> str:
        """The last line of the library, without the name of its thread; "" if there is none.

        A line that is older than REASON_SECONDS is ignored, because it cannot explain a request
        that fails now.
        """
        return self._reason if self._clock() < self._reason_at + REASON_SECONDS else ""

    def forget_reason(self) -> None:
        """Forget the last line of Kafka's client library, because a request has succeeded since.

        The line explains no later failure: `reason` is "" until the library logs another line.
        """
        self._reason = ""

    def log(self, level: int, text: str, *values: object) -> None:
        """Write a log line; `text` has a placeholder for each value, as in module logging."""
        line = text % values
        key, now = re.sub(r"\d+", "", line), self._clock()
        self._reason, self._reason_at = line.rpartition("]: ")[2], now
        written, left_out = self._written.get(key, (-REPEAT_SECONDS, 0))
        if now < written + REPEAT_SECONDS:
            self._written[key] = (written, left_out + 1)
            return
        if len(self._written) >= LINES_MAX:
            self._written.clear()
        self._written[key] = (now, 0)
        repeated = {"repeated": left_out} if left_out else {}
        logs.log(level, CLIENT_EVENT, client=self._client, text=line, **repeated)


def delivery_seconds(cluster: ClusterSettings) -> float:
    """Return the seconds that the owner of the log waits for Kafka's answer to an append.

    After this time, the outcome of the append is unknown, and the owner ends its process.

    The time must be longer than Kafka needs to replace a lost leader of the partition (twice
    `broker.session.timeout.ms`, 18 s by default). With a shorter time, the owner would end its
    process when a leader is lost, and no standby could take over. A long time is safe: the offset
    in a late answer shows the owner whether another node has taken over.
    """
    return max(2 * cluster.silence + 2, DELIVERY_LEAST)


def producer_options(cluster: ClusterSettings) -> Options:
    """Return the options of a producer that appends each record at most once.

    If the answer to a request is lost, the library repeats the request with the same sequence
    number, and Kafka drops the repetition (`enable.idempotence`). Without idempotence, a repetition
    would append a second record. Without repetitions, the owner of the log would have to end its
    process at each change of the partition's leader.
    """
    return _joined(
        cluster,
        {
            "acks": "all",
            "delivery.timeout.ms": int(delivery_seconds(cluster) * 1000),
            "enable.idempotence": True,
            "linger.ms": 0,
            "max.in.flight": 1,
            "message.max.bytes": MESSAGE_MAX,
            "request.timeout.ms": 2000,
            "retry.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
        },
    )


def consumer_options(cluster: ClusterSettings, group: str) -> Options:
    """Return the options of a consumer that reads one partition and joins no group."""
    return _joined(
        cluster,
        {
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "fetch.error.backoff.ms": 20,
            "fetch.wait.max.ms": 100,
            "group.id": group,
            "isolation.level": "read_uncommitted",
            "max.partition.fetch.bytes": MESSAGE_MAX,
            "queued.max.messages.kbytes": READ_AHEAD_KIB,
        },
    )


def offset_options(cluster: ClusterSettings, group: str) -> Options:
    """Return the options of a consumer that only commits and reads the offsets of a group."""
    return _joined(cluster, {"enable.auto.commit": False, "group.id": group})


def admin_options(cluster: ClusterSettings) -> Options:
    """Return the options of an admin client."""
    return _joined(cluster, {})


def _joined(cluster: ClusterSettings, own: Options) -> Options:
    """Return the options of a client: common options, the options `own`, and the settings."""
    servers = {"bootstrap.servers": cluster.servers}
    return {**_COMMON, **own, **cluster.client_options, **servers}
