"""Encoded messages of a workload: names, bytes to send, and bytes that subscribers must receive."""

from __future__ import annotations

from typing import Final, NamedTuple

from trellis.bench import amqp, mqtt
from trellis.bench.check import HEADER_SIZE, filler
from trellis.bench.reader import CHUNK
from trellis.bench.workloads import ALL, Workload

#: Largest number of bytes of QoS 0 messages in flight. With more, brokers drop messages to slow
#: clients (Trellis above 1 MiB of unsent output).
_QOS0_IN_FLIGHT: Final = 768 * 1024
_IN_FLIGHT: Final = 8 * 1024 * 1024
#: Placeholder in the template of a message for the bytes that differ from message to message.
_GAP: Final = b"\xff"


class BenchNames:
    """Names of the topics, routing keys, queues and exchange of one run, unique at the broker."""

    def __init__(self, workload: Workload, token: str) -> None:
        self._root = f"b{token}"
        self._count = workload.topics
        self.crossing = workload.publish != workload.consume
        # MQTT messages are published to amq.topic, so a workload with both protocols uses it for
        # AMQP too.
        self.exchange = "amq.topic" if self.crossing else f"bench-{token}"
        self.queue = f"bench-{token}"

    def topic(self, number: int) -> str:
        """Return the topic of message `number`."""
        return f"{self._root}/room/{number % self._count:04d}/temp"

    @property
    def topic_filter(self) -> str:
        """The filter that matches every topic."""
        return f"{self._root}/room/+/temp"

    def key(self, number: int) -> str:
        """Return the routing key of message `number`."""
        return self.topic(number).replace("/", ".")

    @property
    def binding_key(self) -> str:
        """The binding key that matches every routing key."""
        return f"{self._root}.room.*.temp"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every message that is published to a headers exchange."""
        return {"kind": "temperature", "house": self._root}

    @property
    def wanted(self) -> dict[str, str]:
        """Arguments of a headers binding that matches every message of the run."""
        return {"x-match": "all", **self.headers}

    def other_wanted(self, number: int) -> dict[str, str]:
        """Return the arguments of a headers binding that matches no message of the run.

        `x-match` is "all" if `number` is even, and "any" if `number` is odd.
        """
        house = f"{self._root}-{number}"
        return {"x-match": "any", "house": house} if number % 2 else self.wanted | {"house": house}

    def other_key(self, number: int) -> str:
        """Return a binding key that matches no message of the run.

        `number` modulo 3 chooses the kind: 0 gives a key without wildcards, 1 a key with `*` and
        `#`, and 2 a key that begins with `*`.
        """
        forms = (
            f"{self._root}.room.x{number}.temp",
            f"{self._root}.*.x{number}.#",
            f"*.hall.x{number}.*",
        )
        return forms[number % 3]


class RunSizes(NamedTuple):
    """The sizes of a workload's traffic, in messages.

    At most `window` messages are in flight, counted over all publishers. A publisher sends `batch`
    messages in one send. Each publisher numbers its messages from 0 to `ring` - 1, then from 0
    again. `ring` is a power of two, and at least as large as the window and as the number of
    topics.
    """

    window: int
    batch: int
    ring: int


def sizes(workload: Workload) -> RunSizes:
    """Return the sizes for a workload; large bodies reduce the window."""
    dropped = workload.consume == "mqtt" and workload.qos == 0
    packet = workload.size + 64
    window = max(1, min(workload.window, (_QOS0_IN_FLIGHT if dropped else _IN_FLIGHT) // packet))
    ring = 1 << (max(window, workload.topics) - 1).bit_length()
    # With fewer than four batches in a window, the broker would get bursts and pauses.
    return RunSizes(window, min(workload.batch, max(1, window // 4)), ring)


class BenchEncoding:
    """Encodes the messages of a workload. `frame_max` is the broker's largest AMQP frame."""

    def __init__(self, workload: Workload, names: BenchNames, ring: int, frame_max: int) -> None:
        self._workload = workload
        self._names = names
        self._filler = filler(workload.size)
        self._numbers = [number.to_bytes(4, "big") for number in range(ring)]
        self._frame_max = frame_max

    def lap(self, publisher: int) -> bytes:
        """Return a lap: one encoded message of a publisher for each number 0 to `ring` - 1, joined.

        All messages have the same size.
        """
        workload = self._workload
        return self._encode(workload.publish, workload.qos, publisher, 0, 1)

    def stream(self, first: int, step: int) -> tuple[bytes, int]:
        """Return the bytes that a QoS 0 subscriber of one publisher must receive, and a lap's size.

        A publisher sends the same sequence of packets, a lap, again and again. For this subscriber,
        a lap has one packet for each number `first`, `first + step`, ... below `ring`. The returned
        bytes are one lap, followed by the first CHUNK bytes of the next lap.
        """
        lap = self._encode("mqtt", 0, 0, first, step)
        return (lap * (CHUNK // len(lap) + 2))[: len(lap) + CHUNK], len(lap)

    def packet_size(self, protocol: str, qos: int) -> int:
        """Return the size of one encoded message in bytes."""
        return len(b"".join(self._template(protocol, qos, 0)))

    def _encode(self, protocol: str, qos: int, publisher: int, first: int, step: int) -> bytes:
        topics = self._workload.topics
        templates = [self._template(protocol, qos, topic) for topic in range(topics)]
        mark, parts, with_id = publisher.to_bytes(4, "big"), [], protocol == "mqtt" and qos > 0
        for number in range(first, len(self._numbers), step):
            head, _, tail = templates[number % topics]
            packet_id = (number + 1).to_bytes(2, "big") if with_id else b""
            parts.append(head + packet_id + mark + self._numbers[number] + tail)
        return b"".join(parts)

    def _template(self, protocol: str, qos: int, topic: int) -> tuple[bytes, bytes, bytes]:
        """Encode a message with a gap for the packet identifier, publisher and message number.

        Return the bytes before the gap, the gap, and the bytes after the gap.
        """
        body = _GAP * HEADER_SIZE + self._filler
        if protocol == "amqp":
            encoded = amqp.publish(
                self._names.exchange,
                self._names.key(topic),
                body,
                self._frame_max,
                self._workload.persistent,
                self._names.headers if self._workload.headers else amqp.NONE,
            )
            return encoded.partition(_GAP * HEADER_SIZE)
        encoded = mqtt.publish(self._names.topic(topic), body, qos, 0xFFFF)
        return encoded.partition(_GAP * (HEADER_SIZE + (2 if qos else 0)))

    def topics(self) -> list[bytes]:
        """Return each topic as PUBLISH encodes it: its length in two bytes, then its text."""
        return [mqtt.string(self._names.topic(number)) for number in range(self._workload.topics)]

    def routes(self) -> list[bytes]:
        """Return the exchange and routing key for each topic, encoded as in basic.deliver."""
        names = self._names
        return [
            amqp.short_string(names.exchange) + amqp.short_string(names.key(number))
            for number in range(self._workload.topics)
        ]


def is_predictable(workload: Workload) -> bool:
    """Return True if the bytes sent to a subscriber are known in advance."""
    return workload.consume == "mqtt" and workload.qos == 0 and workload.publishers == 1


def numbers_of(workload: Workload, subscriber: int) -> tuple[int, int]:
    """Return the number of the first message that a subscriber receives, and the step.

    The subscriber receives the messages with the numbers first, first + step, first + 2 step, ...
    """
    return (0, 1) if workload.sharing == ALL else (subscriber, workload.topics)
