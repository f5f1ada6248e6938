"""The topic history: the topics of the last hour, each with its number of messages.

A topic here is a virtual host, an exchange and a routing key. The history serves trials of changed
bindings (binding_trial.py).

    Route.recent --evicted, renewed, or collected once a minute--> TopicHistory --> `trellis route
                                                                                    --add, --remove`

The history is divided into slots of SLOT_SECONDS. It keeps the last SLOTS slots, so it covers the
last 60 to 70 minutes. A slot has the first TOPICS_MAX topics of its period; messages of further
topics are counted together, as `left_out`. Each Route counts its messages anyway, and the history
adds up these counts. So the history does no work for a single message.

For topics that pass an exchange which looks at headers, the history also has samples of the headers
(header_samples.py).

Messages that are published to a queue by its name (through the default exchange) are counted apart,
by queue. These counts show which messages are lost if the queue is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

from broker.messages.message import Properties
from broker.routing.exchanges.consistent_hash import mixed
from broker.routing.header_samples import HeaderSamples, WeightedSamples

#: Time that a slot covers, in seconds, and number of slots.
SLOT_SECONDS: Final = 600
SLOTS: Final = 7
#: Largest number of topics of one slot. With short names, a topic takes about 200 bytes.
TOPICS_MAX: Final[i64] = 5_000
#: Largest number of queues of one slot to which messages were published by the queue's name.
QUEUES_MAX: Final[i64] = 5_000
#: Longest routing key that is remembered, in characters.
KEY_MAX: Final = 512
#: In a slot, the first ALL_OFFERED messages are offered as samples of headers, then one message in
#: OFFERED_SHARE, chosen at random. So a busy headers exchange pays little for samples. Each offered
#: later message stands for OFFERED_SHARE messages in estimates.
ALL_OFFERED: Final[i64] = 1_000
OFFERED_SHARE: Final[i64] = 16
#: Number of topics that a reader handles in one step.
TOPICS_PER_STEP: Final = 256

#: Numbers of messages by routing key.
KeyCounts = dict[str, int]


class HistorySlot:
    """The topics and numbers of messages of one period of SLOT_SECONDS.

    `began` is the start of the period, in seconds since 1970.
    """

    def __init__(self, began: float) -> None:
        self.began = began
        #: Numbers of messages by (virtual host, exchange), then by routing key.
        self.published: dict[tuple[str, str], KeyCounts] = {}
        #: Numbers of messages that reached no queue and no session, by the keys of `published`.
        self.unroutable: dict[tuple[str, str], KeyCounts] = {}
        #: Number of topics in both dicts.
        self.topics: i64 = 0
        #: Numbers of messages that were published to a queue by its name: by virtual host, then by
        #: queue.
        self.direct: dict[str, KeyCounts] = {}
        #: Number of queues in `direct`.
        self.queues: i64 = 0
        #: Number of messages whose topic is not remembered.
        self.left_out: i64 = 0
        #: Headers of some messages of the topics that pass an exchange which looks at headers: of
        #: the first ALL_OFFERED messages of the slot, and of later messages.
        self.first_samples = HeaderSamples()
        self.later_samples = HeaderSamples()
        #: Number of messages of topics that pass an exchange which looks at headers.
        self.by_headers: i64 = 0
        #: The number of the next message that is offered, after the first ALL_OFFERED messages.
        self.next_offer: i64 = ALL_OFFERED + 1


class TopicHistory:
    """The topics of the last hour, each with its number of messages.

    `slots` has the oldest slot first; new messages are counted in the last slot.
    """

    def __init__(self) -> None:
        self.slots = [HistorySlot(0.0)]
        #: Number of all messages whose topic was not remembered.
        self.left_out: i64 = 0

    def __len__(self) -> int:
        """Return the number of topics, added over the 10-minute slots of the history.

        So a topic counts once for each slot in which messages were published to it.
        """
        return sum(int(slot.topics) for slot in self.slots)

    @property
    def queues(self) -> int:
        """The number of queues to which messages were published by name, added over all slots.

        A slot covers 10 minutes. A queue counts once for each slot in which it got such a message.
        """
        return sum(int(slot.queues) for slot in self.slots)

    def advance(self, wall: float) -> None:
        """Begin a new slot if the present one is over, and drop slots older than the last SLOTS.

        `wall` is the present time, in seconds since 1970.
        """
        began = self.slots[-1].began
        if began == 0.0:
            self.slots[-1].began = wall
        elif not 0 <= wall - began < SLOT_SECONDS:
            self.slots.append(HistorySlot(wall))
            del self.slots[:-SLOTS]

    def add(self, vhost: str, exchange: str, key: str, messages: i64) -> None:
        """Add `messages` to the number of messages that were published to a topic."""
        slot = self.slots[-1]
        if not _add(slot, slot.published, (vhost, exchange), key, messages):
            slot.left_out += messages
            self.left_out += messages

    def add_direct(self, vhost: str, queue: str, messages: i64) -> None:
        """Add `messages` to the number of messages that were published to a queue by its name."""
        slot = self.slots[-1]
        counts = slot.direct.get(vhost)
        if counts is None:
            counts = slot.direct[vhost] = {}
        known = counts.get(queue, 0)
        if known == 0:
            if slot.queues >= QUEUES_MAX:
                slot.left_out += messages
                self.left_out += messages
                return
            slot.queues += 1
        counts[queue] = known + int(messages)

    def offer(self, vhost: str, exchange: str, key: str, properties: Properties) -> None:
        """Count a message whose exchange looks at headers, and offer its headers as a sample.

        The first ALL_OFFERED messages of a slot are offered, then one in OFFERED_SHARE at random.
        """
        slot = self.slots[-1]
        slot.by_headers += 1
        number: i64 = slot.by_headers
        if number <= ALL_OFFERED:
            slot.first_samples.offer(vhost, exchange, key, properties)
        elif number >= slot.next_offer:
            # The distance to the next offered message varies from 1 to 31: with a fixed distance,
            # headers that repeat with the same period might never be sampled.
            slot.next_offer = number + 1 + mixed(number & 0xFFFF_FFFF, 0) % (2 * OFFERED_SHARE - 1)
            slot.later_samples.offer(vhost, exchange, key, properties)

    def add_unroutable(self, vhost: str, exchange: str, key: str, messages: i64) -> None:
        """Add `messages` to the number of a topic's messages that reached no destination."""
        slot = self.slots[-1]
        _add(slot, slot.unroutable, (vhost, exchange), key, messages)


