"""What goes over the wire in a workload: names, laps of encoded messages, and the packets that must
come back.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from trellis.bench import amqp, mqtt
from trellis.bench.check import MARK, filler
from trellis.bench.reader import CHUNK
from trellis.bench.workloads import EVERYBODY, Workload

#: Octets that a window may hold: more than this, and QoS 0 messages to a client that is behind are
#: dropped (Trellis at 1 MiB).
_QOS0_IN_FLIGHT: Final = 768 * 1024
_IN_FLIGHT: Final = 8 * 1024 * 1024
#: Where the octets that differ from message to message stand in a template.
_GAP: Final = b"\xff"


class BenchNames:
    """Topics, keys, queues and the exchange of one run; nothing else at the broker is called so."""

    def __init__(self, workload: Workload, token: str) -> None:
        self._root = f"b{token}"
        self._count = workload.topics
        self.crossing = workload.publish != workload.consume
        # The two protocols meet in one exchange, which is there.
        self.exchange = "amq.topic" if self.crossing else f"bench-{token}"
        self.queue = f"bench-{token}"

    def topic(self, number: int) -> str:
        return f"{self._root}/room/{number % self._count:04d}/temp"

    @property
    def topic_filter(self) -> str:
        return f"{self._root}/room/+/temp"

    def key(self, number: int) -> str:
        return self.topic(number).replace("/", ".")

    @property
    def binding_key(self) -> str:
        return f"{self._root}.room.*.temp"

    @property
    def headers(self) -> dict[str, str]:
        """What each message says of itself, where an exchange asks for headers."""
        return {"kind": "temperature", "house": self._root}

    @property
    def wanted(self) -> dict[str, str]:
        """Arguments of a binding that asks for that."""
        return {"x-match": "all", **self.headers}

    def other_wanted(self, number: int) -> dict[str, str]:
        """Arguments of a binding, in two forms in turn, that nothing that is published fits."""
        house = f"{self._root}-{number}"
        return {"x-match": "any", "house": house} if number % 2 else self.wanted | {"house": house}

    def other_key(self, number: int) -> str:
        """A binding key, in three forms in turn, that matches nothing that is published."""
        forms = (
            f"{self._root}.room.x{number}.temp",
            f"{self._root}.*.x{number}.#",
            f"*.hall.x{number}.*",
        )
        return forms[number % 3]


class Sizes(NamedTuple):
    """How many messages may be in flight, and leave with one send, and how many numbers a publisher
    has: a power of two, no less than the window, and as many for each topic."""

    window: int
    batch: int
    ring: int


def sizes(workload: Workload) -> Sizes:
    """The workload's window, less where bodies are large."""
    dropped = workload.consume == "mqtt" and workload.qos == 0
    octets = workload.size + 64
    window = max(1, min(workload.window, (_QOS0_IN_FLIGHT if dropped else _IN_FLIGHT) // octets))
    ring = 1 << (max(window, workload.topics) - 1).bit_length()
    # Of a window that is cut into less than four parts the broker would see most at once, then
    # nothing.
    return Sizes(window, min(workload.batch, max(1, window // 4)), ring)


class BenchEncoding:
    """Encodes the messages of a workload. `frame_max` is what the AMQP broker takes."""

    def __init__(self, workload: Workload, names: BenchNames, ring: int, frame_max: int) -> None:
        self._workload = workload
        self._names = names
        self._filler = filler(workload.size)
        self._numbers = [number.to_bytes(4, "big") for number in range(ring)]
        self._frame_max = frame_max

    def lap(self, publisher: int) -> bytes:
        """All messages of a publisher, each of the same size."""
        workload = self._workload
        return self._encode(workload.publish, workload.qos, publisher, 0, 1)

    def stream(self, first: int, step: int) -> tuple[bytes, int]:
        """A lap, and one CHUNK more, of the packets that the QoS 0 subscriber of the only publisher
        must be sent; and the length of the lap."""
        lap = self._encode("mqtt", 0, 0, first, step)
        return (lap * (CHUNK // len(lap) + 2))[: len(lap) + CHUNK], len(lap)

    def packet(self, protocol: str, qos: int) -> int:
        """The size of one message."""
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
        """What stands before, at and behind packet identifier, publisher and number."""
        body = _GAP * MARK + self._filler
        if protocol == "amqp":
            encoded = amqp.publish(
                self._names.exchange,
                self._names.key(topic),
                body,
                self._frame_max,
                self._workload.persistent,
                self._names.headers if self._workload.headers else amqp.NONE,
            )
            return encoded.partition(_GAP * MARK)
        encoded = mqtt.publish(self._names.topic(topic), body, qos, 0xFFFF)
        return encoded.partition(_GAP * (MARK + (2 if qos else 0)))

    def topics(self) -> list[bytes]:
        """Length and name of each topic, as PUBLISH has them."""
        return [mqtt.string(self._names.topic(number)) for number in range(self._workload.topics)]

    def routes(self) -> list[bytes]:
        """Exchange and routing key of each topic, as basic.deliver has them."""
        names = self._names
        return [
            amqp.short(names.exchange) + amqp.short(names.key(number))
            for number in range(self._workload.topics)
        ]


def is_known(workload: Workload) -> bool:
    """Is what a subscriber must be sent known to the octet?"""
    return workload.consume == "mqtt" and workload.qos == 0 and workload.publishers == 1


def part(workload: Workload, subscriber: int) -> tuple[int, int]:
    """The first number that this subscriber receives, and the step to the next."""
    return (0, 1) if workload.sharing == EVERYBODY else (subscriber, workload.topics)
