"""A session's inbox after a restart: what is in its client's hands, what may be, and what certainly
is not.

    positions   1 2 . . 5 6 7 8 9 ...           rising; a gap is a message that was settled before others
                in flight | returned | tail     up to the last PUBREC | as many as may be in flight, and all gaps | the rest

A message has the same place in the inbox as before, hence the same packet identifier.
"""

from __future__ import annotations

from array import array

from mypy_extensions import i64

from broker.queues.consumer import Delivery
from broker.store.contract import MessageStored
from broker.store.durable import DurableStore
from broker.store.layout import ANNOTATION_MODULUS
from protocols.mqtt.session.inflight import packet_identifier
from protocols.mqtt.session.session import Session


def restore_inbox(
    session: Session, store: DurableStore, positions: array[int], stepped: set[int]
) -> None:
    """Give the session its messages back; `stepped` are the positions of those that it said it has."""
    inbox = session.inbox
    reader = store.log.reader()
    last = _order(store.read_stored(reader, positions[-1]), inbox.number, 0)
    reader = store.log.reader()
    count = len(positions)
    in_hand = max(
        (at + 1 for at, position in enumerate(positions) if position in stepped), default=0
    )
    some = max(in_hand, min(int(session.receive_maximum), count))
    order: i64 = 0
    at = 0
    holder = session.absent_consumer()
    while at < count:
        kept = store.read_stored(reader, positions[at])
        if kept is None:
            at += 1
            inbox.count_unreadable()
            continue
        order = _order(kept, inbox.number, order)
        if at >= some and last - order == count - 1 - at:
            break
        if at < in_hand:
            _take(
                session,
                Delivery(kept.for_queue(inbox.number), holder, order),
                positions[at] in stepped,
            )
        else:
            inbox.restore_returned(kept.for_queue(inbox.number), order)
        at += 1
    if at < count:
        inbox.restore(positions[at:], order)


def _take(session: Session, delivery: Delivery, stepped: bool) -> None:
    """It was in the client's hands."""
    window = session.own_window()
    window.skip_to(delivery.sequence)
    window.add(delivery)
    session.inbox.restore_unacked(delivery.sequence)
    if stepped:
        window.mark_released(packet_identifier(delivery.sequence), 0)


def _order(kept: MessageStored | None, inbox: i64, before: i64) -> i64:
    """The place in the inbox, which is behind that of the message before."""
    if kept is None or kept.annotations is None:
        return before + 1
    order: i64 = abs(kept.annotations[kept.queues.index(inbox)])
    if order > before:
        return order
    while order <= before:
        order += ANNOTATION_MODULUS  # They began anew ...
    return (
        order if order - before < ANNOTATION_MODULUS // 2 else before + 1
    )  # ... or this is none of ours: nobody walks so far.
