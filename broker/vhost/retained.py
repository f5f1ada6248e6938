"""Retained messages: the last retained message of each topic, for new subscriptions.

A publisher marks a message as retained. The broker keeps the message until the next retained
message of the topic replaces it; a retained message with an empty payload only removes the previous
message. A new subscription gets the retained messages of all topics that match its filter:

    no wildcard    one lookup in a dict
    wildcards      a search in an index of the topics, which is built for the first such filter

The index is built and searched in slices, and the messages are sent in slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from mypy_extensions import i32, i64, mypyc_attr, u8

from broker.agenda import Agenda, Task
from broker.messages.message import Address, Message
from broker.store.contract import Store, Ticket
from broker.store.entries import RetainedSet
from matching.grammar import DEFAULT, Grammar, swap
from matching.topics import Absent, TopicIndex

#: Number of retained messages that are sent to one subscription in one turn, or that are checked
#: for expiry in one turn.
MESSAGES_PER_SLICE: int = 500
#: Largest number of topics that are put into an index in one turn. A topic takes 2.5 us.
TOPICS_PER_SLICE: Final[i64] = 1_000
#: A search that looks at matching.topics.PAUSE topics without a match counts as this number of
#: messages of a slice.
SEARCH_COST: Final[i64] = 16
#: Milliseconds between two searches for expired messages.
EXPIRY_INTERVAL_MS: Final = 10_000


@mypyc_attr(acyclic=True)
class RetainedMessage:
    """A retained message in compact form; `message` returns it as a Message.

    Including its key and its entry in the dict of topics, a RetainedMessage takes some 300 bytes
    besides the payload; a Message with its Address would take 600 bytes. `serial` numbers the
    retained messages in the order in which they came: a new subscription gets the messages that
    came before the subscription.
    """

    __slots__ = (
        "content",
        "encoding",
        "exchange",
        "expires",
        "key",
        "position",
        "qos",
        "serial",
        "size",
    )

    def __init__(self, key: str, message: Message, serial: i64) -> None:
        address = message.address
        self.key = key
        self.exchange = address.exchange
        self.content = message.content
        self.encoding = message.encoding
        self.serial: i64 = serial
        #: The position of the retained message's entry in the store.
        self.position: i64 = 0
        self.expires: i64 = message.expires
        self.size: i32 = i32(_size(message))
        self.qos: u8 = u8(message.qos)

    def message(self) -> Message:
        """Return this retained message as a Message, marked as retained."""
        message = Message(
            Address(self.exchange, self.key), self.content, self.encoding, i64(self.qos)
        )
        message.expires = self.expires
        message.retained = True
        return message


class RetainedReceiver:
    """A new subscription, as the receiver of retained messages."""

    def receive_retained(self, message: Message) -> bool:
        """Deliver a retained message. Return False if the subscription has ended."""
        raise NotImplementedError

    def backlogged(self, task: Task) -> bool:
        """True if the client has too much unread output to get more now.

        If the result is True, the receiver adds `task` to the agenda when the client has read
        enough.
        """
        raise NotImplementedError


class RetainedMessages:
    """The retained messages of one virtual host, limited in number and in total size."""

    def __init__(
        self, vhost: str, agenda: Agenda, store: Store, max_messages: int, max_size: int
    ) -> None:
        #: Total size of payloads and topics in bytes.
        self.size = 0
        #: Number of messages that were not retained because a limit was reached.
        self.refused = 0
        self._vhost = vhost
        self._agenda = agenda
        self._store = store
        self._max_messages = max_messages
        self._max_size = max_size
        self._serial = 0
        #: An index of the topics for each grammar, built for the first filter with wildcards.
        self._topics: dict[Grammar, TopicIndex[RetainedMessage]] = {}
        #: The tasks that build an index which is not complete yet.
        self._indexing: dict[Grammar, RetainedIndexing] = {}
        self._held: dict[str, RetainedMessage] = {}
        #: The messages that have an expiry time, by routing key.
        self._expiring: dict[str, RetainedMessage] = {}
        #: True if a search for expired messages is scheduled.
        self._expiry_scheduled = False

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: str) -> Message | None:
        """Return the retained message of a routing key; None if there is none."""
        held = self._held.get(key)
        return None if held is None else held.message()

    def keep(self, message: Message, ticket: Ticket | None) -> bool:
        """Replace the retained message of the topic, or remove it if the new payload is empty.

        Return False if a limit is reached. The topic then has no retained message: the former
        message is removed, because it is outdated.
        """
        key = message.address.key
        known = self._held.get(key)
        body = message.body
        if not body:
            if not self.remove(key, ticket) and ticket is not None:
                # Another publisher may have removed the message just before: wait until that change
                # is durable.
                self._store.wait_for_all(ticket)
            return True
        size = _size(message)
        total = self.size + size - (0 if known is None else int(known.size))
        if total > self._max_size or known is None and len(self._held) >= self._max_messages:
            self.refused += 1
            self.remove(key, ticket)
            return False
        self._serial += 1
        held = RetainedMessage(key if known is None else known.key, message, self._serial)
        self.size = total
        self._held[key] = held
        for grammar, index in self._topics.items():
            index.put(_topic(key, grammar), held)
        previous: i64 = 0 if known is None else known.position
        held.position = self._store.append(
            RetainedSet(self._vhost, key, message.copy(message.qos, True), previous), ticket
        )
        if message.expires > 0:
            self._expiring[key] = held
            self._schedule_expiry()
        elif self._expiring:
            self._expiring.pop(key, None)
        return True

    def remove(self, key: str, ticket: Ticket | None) -> bool:
        """Remove the retained message of a routing key. Return False if there is none."""
        known = self._held.get(key)
        if known is None:
            return False
        self._remove(key, known)
        self._store.append(RetainedSet(self._vhost, key, None, known.position), ticket)
        return True

    def _schedule_expiry(self) -> None:
        if self._expiring and not self._expiry_scheduled:
            self._expiry_scheduled = True
            self._agenda.at(
                self._agenda.now + EXPIRY_INTERVAL_MS, RetainedExpiry(self, self._agenda)
            )

    def expiring(self) -> list[str]:
        """Return the routing keys of the retained messages that have an expiry time."""
        return list(self._expiring)

    def expire(self, key: str) -> None:
        """Remove the retained message of a routing key if it has expired."""
        held = self._expiring.get(key)
        if held is not None and held.expires <= self._agenda.now:
            self._remove(key, held)
            self._store.append(RetainedSet(self._vhost, key, None, held.position), None)

    def on_expiry_done(self) -> None:
        """Schedule the next search for expired messages, because the last search is complete."""
        self._expiry_scheduled = False
        self._schedule_expiry()

    def clear(self, most: int) -> bool:
        """Remove up to `most` retained messages. Return True if there are no more retained
        messages.
        """
        for key, held in list(islice(self._held.items(), most)):
            self._remove(key, held)
            self._store.append(RetainedSet(self._vhost, key, None, held.position), None)
        return not self._held

    def restore(self, message: Message, position: i64) -> None:
        """Add a stored message when the broker starts. `position` is the position of its entry.

        The limits apply to new messages only.
        """
        self._serial += 1
        held = self._held[message.address.key] = RetainedMessage(
            message.address.key, message, self._serial
        )
        held.position = position
        self.size += held.size
        if message.expires > 0:
            self._expiring[message.address.key] = held
            self._schedule_expiry()

    def deliver(self, pattern: str, grammar: Grammar, receiver: RetainedReceiver) -> None:
        """Deliver the retained messages of all topics that match a pattern, in slices.

        The first slice is delivered now, unless the index of the topics must be built first.
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
        """Return the routing keys of all retained messages."""
        return list(self._held)

    def index(self, key: str, grammar: Grammar) -> None:
        """Add the retained message of a routing key, if there still is such a message, to the index
        of a grammar.
        """
        held = self._held.get(key)
        if held is not None:
            self._topics[grammar].put(_topic(key, grammar), held)

    def indexed(self, grammar: Grammar) -> None:
        """Mark the index of a grammar as complete: all topics were added to it."""
        del self._indexing[grammar]

    def _remove(self, key: str, held: RetainedMessage) -> None:
        self.size -= held.size
        del self._held[key]
        if self._expiring:
            self._expiring.pop(key, None)
        for grammar, index in self._topics.items():
            index.remove(_topic(key, grammar))


