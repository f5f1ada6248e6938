"""Samples of the headers of published messages, for trials of changed bindings.

A headers exchange chooses the destinations of a message by its headers, which the topic history
cannot keep for each message. So for each topic that passes such an exchange, the history keeps the
headers of a random sample of the messages. A topic here is a virtual host, an exchange and a
routing key.

    message --Planner.follow--> TopicHistory.offer --all or a part-----> HeaderSamples.offer
                                        MessageSamples of a topic, up to SAMPLES_PER_TOPIC <--'

If a topic has few messages, the sample has all of them. Otherwise it is a reservoir sample: each
message is in the sample with the same probability. The numbers of the messages to keep are drawn in
advance (K.-H. Li: Reservoir-sampling algorithms of time complexity O(n(1+log(N/n))), 1994), so most
messages cost a comparison of two numbers.
"""

from __future__ import annotations

import math
import zlib
from typing import Final

from mypy_extensions import i64

from broker.messages.message import Properties
from broker.routing.exchanges.consistent_hash import mixed

#: Largest number of samples of one topic, and of all topics, in one HeaderSamples.
SAMPLES_PER_TOPIC: Final[i64] = 32
SAMPLES_MAX: Final[i64] = 1_000
#: Largest size of the sampled headers of a message, in bytes. Larger headers are not sampled.
SAMPLE_BYTES: Final[i64] = 1_024
#: Estimated size in bytes of a header's value that is a number, and of the memory for a header
#: besides the characters of its name and its value.
_VALUE_BYTES: Final[i64] = 16
#: The properties that an exchange may look at, apart from headers (consistent_hash.py).
_PROPERTIES: Final = ("correlation_id", "message_id", "timestamp")


class MessageSamples:
    """A random sample of the messages of one topic.

    `kept` are the properties of the sampled messages, `seen` is the number of all messages that
    were offered.
    """

    __slots__ = ("_chance", "_draws", "_next", "_seed", "kept", "seen")

    def __init__(self, seed: i64) -> None:
        self.kept: list[Properties] = []
        self.seen: i64 = 0
        self._seed: i64 = seed
        self._draws: i64 = 0
        #: The number of the next message to keep, counted from 1; 0 while each message is kept.
        self._next: i64 = 0
        #: In Li's algorithm, each message has a random number, and the messages with the smallest
        #: numbers are kept. The attribute is the largest number of a kept message.
        self._chance = 1.0

    def wants(self) -> bool:
        """Count a message; return True if the caller must pass its properties to `keep`."""
        self.seen += 1
        return self._next == 0 or self.seen == self._next

    def keep(self, properties: Properties, may_grow: bool) -> bool:
        """Put the properties of the message that was counted last into the sample.

        Return True if the sample has grown. If `may_grow` is False, this call and all later calls
        do not enlarge the sample: the properties replace the properties of a randomly chosen
        sampled message. The first call with `may_grow` False may leave the sample unchanged.
        """
        if self._next == 0 and may_grow:
            self.kept.append(properties)
            return True
        if self._next == 0:
            # The first message for which the sample has no room. Draw the number that would have
            # been drawn when the sample became full, and keep the message if it has this number.
            self._draw(self.seen - 1)
            if self._next != self.seen:
                return False
        self.kept[int(self._random() * len(self.kept))] = properties
        self._draw(self.seen)
        return False

    def _draw(self, after: i64) -> None:
        """Draw the number of the next message to keep, which is above `after`."""
        self._chance *= math.exp(math.log(self._random()) / len(self.kept))
        skipped = math.log(self._random()) / math.log1p(-self._chance)
        self._next = after + 1 + i64(int(min(skipped, 1e15)))

    def _random(self) -> float:
        """Return a random number above 0 and below 1.

        The core has no source of random numbers: the number is a hash of a counter.
        """
        self._draws += 1
        return (float(mixed(self._draws & 0xFFFF_FFFF, self._seed)) + 0.5) / 4_294_967_296.0