class HistorySum:
    """The numbers of messages by topic, summed over all slots of a TopicHistory.

    If `unroutable` is True, only messages that reached no queue and no session are summed. The
    attribute `counts` is valid once the iterator `steps` is exhausted.
    """

    def __init__(self, history: TopicHistory, unroutable: bool = False) -> None:
        self._slots = list(history.slots)
        self._unroutable = unroutable
        #: The beginning of the history, in seconds since 1970.
        self.since = self._slots[0].began
        #: Number of messages whose topics are not remembered.
        self.left_out = sum(int(slot.left_out) for slot in self._slots)
        #: Numbers of messages by (virtual host, exchange), then by routing key.
        self.counts: dict[tuple[str, str], KeyCounts] = {}

    def samples(self, vhost: str, exchange: str, key: str) -> WeightedSamples:
        """Return the sampled headers of the messages of a topic; empty if there are no samples."""
        samples = WeightedSamples()
        for slot in self._slots:
            first = slot.first_samples.find(vhost, exchange, key)
            later = slot.later_samples.find(vhost, exchange, key)
            if first is not None:
                samples.add(first)
            if later is not None:
                samples.add(later, int(OFFERED_SHARE))
        return samples

    def direct(self, vhost: str, queue: str) -> int:
        """Return the number of messages that were published to a queue by its name."""
        return sum(slot.direct.get(vhost, {}).get(queue, 0) for slot in self._slots)

    def steps(self) -> Iterator[None]:
        """Sum the slots; each `next` on the iterator does one bounded step of the work."""
        for slot in self._slots:
            places = slot.unroutable if self._unroutable else slot.published
            for place, keys in list(places.items()):
                sums = self.counts.setdefault(place, {})
                for number, (key, messages) in enumerate(list(keys.items())):
                    if number % TOPICS_PER_STEP == TOPICS_PER_STEP - 1:
                        yield None
                    sums[key] = sums.get(key, 0) + messages
                yield None


def _add(
    slot: HistorySlot,
    places: dict[tuple[str, str], KeyCounts],
    place: tuple[str, str],
    key: str,
    messages: i64,
) -> bool:
    """Count messages of a topic in a slot. Return False if the slot cannot count them.

    `places` are the counts of the slot: `published` or `unroutable`. `place` is the virtual host
    and the exchange. Messages of a new topic are not counted if the slot has TOPICS_MAX topics, or
    if the routing key is longer than KEY_MAX.
    """
    keys = places.get(place)
    known = 0 if keys is None else keys.get(key, 0)
    if keys is None or known == 0:
        if slot.topics >= TOPICS_MAX or len(key) > KEY_MAX:
            return False
        slot.topics += 1
        if keys is None:
            keys = places[place] = {}
    keys[key] = known + int(messages)
    return True