class RetainedIndexing(Task):
    """A task that puts all topics into the index of a grammar, in slices.

    New subscriptions wait until the index is complete.
    """

    def __init__(self, retained: RetainedMessages, agenda: Agenda, grammar: Grammar) -> None:
        self._retained = retained
        self._agenda = agenda
        self._grammar = grammar
        self._left = retained.topics()
        self._waiting: list[RetainedSending] = []

    def wait(self, sending: RetainedSending) -> None:
        """Start the task `sending` when the index is complete."""
        self._waiting.append(sending)

    def run(self) -> None:
        left: i64 = TOPICS_PER_SLICE
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
    """A task that delivers retained messages to a new subscription, in slices.

    The task pauses while the client does not read fast enough.
    """

    def __init__(
        self,
        agenda: Agenda,
        entries: Iterator[RetainedMessage | Absent],
        serial: int,
        receiver: RetainedReceiver,
    ) -> None:
        self._agenda = agenda
        self._entries = entries
        self._serial = serial
        self._receiver = receiver

    def run(self) -> None:
        left: i64 = MESSAGES_PER_SLICE
        if self._receiver.backlogged(self):
            return
        now: i64 = self._agenda.now
        for held in self._entries:
            if isinstance(held, Absent):
                left -= SEARCH_COST
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
    """A task that removes the retained messages that have expired, in slices."""

    def __init__(self, retained: RetainedMessages, agenda: Agenda) -> None:
        self._retained = retained
        self._agenda = agenda
        self._topics: list[str] | None = None

    def run(self) -> None:
        topics = self._topics
        if topics is None:
            topics = self._topics = self._retained.expiring()
        for _ in range(min(MESSAGES_PER_SLICE, len(topics))):
            self._retained.expire(topics.pop())
        if topics:
            self._agenda.later(self)
        else:
            self._retained.on_expiry_done()


def _topic(key: str, grammar: Grammar) -> str:
    return key if grammar is DEFAULT else swap(key)


def _size(message: Message) -> i64:
    """Return the size of payload and topic in bytes."""
    return message.encoding.size(message.content) + len(message.address.topic)
