"""Recognizes the publications of a bridge that a broker of MQTT 3.1.1 sends back to the bridge.

MQTT 3.1.1 has neither No Local nor user properties, so a broker sends a bridge its own publications
if they match the bridge's subscriptions, and no field of these messages tells that the bridge has
published them. The bridge takes a received message for the echo of its own publication if it has
published the same topic and payload, and has not received the echo yet. If a client publishes an
equal message at the same time, the bridge may take either message for the echo. The bridge then
copies the other message, which is equal.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from hashlib import blake2b
from typing import Final

from broker.eviction import evict_oldest
from trellis.bridge.topic_map import TopicMap

#: Largest number of publications whose echo is expected. If there are more, the bridge forgets the
#: oldest one, and copies its echo like a message of another client.
ECHOES_MAX: Final = 20_000
#: Seconds after which the bridge does not expect the echo of a publication any more: the broker has
#: dropped it.
ECHO_SECONDS: Final = 120.0
#: Largest number of topics for which the last retained publication of the bridge is known.
RETAINED_MAX: Final = 10_000
#: Bytes of the hash of a payload.
HASH_SIZE: Final = 16

_Key = tuple[str, bytes]


class Echoes:
    """The publications of a bridge at one broker whose echo the bridge has not received yet."""

    def __init__(self, subscribed: TopicMap) -> None:
        """Prepare for a broker at which the bridge subscribes to the filters of `subscribed`."""
        self._subscribed = subscribed
        #: Publications by number, in order: topic and hash, and the time when each is forgotten.
        self._expected: OrderedDict[int, tuple[_Key, float]] = OrderedDict()
        #: Numbers of the publications with a topic and hash.
        self._numbers: dict[_Key, deque[int]] = {}
        self._next = 0
        #: The hash of the last retained publication of each topic.
        self._retained: OrderedDict[str, bytes] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of expected echoes."""
        return len(self._expected)

    def expect(self, topic: str, payload: bytes, retain: bool, now: float) -> None:
        """Expect the echo of a publication, if the bridge subscribes to its topic.

        `retain` is True if the message was published with RETAIN. `now` is a monotonic time in
        seconds.
        """
        if self._subscribed.destination(topic) is None:
            return
        key = topic, blake2b(payload, digest_size=HASH_SIZE).digest()
        self._expire(now)
        if len(self._expected) >= ECHOES_MAX:
            self._forget_oldest()
        self._expected[self._next] = key, now + ECHO_SECONDS
        self._numbers.setdefault(key, deque()).append(self._next)
        self._next += 1
        if retain:
            self._retained[topic] = key[1]
            self._retained.move_to_end(topic)
            if len(self._retained) > RETAINED_MAX:
                evict_oldest(self._retained)

    def is_echo(self, topic: str, payload: bytes, retain: bool, now: float) -> bool:
        """True if a received message is a publication of the bridge itself.

        `retain` is True for a retained message: the broker sends the retained message as the answer
        to a subscription, in addition to the echo. `now` is a monotonic time in seconds.
        """
        hashed = blake2b(payload, digest_size=HASH_SIZE).digest()
        if retain:
            return self._retained.get(topic) == hashed
        self._expire(now)
        numbers = self._numbers.get((topic, hashed))
        if not numbers:
            return False
        del self._expected[numbers.popleft()]
        if not numbers:
            del self._numbers[topic, hashed]
        return True

    def on_session_lost(self) -> None:
        """Expect no echoes any more: the broker has lost the session, and with it the messages."""
        self._expected.clear()
        self._numbers.clear()

    def _expire(self, now: float) -> None:
        while self._expected and next(iter(self._expected.values()))[1] <= now:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        [(_, (key, _))] = evict_oldest(self._expected)
        numbers = self._numbers[key]
        numbers.popleft()
        if not numbers:
            del self._numbers[key]
