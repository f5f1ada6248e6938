"""Restores a session's inbox after a restart, with the packet identifiers of its messages.

    number   1 2 . . 5 6   7 8 . 10 11     12 13 14 ...       a dot is a settled message
             in flight     returned        tail

The messages are restored in three groups, by their sequence numbers:

* in flight: all messages up to the last message for which the client sent a PUBREC. The client has
  received these messages.
* returned: the later messages that the client may have received. They are returned to the inbox,
  and sent again with DUP. These are the messages up to the last gap (a settled message), and at
  least the first R messages, where R is the receive maximum of the session.
* tail: all later messages. The client has received none of them.

A message keeps its sequence number in the inbox, and so its packet identifier.

After a takeover in a cluster, the formerly active node may have sent messages to the client that
the log of this node does not have. Their sequence numbers follow the last number in the log. If
another message got one of these numbers, it would have the same packet identifier. A client with
QoS 2 would then drop the message as a repetition, and a late PUBACK would settle it. So the new
active node skips as many sequence numbers as the receive maximum.

A tail cannot have a gap, so numbers can be skipped only in an inbox without a tail: the messages of
a tail are restored as returned messages instead. If the tail has more than SKIPPED_TAIL messages,
no number is skipped: messages are sent in order, so the other node cannot have sent messages after
such a tail.

The client may still hold the packet identifier of a message that no longer exists. This happens if
a crash loses the PUBREC of the message, and the message expires afterwards. The sequence numbers of
an inbox without messages therefore do not start at 1 again. In an inbox without a tail, the message
that no longer exists may have followed the last message, so as many sequence numbers as the receive
maximum are skipped. A tail needs no skip: no message that followed it was sent.
"""

from __future__ import annotations

from array import array
from typing import Final

from mypy_extensions import i64

from broker.messages.fates import UNREADABLE
from broker.queues.consumer import Delivery
from broker.store.durable import DurableStore
from broker.store.entries import MessageStored
from broker.store.layout import ANNOTATION_MODULUS
from broker.store.log_reader import LogReader
from protocols.mqtt.session.inflight import packet_identifier
from protocols.mqtt.session.session import Session

#: A tail of at most this number of messages is returned to the inbox, so that sequence numbers can
#: be skipped.
SKIPPED_TAIL: Final = 10_000


def restore_inbox(
    session: Session, store: DurableStore, positions: array[int], acknowledged: set[int]
) -> None:
    """Restore the messages of a session's inbox, and the sequence number of the next message.

    `positions` are the positions of the messages in the store; `acknowledged` are the positions of
    the messages that the client has acknowledged by a PUBREC.
    """
    inbox = session.inbox
    skipped = int(session.receive_maximum)
    shipped = store.shipping is not None
    if not positions:
        # Each stored message took a position of the store. So the sequence numbers of earlier
        # messages are normally lower than the store's next position. (They can be higher only after
        # many messages of shared subscriptions were sent again.)
        inbox.restore(positions, store.position + 1 + (skipped if shipped else 0))
        return
    reader = LogReader(store.log)
    last = _sequence(store.read_stored(reader, positions[-1]), inbox.number, 0)
    reader = LogReader(store.log)
    count = len(positions)
    in_flight = max(
        (at + 1 for at, position in enumerate(positions) if position in acknowledged), default=0
    )
    returned = max(in_flight, min(int(session.receive_maximum), count))
    if shipped and count - returned <= SKIPPED_TAIL:
        returned = count
    sequence: i64 = 0
    at = 0
    consumer = session.absent_consumer()
    while at < count:
        stored = store.read_stored(reader, positions[at])
        if stored is None:
            at += 1
            inbox.count(UNREADABLE)
            continue
        sequence = _sequence(stored, inbox.number, sequence)
        if at >= returned and last - sequence == count - 1 - at:
            break
        message = stored.for_queue(inbox.number)
        if at < in_flight:
            _put_in_flight(
                session, Delivery(message, consumer, sequence), positions[at] in acknowledged
            )
        else:
            inbox.restore_returned(message, sequence)
        at += 1
    if at < count:
        inbox.restore(positions[at:], sequence)
    else:
        inbox.skip(skipped)


def _put_in_flight(session: Session, delivery: Delivery, acknowledged: bool) -> None:
    """Put a message that the client has received into the session's in-flight window.

    `acknowledged` is True if the client has sent a PUBREC for the message.
    """
    window = session.own_window()
    window.skip_to(delivery.sequence)
    window.add(delivery)
    session.inbox.restore_unacked(delivery.sequence)
    if acknowledged:
        window.mark_released(packet_identifier(delivery.sequence), 0)


def _sequence(stored: MessageStored | None, inbox: i64, before: i64) -> i64:
    """Return the sequence number of a stored message in the inbox with the number `inbox`.

    `before` is the sequence number of the previous message; the result is higher. The store keeps
    sequence numbers modulo ANNOTATION_MODULUS. If the message cannot be read (`stored` is None), or
    its stored number is missing or wrong, return `before` + 1.
    """
    if stored is None or stored.annotations is None:
        return before + 1
    sequence: i64 = abs(stored.annotations[stored.queues.index(inbox)])
    if sequence > before:
        return sequence
    while sequence <= before:
        sequence += ANNOTATION_MODULUS
    # The numbers of two consecutive messages never differ by half the modulus or more. If they do,
    # the stored number is wrong.
    return sequence if sequence - before < ANNOTATION_MODULUS // 2 else before + 1
