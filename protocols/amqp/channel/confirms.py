"""Publisher confirms: basic.ack and basic.nack for publications, in the order of publishing.

    published   1  2  3  4  5  6
    pending           3t    5n      t waits for its ticket (the store), n gets a basic.nack

Here 1 and 2 can be confirmed, with one frame; 4, 5 and 6 wait for 3. Each publication is confirmed
exactly once, and never before an earlier one.
"""

from __future__ import annotations

from typing import Final

from librt.strings import write_i64_be
from mypy_extensions import i64, u8

from broker.messages.outlet import Outlet
from broker.store.contract import Ticket, Waiter
from protocols.amqp.codec.frames import FRAME_END
from protocols.tally import FrontCounters

_NACK: Final[i64] = 120
_ACK: Final[i64] = 80


class Pending:
    """An entry in the list of unconfirmed publications.

    The entry stands for a refused publication, or for consecutive publications that wait for one
    ticket. `number` is the sequence number of the first publication.
    """

    __slots__ = ("number", "refused", "ticket")

    def __init__(self, number: i64, ticket: Ticket | None, refused: bool) -> None:
        self.number: i64 = number
        self.ticket = ticket
        self.refused = refused


class Confirms(Waiter):
    """The confirms of one channel in confirm mode.

    `published` is the sequence number of the last publication. For a publication that needs no
    write of the store, AmqpConnection._publish only increments this number: such a publication has
    no entry in `_pending`, and its confirm waits only for the confirms before it.
    """

    def __init__(self, outlet: Outlet, tally: FrontCounters, channel: i64) -> None:
        self.published: i64 = 0
        self._outlet = outlet
        self._tally = tally
        self._confirmed: i64 = 0
        self._pending: list[Pending] = []
        #: The latest run: its ticket, its batch number, and the number of its last publication. A
        #: run is a sequence of publications in one batch of the store; they share a ticket.
        self._run_ticket: Ticket | None = None
        self._run_batch: i64 = -1
        self._run_last: i64 = 0
        self._head = b"\x01" + int(channel).to_bytes(2, "big") + b"\x00\x00\x00\x0d\x00\x3c\x00"

    def add(self, ticket: Ticket | None, refused: bool) -> None:
        """Count the next publication.

        Its confirm is sent after the confirms of all earlier publications, once `ticket` is
        settled; the ticket None means that the publication waits for no write of the store. The
        confirm is a basic.nack if the publication is `refused`, otherwise a basic.ack.
        """
        self.published += 1
        waits = ticket is not None and ticket.outstanding > 0
        if waits or refused:
            self._pending.append(Pending(self.published, ticket if waits else None, refused))

    def add_stored(self, batch: i64) -> Ticket:
        """Count the next publication, and return the ticket that it waits for. Hot path.

        Consecutive publications in one batch of the store share a ticket, because they become
        durable together. `batch` is the number of that batch.
        """
        number: i64 = self.published + 1
        self.published = number
        ticket = self._run_ticket
        if ticket is not None and self._run_last == number - 1 and self._run_batch == batch:
            self._run_last = number
            return ticket
        ticket = self._run_ticket = Ticket(self)
        self._run_batch = batch
        self._run_last = number
        self._pending.append(Pending(number, ticket, False))
        return ticket

    def flush(self) -> None:
        """Send the confirms that are ready, with one frame for consecutive acks."""
        pending = self._pending
        done = 0
        for entry in pending:
            ticket = entry.ticket
            if ticket is not None and ticket.outstanding > 0:
                break
            done += 1
            if entry.refused:
                self._nack(entry.number)
        if done:
            del pending[:done]
        last: i64 = pending[0].number - 1 if pending else self.published
        if last > self._confirmed:
            self._answer(_ACK, last, 1 if last - self._confirmed > 1 else 0)

    @property
    def confirmed(self) -> int:
        """Number of publications that were answered with basic.ack or basic.nack."""
        return int(self._confirmed)

    @property
    def waiting(self) -> int:
        """Number of publications that were not answered with basic.ack or basic.nack yet."""
        return int(self.published - self._confirmed)

    def settled(self) -> None:
        """Send the confirms that wait for a ticket, because the ticket is settled."""
        if self._pending:
            self.flush()

    def close(self) -> None:
        """Drop the confirms that are not sent yet, because the channel has closed."""
        self._pending.clear()
        self._run_ticket = None  # Break a reference cycle: the ticket refers to this object.
        self._confirmed = self.published

    def _nack(self, number: i64) -> None:
        before: i64 = number - 1
        if before > self._confirmed:
            self._answer(_ACK, before, 1 if before - self._confirmed > 1 else 0)
        self._answer(_NACK, number, 0)

    def _answer(self, method: i64, number: i64, multiple: i64) -> None:
        self._tally.confirmed += number - self._confirmed
        self._confirmed = number
        out = self._outlet.out
        out.write(self._head)
        out.append(u8(method))
        write_i64_be(out, number)
        out.append(u8(multiple))
        out.append(u8(FRAME_END))
        self._outlet.touch()
