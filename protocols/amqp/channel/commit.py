"""Carries out tx.commit: first the preparation, which has no effect, in slices; then all effects in
one turn of the event loop.

    prepare    slices   find out which queues of each publication still exist; check permissions
                        that have changed; encode its record for the store
    apply      at once  all publications, acknowledgements and rejections: one group of store
                        records, so that after a crash either all or none of them have happened
    finish     slices   requeue deliveries as the client asked (no store record); free memory
    reply               tx.commit-ok

A small transaction needs one turn. While a larger one is carried out, the connection is stalled, so
the client's later methods wait and other clients are served. A channel that closes before `apply`
leaves no effect.

A queue may be deleted, or be replaced because of a policy, between two slices. Then `prepare`
starts again, at most RESTARTS times. After another such change, `apply` itself prepares the
publications to this queue again. If the permissions of the user change between two slices,
`prepare` starts again, too. If the user may not publish one of the messages any more, the channel
is closed, and the transaction has no effect.
"""

from __future__ import annotations

from typing import Final

import pamqp.commands as spec
from mypy_extensions import i64

from broker.agenda import BulkTask
from broker.routing.plan_search import RESTARTS
from broker.routing.resolved_targets import TargetPlans
from broker.store.contract import Store, Ticket
from protocols.amqp.channel.connection_interface import ConnectionInterface
from protocols.amqp.channel.consumer import requeue
from protocols.amqp.channel.publisher import ChannelPublisher
from protocols.amqp.channel.receiver import ChannelReceiver
from protocols.amqp.channel.settlement import HeldQueues, carry_out
from protocols.amqp.channel.transaction import REQUEUED, TransactedPublication
from protocols.amqp.codec.frames import encode
from protocols.amqp.errors import AmqpError
from protocols.end_reasons import INTERNAL_ERROR, INTERNAL_ERROR_TEXT

#: Limit of one slice: the number of publications and copies to prepare, of publications to free, or
#: of deliveries to requeue. Such a slice takes up to 2 ms.
PARTS_PER_SLICE: Final = 2_000
#: Class and method of tx.commit, for channel.close.
_COMMIT: Final = spec.Tx.Commit.index


