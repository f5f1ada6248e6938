"""Retained messages: the last one of every topic, for those who subscribe later."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from mypy_extensions import i32, i64, mypyc_attr, u8

from broker.agenda import Agenda, Task
from broker.messages.message import Address, Message
from broker.store.contract import RetainedSet, Store, Ticket
from matching.grammar import DEFAULT, Grammar, swap
from matching.topics import Absent, TopicIndex

#: Retained messages that one subscription is sent in one turn, or that are looked at because they
#: may have expired.
SLICE: int = 500
#: Topics that are put into an index in one turn (2.5 us each).
INDEXED: Final[i64] = 1_000
#: What of a slice is used up when some topics (matching.topics.PAUSE) were looked at, and none was
#: wanted.
SEARCHED: Final[i64] = 16
#: Milliseconds between two looks at those that expire.
LOOK: Final = 10_000


@mypyc_attr(acyclic=True)
class RetainedMessage:
    """A retained message, and when it came: a subscription gets what was there before it.

    Only what is needed to make the message again: with key, content and its place in the dict of
    topics it takes some 300 octets beside the payload; a Message with its Address would take twice
    that.
    """

    __slots__ = ("content", "encoding", "exchange", "expires", "key", "qos", "serial", "size")

    def __init__(self, key: str, message: Message, serial: i64) -> None:
        address = message.address
        self.key = key
        self.exchange = address.exchange
        self.content = message.content
        self.encoding = message.encoding
        self.serial: i64 = serial
        self.expires: i64 = message.expires
        self.size: i32 = i32(_size(message))
        self.qos: u8 = u8(message.qos)

    def message(self) -> Message:
        """As it was published."""
        message = Message(
            Address(self.exchange, self.key), self.content, self.encoding, i64(self.qos)
        )
        message.expires = self.expires
        message.retained = True
        return message


class RetainedReceiver:
    """The role of one who subscribes."""

    def receive_retained(self, message: Message) -> bool:
        """Take one; False when no more are wanted."""
        raise NotImplementedError

    def backlogged(self, task: Task) -> bool:
        """Whether there is no room for more now; then the receiver puts the task on the agenda when
        there is.
        """
        raise NotImplementedError


class RetainedMessages:
    """Topics of one virtual host with their last message. Bounded in messages and octets."""

    def __init__(self, vhost: str, agenda: Agenda, store: Store, most: int, octets: int) -> None:
        self.octets = 0
        #: Messages that were not retained because the bounds were reached.
        self.refused = 0
        self._vhost = vhost
        self._agenda = agenda
        self._store = store
        self._most = most
        self._most_octets = octets
        self._serial = 0
        #: Made for the first pattern in a grammar, and kept.
        self._topics: dict[Grammar, TopicIndex[RetainedMessage]] = {}
        #: Those that are not whole yet.
        self._indexing: dict[Grammar, RetainedIndexing] = {}
        self._held: dict[str, RetainedMessage] = {}
        #: Topics whose messages expire, and whether somebody looks after them.
        self._mortal: dict[str, RetainedMessage] = {}
        self._watched = False

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: str) -> Message | None:
        """The retained message of a routing key."""
        held = self._held.get(key)
        return None if held is None else held.message()

    def keep(self, message: Message, ticket: Ticket | None) -> bool:
        """Remember the last message of its topic; an empty body forgets it. False when there is no
        room: then nothing is remembered of the topic."""
        key = message.address.key
        known = self._held.get(key)
        body = message.body
        if not body:
            if known is not None:
                self._remove(key, known)
                self._store.append(RetainedSet(self._vhost, key, None), ticket)
            elif ticket is not None:
                self._store.wait_for_all(ticket)  # Another one forgot it, perhaps just now.
            return True
        size = _size(message)
        octets = self.octets + size - (0 if known is None else int(known.size))
        if octets > self._most_octets or known is None and len(self._held) >= self._most:
            self.refused += 1
            if known is not None:
                # It is not the last message of its topic any more.
                self._remove(key, known)
                self._store.append(RetainedSet(self._vhost, key, None), ticket)
            return False
        self._serial += 1
        held = RetainedMessage(key if known is None else known.key, message, self._serial)
        self.octets = octets
        self._held[key] = held
        for grammar, index in self._topics.items():
            index.put(_topic(key, grammar), held)
        self._store.append(RetainedSet(self._vhost, key, message.copy(message.qos, True)), ticket)
        if message.expires > 0:
            self._mortal[key] = held
            self._watch()
        elif self._mortal:
            self._mortal.pop(key, None)
        return True

    def _watch(self) -> None:
        if self._mortal and not self._watched:
            self._watched = True
            self._agenda.at(self._agenda.now + LOOK, RetainedExpiry(self, self._agenda))

    def mortal(self) -> list[str]:
        """Topics whose messages expire one day."""
        return list(self._mortal)

    def expire(self, key: str) -> None:
        """Forget the topic's message if its time is over."""
        held = self._mortal.get(key)
        if held is not None and held.expires <= self._agenda.now:
            self._remove(key, held)
            self._store.append(RetainedSet(self._vhost, key, None), None)

    def watch_again(self) -> None:
        """All of them have been looked at."""
        self._watched = False
        self._watch()

    def clear(self, most: int) -> bool:
        """Forget so many; whether none are left."""
        for key, held in list(islice(self._held.items(), most)):
            self._remove(key, held)
            self._store.append(RetainedSet(self._vhost, key, None), None)
        return not self._held

    def restore(self, message: Message) -> None:
        """It was the last message of its topic when the broker stopped.

        The bounds of today hold for new ones.
        """
        self._serial += 1
        held = self._held[message.address.key] = RetainedMessage(
            message.address.key, message, self._serial
        )
        self.octets += held.size
        if message.expires > 0:
            self._mortal[message.address.key] = held
            self._watch()

    def deliver(self, pattern: str, grammar: Grammar, receiver: RetainedReceiver) -> None:
        """Give the receiver what the pattern matches, in slices: the first one now, unless the
        topics have to be indexed before.
        """
        if not self._held:
            return
        if not grammar.is_pattern(pattern):
            one = self._held.get(_topic(pattern, grammar))
            if one is not None:
                RetainedSending(self._agenda, iter([one]), self._serial, receiver).run()
            return
        index = self._topics.get(grammar)
        if index is None:
            index = self._topics[grammar] = TopicIndex(grammar)
            self._indexing[grammar] = RetainedIndexing(self, self._agenda, grammar)
            self._indexing[grammar].run()
        sending = RetainedSending(self._agenda, index.browse(pattern), self._serial, receiver)
        indexing = self._indexing.get(grammar)
        if indexing is None:
            sending.run()
        else:
            indexing.wait(sending)

    def topics(self) -> list[str]:
        """Keys of all that is retained."""
        return list(self._held)

    def index(self, key: str, grammar: Grammar) -> None:
        """Let patterns find the topic, if it is still there."""
        held = self._held.get(key)
        if held is not None:
            self._topics[grammar].put(_topic(key, grammar), held)

    def indexed(self, grammar: Grammar) -> None:
        """All topics are in the index."""
        del self._indexing[grammar]

    def _remove(self, key: str, held: RetainedMessage) -> None:
        self.octets -= held.size
        del self._held[key]
        if self._mortal:
            self._mortal.pop(key, None)
        for grammar, index in self._topics.items():
            index.remove(_topic(key, grammar))


