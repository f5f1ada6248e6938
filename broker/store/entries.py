"""The entries that the broker appends to its store."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from broker.messages.message import AT_LEAST_ONCE, Message

#: Kinds of definitions that can hold messages. (An exchange holds delayed
#: messages, or its recent messages.)
HOLDERS: Final = ("queue", "session", "exchange")
#: The start of 2020 in Unix time (seconds). Expiry times are stored as seconds since then, at most
#: EXPIRY_SECONDS_MAX.
EXPIRY_EPOCH: Final = 1_577_836_800
EXPIRY_SECONDS_MAX: Final = 2_000_000_000


@mypyc_attr(acyclic=True)
class StoreEntry:
    """One change of the durable state.

    The fields of an entry fully determine its effect: to apply an entry, no clock and no random
    number is read. So recovery arrives at the same state.
    """


@mypyc_attr(acyclic=True)
class MessageStored(StoreEntry):
    """A persistent message, stored once, with the numbers of the queues that hold it.

    `annotations`, if given, has one number for each queue:

    - Session inbox: the sequence number of the message in the inbox. Packet identifiers are derived
      from it, so a session continues with the same identifiers after a crash. A negative number
      means that the inbox holds the QoS 2 message with QoS 1.
    - Queue with a message TTL: the time at which the message expires, in seconds since
      EXPIRY_EPOCH.
    - Other queues: 0.
    """

    def __init__(
        self, vhost: str, message: Message, queues: list[int], annotations: list[int] | None = None
    ) -> None:
        self.vhost = vhost
        self.message = message
        self.queues = queues
        self.annotations = annotations
        #: Set by `Store.prepare`, empty before. `head` is the entry, encoded as a member of a
        #: group, without its last part; `content` is that last part.
        self.head = b""
        self.content = b""

    def with_expiry(self, queue: i64, clock: i64) -> Message:
        """Return the message with the expiry time that the queue's message TTL gave it.

        An earlier expiry time of the message itself is kept. `clock` is the wall clock's time minus
        the broker clock's time, in ms.
        """
        message, serials = self.message, self.annotations
        serial: i64 = (
            serials[self.queues.index(int(queue))]
            if serials is not None and queue in self.queues
            else 0
        )
        if serial <= 0:
            return message
        expires: i64 = max(1, (serial + EXPIRY_EPOCH) * 1_000 - clock)
        if 0 < message.expires <= expires:
            return message
        lapsing = message.copy(message.qos, message.retained)
        lapsing.position = message.position
        lapsing.expires = expires
        return lapsing

    def for_queue(self, queue: i64) -> Message:
        """Return the message as this queue holds it.

        If the annotation of the queue is negative, return a copy of the message with QoS 1. Else
        return the stored message itself.
        """
        message, serials = self.message, self.annotations
        if serials is not None and queue in self.queues and serials[self.queues.index(queue)] < 0:
            lowered = message.copy(AT_LEAST_ONCE, message.retained)
            lowered.position = message.position
            return lowered
        return message


@mypyc_attr(acyclic=True)
class MessageSettled(StoreEntry):
    """The end of a message in one queue: acknowledged, expired, dropped or dead-lettered."""

    def __init__(self, queue: i64, position: i64) -> None:
        self.queue: i64 = queue
        self.position: i64 = position


@mypyc_attr(acyclic=True)
class PubrecReceived(StoreEntry):
    """A PUBREC from the client of a session inbox for the QoS 2 message at a position.

    The client has the message; only its PUBCOMP is still awaited.
    """

    def __init__(self, queue: i64, position: i64) -> None:
        self.queue: i64 = queue
        self.position: i64 = position


@mypyc_attr(acyclic=True)
class PacketIdHeld(StoreEntry):
    """A QoS 2 PUBLISH from a session's client: its packet identifier is held until the PUBREL."""

    def __init__(self, session: i64, packet_id: i64) -> None:
        self.session: i64 = session
        self.packet_id: i64 = packet_id


@mypyc_attr(acyclic=True)
class PacketIdReleased(StoreEntry):
    """A PUBREL from a session's client: the packet identifier is free again."""

    def __init__(self, session: i64, packet_id: i64) -> None:
        self.session: i64 = session
        self.packet_id: i64 = packet_id