class Commit(BulkTask):
    """A task that carries out the commit of one transaction.

    The publications are prepared in slices. Then all effects happen in one turn of the event loop.
    """

    def __init__(
        self,
        connection: ConnectionInterface,
        publisher: ChannelPublisher,
        receiver: ChannelReceiver,
        store: Store,
        ticket: Ticket,
        publications: list[TransactedPublication],
        settlements: dict[int, int],
    ) -> None:
        """Create the commit of these publications and settlements.

        `settlements` maps delivery tags to ACKED, REJECTED or REQUEUED. `ticket` counts the records
        that the commit appends to the store; tx.commit-ok is sent once all of them are durable.
        """
        super().__init__(connection.agenda)
        self._connection = connection
        self._publisher = publisher
        self._receiver = receiver
        self._store = store
        self._ticket = ticket
        self._publications = publications
        self._settlements = settlements
        self._plans = TargetPlans()
        #: The user, with the permissions with which the prepared publications were checked.
        self._identity = publisher.context.identity
        #: Number of publications that are already prepared.
        self._prepared: i64 = 0
        #: True if all publications of a large transaction are prepared, so that the next slice does
        #: only the step `apply`.
        self._alone = False
        self._restarts = 0
        self._applied = False
        #: Delivery tags that are still to be requeued, the lowest one last.
        self._requeued: list[int] = []
        self._held = HeldQueues()
        #: True if the channel has closed: no reply is sent.
        self._abandoned = False
        #: True once the commit is complete.
        self._finished = False

    def start(self) -> None:
        """Carry out the first slice of the commit.

        If the commit is then complete, send tx.commit-ok. If parts of it remain, stall the
        connection, and carry out the other slices in later turns of the event loop.

        Raises AmqpError if the user may not publish one of the messages any more.
        """
        if self._advance():
            self._reply()
        else:
            self._connection.stall()
            self.schedule()

    def abandon(self) -> None:
        """Cancel the parts of the commit that have had no effect yet, and send no reply, because
        the channel has closed.
        """
        self._abandoned = True
        self._requeued = []
        self._held.free()

    def has_work(self) -> bool:
        return not self._finished

    def on_failure(self) -> None:
        """Close the connection after an unexpected exception, because the client cannot know which
        part of the commit took effect.

        The channel then abandons the commit, and requeues the deliveries that are not settled.
        """
        self._connection.close(INTERNAL_ERROR, INTERNAL_ERROR_TEXT)

    def do_slice(self) -> None:
        if self._abandoned and not self._applied:
            self._applied = True
            self._settlements = {}
        try:
            if not self._advance():
                return
        except AmqpError as error:
            # The channel abandons this commit; later slices free its memory.
            self._connection.close_channel(self._publisher.number, error, _COMMIT)
            return
        self._finished = True
        if not self._connection.finished:
            if self._abandoned or not self._ticket.outstanding:
                self._connection.resume_input()
            if not self._abandoned:
                self._reply()

    def _reply(self) -> None:
        """Send tx.commit-ok once the changes of the transaction are durable."""
        reply = encode(self._publisher.number, spec.Tx.CommitOk())
        self._connection.reply_when_durable(self._ticket, reply)

    def _advance(self) -> bool:
        """Carry out one slice of the commit; return True if the commit is complete."""
        if self._applied:
            return self._finish()
        if not self._prepare():
            return False
        if len(self._publications) > PARTS_PER_SLICE and not self._alone:
            self._alone = True
            return False
        if self._plans.has_dead:
            if self._restarts < RESTARTS:
                self._restarts += 1
                self._prepare_again()
                return False
            for publication in self._publications:
                if publication.targets.has_dead:
                    self._publisher.prepare(publication, self._plans)
        self._apply()
        if len(self._publications) + len(self._requeued) > PARTS_PER_SLICE:
            return False
        while not self._finish():
            pass
        return True

    def _prepare(self) -> bool:
        """Prepare the publications of one slice; return True if all publications are prepared.

        Raises AmqpError if the user may not publish one of the messages any more.
        """
        identity = self._publisher.context.identity
        if identity is not self._identity:
            self._identity = identity
            self._prepare_again()
        left: i64 = PARTS_PER_SLICE
        publications = self._publications
        while self._prepared < len(publications):
            if left <= 0:
                return False
            publication = publications[self._prepared]
            left -= self._publisher.prepare(publication, self._plans)
            self._prepared += 1
        return True

    def _prepare_again(self) -> None:
        """Begin the preparation of all publications again."""
        self._prepared = 0
        self._alone = False
        self._plans = TargetPlans()

    def _apply(self) -> None:
        """Deliver all publications, and carry out all acknowledgements and rejections, as one group
        of store records.
        """
        self._applied = True
        store = self._store
        before: i64 = store.position
        store.begin()
        try:
            for publication in self._publications:
                self._publisher.publish_committed(publication)
            self._settle(self._settlements)
        finally:
            store.commit()
        if store.position > before or store.streams:
            store.wait_for_next_batch(self._ticket)
        self._requeued = sorted(
            (number for number, how in self._settlements.items() if how == REQUEUED), reverse=True
        )
        self._settlements = {}

    def _finish(self) -> bool:
        """Requeue one slice of deliveries, or free one slice of publications.

        Return True if all deliveries are requeued and all publications are freed.
        """
        if self._requeued:
            self._requeue(self._requeued[-PARTS_PER_SLICE:])
            del self._requeued[-PARTS_PER_SLICE:]
            if not self._requeued:
                self._held.free()
        else:
            del self._publications[-PARTS_PER_SLICE:]
        return not self._requeued and not self._publications

    def _settle(self, settlements: dict[int, int]) -> None:
        """Acknowledge or reject deliveries, because a transaction commits.

        `settlements` maps delivery tags to ACKED, REJECTED or REQUEUED. REQUEUED deliveries are
        ignored here; `_requeue` handles them later.
        """
        unacked, tally = self._receiver.unacked, self._connection.front.tally
        for number, how in settlements.items():
            if how != REQUEUED:
                delivery = unacked.take(number)
                assert delivery is not None
                carry_out(delivery, how, tally)

    def _requeue(self, numbers: list[int]) -> None:
        """Requeue the deliveries with these delivery tags, the last one of the list first.

        `numbers` is one slice of the tags that a transaction requeues. The queues are held: they
        deliver nothing until all slices are requeued.
        """
        unacked = self._receiver.unacked
        for number in reversed(numbers):
            delivery = unacked.take(number)
            assert delivery is not None
            self._held.hold(delivery.consumer.queue)
            requeue(delivery, False)