class RetainedIndexing(Task):
    """Puts all topics into the index of a grammar, some a turn.

    Those who subscribe meanwhile wait.
    """

    def __init__(self, retained: RetainedMessages, agenda: Agenda, grammar: Grammar) -> None:
        self._retained = retained
        self._agenda = agenda
        self._grammar = grammar
        self._left = retained.topics()
        self._waiting: list[RetainedSending] = []

    def wait(self, sending: RetainedSending) -> None:
        self._waiting.append(sending)

    def run(self) -> None:
        left: i64 = INDEXED
        topics = self._left
        while topics and left > 0:
            self._retained.index(topics.pop(), self._grammar)
            left -= 1
        if topics:
            self._agenda.later(self)
            return
        self._retained.indexed(self._grammar)
        for sending in self._waiting:
            self._agenda.later(sending)


class RetainedSending(Task):
    """Retained messages on their way to a new subscription, as fast as it takes them."""

    def __init__(
        self,
        agenda: Agenda,
        found: Iterator[RetainedMessage | Absent],
        serial: int,
        receiver: RetainedReceiver,
    ) -> None:
        self._agenda = agenda
        self._found = found
        self._serial = serial
        self._receiver = receiver

    def run(self) -> None:
        left: i64 = SLICE
        if self._receiver.backlogged(self):
            return
        now: i64 = self._agenda.now
        for held in self._found:
            if isinstance(held, Absent):
                left -= SEARCHED
            elif 0 < held.expires <= now:
                left -= 1
            elif held.serial <= self._serial and not self._receiver.receive_retained(
                held.message()
            ):
                return
            else:
                left -= 1
            if left <= 0:
                self._agenda.later(self)
                return
            if self._receiver.backlogged(self):
                return


class RetainedExpiry(Task):
    """Looks for retained messages that have expired, some a turn."""

    def __init__(self, retained: RetainedMessages, agenda: Agenda) -> None:
        self._retained = retained
        self._agenda = agenda
        self._topics: list[str] | None = None

    def run(self) -> None:
        topics = self._topics
        if topics is None:
            topics = self._topics = self._retained.mortal()
        for _ in range(min(SLICE, len(topics))):
            self._retained.expire(topics.pop())
        if topics:
            self._agenda.later(self)
        else:
            self._retained.watch_again()


def _topic(key: str, grammar: Grammar) -> str:
    return key if grammar is DEFAULT else swap(key)


def _size(message: Message) -> i64:
    """Octets of payload and topic."""
    return message.encoding.size(message.content) + len(message.address.topic)