@mypyc_attr(acyclic=True)
class StreamExtended(StoreEntry):
    """The durable end of a stream: its rows below the offset `end` are written.

    Rows from `end` on were never confirmed to a publisher; recovery removes them.
    """

    def __init__(self, stream: i64, end: i64) -> None:
        self.stream: i64 = stream
        self.end: i64 = end


@mypyc_attr(acyclic=True)
class Sequenced(StoreEntry):
    """The last sequence number of a producer, for deduplication.

    A message of the producer with this number or a lower number is a duplicate. A negative number
    means that the producer was removed. `scope` has the virtual host and the owner of the producer
    (`producer_scope`). Earlier versions of Trellis stored numbers without an owner: `scope` is then
    only the name of the virtual host, also in the entry that removes such a number.
    """

    def __init__(self, scope: str, producer: str, sequence: i64) -> None:
        self.scope = scope
        self.producer = producer
        self.sequence: i64 = sequence


def producer_scope(vhost: str, owner: str) -> str:
    """Return the scope of a user's producers in a virtual host, for a Sequenced.

    Names of virtual hosts do not contain NUL. So different pairs have different scopes, and no
    scope equals the name of a virtual host, which is the scope of producers without an owner.
    """
    return f"{vhost}\0{owner}"


def scope_parts(scope: str) -> tuple[str, str | None]:
    """Return the virtual host and the owner of a scope; the owner is None if there is none."""
    vhost, separator, owner = scope.partition("\0")
    return vhost, owner if separator else None


@mypyc_attr(acyclic=True)
class DeliveryMark(StoreEntry):
    """The delivery mark of a queue: messages at positions up to `mark` may have been delivered.

    A queue delivers no message above its durable delivery mark. `rank` is 0, except in a priority
    queue, which has a mark for each priority. A mark replaces all earlier marks of the same queue
    and rank.
    """

    def __init__(self, queue: i64, rank: i64, mark: i64) -> None:
        self.queue: i64 = queue
        self.rank: i64 = rank
        self.mark: i64 = mark


@mypyc_attr(acyclic=True)
class DeliveryCounted(StoreEntry):
    """The number of times that the message at a position was returned to a queue.

    This count has priority over the queue's delivery mark: with the count 0, the message was never
    delivered.
    """

    def __init__(self, queue: i64, position: i64, count: i64) -> None:
        self.queue: i64 = queue
        self.position: i64 = position
        self.count: i64 = count


class EntryGroup(StoreEntry):
    """Several entries of which a crash leaves all or none.

    Examples: a transaction, or a dead letter with the settlement of the original. The entries have
    consecutive positions: each entry needs a position of its own, because a settlement names its
    message by position. None of the entries is an EntryGroup, a Defined or an Undefined.
    """

    def __init__(self, entries: list[StoreEntry]) -> None:
        self.entries = entries


class Defined(StoreEntry):
    """A new or changed definition: exchange, queue, binding, session, subscription, ...

    `name` is unique within its kind and vhost. The position of the entry becomes the number of the
    queue or session inbox, so a queue that is deleted and declared again gets another number.
    """

    def __init__(self, vhost: str, kind: str, name: str, definition: dict[str, object]) -> None:
        self.vhost = vhost
        self.kind = kind
        self.name = name
        self.definition = definition


class Undefined(StoreEntry):
    """The removal of a definition.

    `number` is the number of the removed queue, inbox or exchange if it can hold messages, else 0.
    """

    def __init__(self, vhost: str, kind: str, name: str, number: i64 = 0) -> None:
        self.vhost = vhost
        self.kind = kind
        self.name = name
        self.number: i64 = number


class RetainedSet(StoreEntry):
    """The retained message of a topic; `message` is None if it was removed.

    `previous` is the position of the entry with the topic's last retained message: 0 if the topic
    had none, -1 if the position is unknown. `previous` is not written to the log: the store needs
    it to know which files of the log are dead.
    """

    def __init__(self, vhost: str, key: str, message: Message | None, previous: i64 = -1) -> None:
        self.vhost = vhost
        self.key = key
        self.message = message
        self.previous: i64 = previous