class HeaderSamples:
    """The header samples of all topics, from one part of a slot (10 minutes) of the topic history.

    A slot has two parts: its first messages, and its later messages.
    """

    def __init__(self) -> None:
        #: The samples of each topic, by virtual host and exchange, then by routing key.
        self._topics: dict[tuple[str, str], dict[str, MessageSamples]] = {}
        #: The virtual host and the exchange of the last message, and their topics by routing key.
        #: Most messages have the virtual host and the exchange of the previous message, so they
        #: cost one lookup.
        self._vhost = self._exchange = ""
        self._keys: dict[str, MessageSamples] = {}
        #: Number of samples of all topics.
        self.count: i64 = 0

    def find(self, vhost: str, exchange: str, key: str) -> MessageSamples | None:
        """Return the samples of a topic; None if the topic has no samples."""
        if vhost is not self._vhost or exchange is not self._exchange:
            self._vhost, self._exchange = vhost, exchange
            self._keys = self._topics.get((vhost, exchange), {})
        return self._keys.get(key)

    def offer(self, vhost: str, exchange: str, key: str, properties: Properties) -> None:
        """Count a message of a topic, and keep its headers if the sample chooses it."""
        known = self.find(vhost, exchange, key)
        if known is not None:
            if known.wants():
                self._keep(known, properties)
        elif self.count < SAMPLES_MAX:
            topic = "\0".join((vhost, exchange, key)).encode("utf-8", "surrogateescape")
            new = MessageSamples(zlib.crc32(topic))
            new.wants()
            if self._keep(new, properties):
                self._keys[key] = new
                self._topics[vhost, exchange] = self._keys

    def _keep(self, samples: MessageSamples, properties: Properties) -> bool:
        """Put the headers of the last counted message into `samples`.

        If the headers are too large, take back the count of the message, and return False.
        """
        sample = _sample_of(properties)
        if sample is None:
            samples.seen -= 1
            return False
        may_grow = len(samples.kept) < SAMPLES_PER_TOPIC and self.count < SAMPLES_MAX
        if samples.keep(sample, may_grow):
            self.count += 1
        return True


class WeightedSamples:
    """The samples of one topic from several parts of the topic history.

    Each sample stands for a number of messages.
    """

    def __init__(self) -> None:
        #: The samples of each part, and the number of its messages (an estimate).
        self._parts: list[tuple[MessageSamples, int]] = []

    def add(self, samples: MessageSamples, weight: int = 1) -> None:
        """Add the samples of a part of the topic history.

        The part was offered only every `weight`-th message, so each sample stands for `weight`
        times as many messages.
        """
        self._parts.append((samples, int(samples.seen) * weight))

    def __len__(self) -> int:
        """Return the number of samples."""
        return sum(len(samples.kept) for samples, _ in self._parts)

    def shares(self, messages: int) -> list[tuple[Properties, int]]:
        """Divide `messages`, the messages of the topic, among the samples.

        Return pairs of sampled properties and the number of messages for which they stand. The sum
        of the numbers is `messages`. Each part gets a share in proportion to its messages, which
        its samples divide equally.
        """
        total = sum(number for _, number in self._parts)
        shares: list[tuple[Properties, int]] = []
        before = given = 0
        for samples, size in self._parts:
            kept = list(samples.kept)
            for number, properties in enumerate(kept, 1):
                upto = messages * (before * len(kept) + size * number)
                upto //= total * len(kept)
                shares.append((properties, upto - given))
                given = upto
            before += size
        return shares


def _sample_of(properties: Properties) -> Properties | None:
    """Return those properties of a message by which exchanges may choose its destinations.

    Return None if these properties are larger than SAMPLE_BYTES, or if a header is a list or table.
    """
    sample: Properties = {}
    size: i64 = 0
    for name in _PROPERTIES:
        value = properties.get(name)
        if value is not None:
            sample[name] = value
            size += _size_of(value)
    headers = properties.get("headers")
    if isinstance(headers, dict):
        for name, value in headers.items():
            size += _VALUE_BYTES + len(name) + _size_of(value)
            if size > SAMPLE_BYTES:
                return None
        sample["headers"] = dict(headers)
    return sample if size <= SAMPLE_BYTES else None


def _size_of(value: object) -> i64:
    """Return the estimated size of a header's value in bytes; a large number for lists and tables.

    The size of a text is its number of characters.
    """
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if isinstance(value, (list, dict)):
        return SAMPLE_BYTES
    return _VALUE_BYTES
