"""Retained messages: the last one of every topic, for those who subscribe later."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda, Task
from broker.message import Message
from broker.store.contract import RetainedSet, Store, Ticket
from matching.grammar import DEFAULT, Grammar, swap
from matching.topics import TopicIndex

#: Retained messages that one subscription is sent in one turn, or that are looked at because they may have expired.
SLICE: int = 500
#: Milliseconds between two looks at those that expire.
LOOK: Final = 10_000


class Held:
    """A retained message, and when it came: a subscription gets what was there before it."""

    __slots__ = ("message", "serial", "size")

    def __init__(self, message: Message, serial: int, size: int) -> None:
        self.message = message
        self.serial = serial
        self.size = size


class Receiver:
    """The role of one who subscribes."""

    def receive_retained(self, message: Message) -> bool:
        """Take one; False when no more are wanted."""
        raise NotImplementedError

    def crowded(self, task: Task) -> bool:
        """Whether there is no room for more now; then the receiver puts the task on the agenda when there is."""
        raise NotImplementedError


class Retained:
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
        self._topics: dict[Grammar, TopicIndex[Held]] = {}
        self._held: dict[str, Held] = {}
        #: Topics whose messages expire, and whether somebody looks after them.
        self._mortal: dict[str, Held] = {}
        self._watched = False

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: str) -> Message | None:
        """The retained message of a routing key."""
        held = self._held.get(key)
        return None if held is None else held.message

    def keep(self, message: Message, ticket: Ticket | None) -> bool:
        """Remember the last message of its topic; an empty body forgets it. False when there is no room: then nothing
        is remembered of the topic."""
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
        size = len(body) + len(message.address.topic)
        octets = self.octets + size - (0 if known is None else known.size)
        if octets > self._most_octets or known is None and len(self._held) >= self._most:
            self.refused += 1
            if known is not None:
                # It is not the last message of its topic any more.
                self._remove(key, known)
                self._store.append(RetainedSet(self._vhost, key, None), ticket)
            return False
        self._serial += 1
        held = Held(message.copy(message.assurance, True), self._serial, size)
        self.octets = octets
        self._held[key] = held
        for grammar, index in self._topics.items():
            index.put(_topic(key, grammar), held)
        self._store.append(RetainedSet(self._vhost, key, held.message), ticket)
        if message.expires > 0:
            self._mortal[key] = held
            self._watch()
        elif self._mortal:
            self._mortal.pop(key, None)
        return True

    def _watch(self) -> None:
        if self._mortal and not self._watched:
            self._watched = True
            self._agenda.at(self._agenda.now + LOOK, Fading(self, self._agenda))

    def mortal(self) -> list[str]:
        """Topics whose messages expire one day."""
        return list(self._mortal)

    def expire(self, key: str) -> None:
        """Forget the topic's message if its time is over."""
        held = self._mortal.get(key)
        if held is not None and held.message.expires <= self._agenda.now:
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
        """It was the last message of its topic when the broker stopped. The bounds of today hold for new ones."""
        size = len(message.body) + len(message.address.topic)
        self._serial += 1
        held = self._held[message.address.key] = Held(message, self._serial, size)
        self.octets += size
        if message.expires > 0:
            self._mortal[message.address.key] = held
            self._watch()

    def deliver(self, pattern: str, grammar: Grammar, receiver: Receiver) -> None:
        """Give the receiver what the pattern matches, in slices: the first one now."""
        if self._held:
            Sending(self._agenda, self._matching(pattern, grammar), self._serial, receiver).run()

    def _matching(self, pattern: str, grammar: Grammar) -> Iterator[Held]:
        index = self._topics.get(grammar)
        if index is None:
            index = self._topics[grammar] = TopicIndex(grammar)
            for key, held in self._held.items():
                index.put(_topic(key, grammar), held)
        return index.walk(pattern)

    def _remove(self, key: str, held: Held) -> None:
        self.octets -= held.size
        del self._held[key]
        if self._mortal:
            self._mortal.pop(key, None)
        for grammar, index in self._topics.items():
            index.remove(_topic(key, grammar))


class Sending(Task):
    """Retained messages on their way to a new subscription, as fast as it takes them."""

    def __init__(self, agenda: Agenda, found: Iterator[Held], serial: int, receiver: Receiver) -> None:
        self._agenda = agenda
        self._found = found
        self._serial = serial
        self._receiver = receiver

    def run(self) -> None:
        left: i64 = SLICE
        if self._receiver.crowded(self):
            return
        now: i64 = self._agenda.now
        for held in self._found:
            if 0 < held.message.expires <= now:
                continue
            if held.serial <= self._serial and not self._receiver.receive_retained(held.message):
                return
            left -= 1
            if left == 0:
                self._agenda.later(self)
                return
            if self._receiver.crowded(self):
                return


class Fading(Task):
    """Looks for retained messages that have expired, some a turn."""

    def __init__(self, retained: Retained, agenda: Agenda) -> None:
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
