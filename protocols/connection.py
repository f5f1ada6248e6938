"""A connection: bytes in, bytes out, and the ways in which a client has to wait.

Connection is the base of AmqpConnection and MqttConnection. A connection does no input or output
itself: a link (trellis/server/link.py) owns the socket, and calls

    receive_data(data)    with each chunk of input; a chunk may begin and end within a frame
    parts_to_send()       once in a turn of the event loop, for the output (Outlet)
    advance(now)          when `deadline` has come: keep-alive and time limits
    close, abort, on_closed    to end the connection

A subclass parses the input in `consume`. An incomplete frame at the end of the input waits for the
next chunk.

Backpressure: a client that sends more than the broker can take is slowed down by not reading its
socket, until the network buffers are full and the client has to wait. The reasons are:

    budget      One chunk may cause much work: one small publication can go to 10,000 queues.
                `consume` therefore stops when the BUDGET of a turn is used up and sets `behind`.
                It also stops while the search for a publication's destinations goes on
                (plan_search.py). The link stops reading, and calls `resume` in the next turn.
    stall       The connection waits for an answer from inside the broker: a check of credentials,
                or a write of the store before a reply (`reply_when_durable`). `stall` stops all
                handling of input, so that replies keep their order; `resume_input` ends it.
    block       An alarm for memory or disk is on, and this client publishes, or has sent a large
                part of a message (IncompleteMessage). `block` stalls the connection until
                the alarm is over; broker/alarms.py then calls `unblock`.
    throttled   The client is above its rate limit. The link does not read for a while, and
                `throttled` names the limit (trellis/server/rate_limited_link.py).
    backlog     More than BACKLOG_BYTES wait to be written (DurableStoreWriter). Then
                no link reads whose client has published to the store (`persists`); with a journal,
                no link reads at all.

broker/messages/outlet.py handles the opposite direction: a client that reads too slowly.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from mypy_extensions import i64

from broker.access.identity import LoginRecord
from broker.broker import Broker
from broker.routing.plan_search import STEP_COST, SearchSlot
from broker.routing.publish_context import PublishContext
from broker.store.contract import Ticket
from broker.vhost.vhost import VirtualHost
from protocols.deferred_reply import DeferredReply, add_reply
from protocols.end_reasons import BROKEN_LIMITS
from protocols.incomplete_message import INCOMPLETE_MAX, INCOMPLETE_PATIENCE, IncompleteMessage
from protocols.login_input import LOGIN_INPUT_MAX
from protocols.peer import Peer
from protocols.redirect import Redirect
from protocols.refusal_fields import refusal_fields, unlogged
from protocols.tally import FrontCounters
from protocols.timed_outlet import TimedOutlet


class ConnectionRegistry:
    """The open connections of one protocol, and the counts of closed connections and of logins.

    `name` is the protocol's name in the metrics.
    """

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        self.broker = broker
        self.tally = FrontCounters()
        self.connections: dict[Connection, None] = {}
        #: Number of connections that were ever opened.
        self.opened = 0
        #: Number of closed connections, by the reason of their end.
        self.closed: dict[str, int] = {}
        #: Number of logins by outcome.
        self.logins: dict[str, int] = {}
        #: Bytes received and sent by connections that have ended.
        self.bytes_in = 0
        self.bytes_out = 0
        #: The function that logs the refusal of a client: an event with fields. The server sets it.
        self.log: Callable[[str, dict[str, object]], None] = unlogged
        #: The answers of a standby to all clients; None on a node that serves clients.
        self.redirect: Redirect | None = None

    def enter(self, connection: Connection) -> None:
        """Add a new connection to the registry."""
        self.connections[connection] = None
        self.opened += 1

    def leave(self, connection: Connection) -> None:
        """Remove an ended connection from the registry, and count the reason of its end.

        Log the end if the client has broken a limit (BROKEN_LIMITS).
        """
        if connection.reason in BROKEN_LIMITS:
            self.log_end(connection, BROKEN_LIMITS[connection.reason])
        self.connections.pop(connection, None)
        self.bytes_in += int(connection.bytes_in)
        self.bytes_out += int(connection.bytes_out)
        self.closed[connection.reason] = self.closed.get(connection.reason, 0) + 1

    def count_login(self, outcome: str) -> None:
        """Count a login as "accepted", "refused" or "busy"."""
        self.logins[outcome] = self.logins.get(outcome, 0) + 1

    def log_refusal(
        self, event: str, connection: Connection, note: str, fields: dict[str, object] | None = None
    ) -> None:
        """Log the event `event`, such as a failed login; `note` has the reason and what to do.

        The line has the client's protocol, user, virtual host and address, and `fields`.
        """
        owner, address = connection.owner, connection.peer.address
        self.log(event, refusal_fields(self.name, owner, address, note, fields))

    def log_end(self, connection: Connection, note: str) -> None:
        """Log that the broker ends a connection, with the name of its client; see `log_refusal`."""
        client = str(connection.describe()["client"])
        fields: dict[str, object] = {"client": client} if client else {}
        self.log_refusal("connection_closed", connection, note, fields)


class Connection(TimedOutlet):
    """The connection of one client.

    A link reads these fields after each call of a method of the connection:

    * `behind`: unhandled input remains; stop reading, and call `resume` in the next turn;
    * `stalled`: the connection waits for the broker; stop reading until `stalled` is False;
    * `finished`: close the transport once the output is sent;
    * `deadline` and `expires`: times at which to call `advance` and `reauthorize` (TimedOutlet).
    """

    def __init__(self, front: ConnectionRegistry, peer: Peer) -> None:
        super().__init__(front.broker.agenda)
        self.front = front
        self.peer = peer
        # Compiled code stores the eight flags in 8 bytes, because they are assigned one after the
        # other. A flag between other attributes would take 8 bytes of its own.
        self.behind = False
        self.stalled = False
        self.finished = False
        #: True if the client has asked to close, and must get the reply before the transport ends.
        self.answers_last = False
        #: True once the client has logged in.
        self.admitted = False
        #: True once the client has published a message that goes to the store (see "backlog").
        self.persists = False
        #: True during a call of `consume`.
        self._feeding = False
        #: True if an alarm blocks the connection at the end of the present stall.
        self.blocks_after_stall = False
        #: Reason for which the connection has ended, as the metrics count it; "" while it is open.
        self.reason = ""
        #: Time at which the connection was opened, in seconds since 1970-01-01 UTC.
        self.opened_at = self.agenda.wall
        #: The authenticator's record of the password; None if it keeps none, and after the end.
        self._login_record: LoginRecord | None = None
        #: The client's identity and routes for publishing; None before the login and after the end.
        self.context: PublishContext | None = None
        #: The number `published` minus the number `received` of the present context.
        self._published_offset: i64 = 0
        #: Size in bytes of the input's first frame, if the frame is incomplete: `consume` is called
        #: again when the input has this size.
        self.need: i64 = 0
        self.bytes_in: i64 = 0
        #: Input that is not consumed yet, and its size in bytes.
        self._input: list[bytes] = []
        self._input_size: i64 = 0
        front.enter(self)
        #: Sequence number of this connection among all connections of its protocol, from 1.
        self.number = front.opened
        #: The searches for the destinations of the present publication; None before the first one.
        self.slot: SearchSlot | None = None
        #: Number of times that an alarm has blocked the connection. `_limited` is the value of this
        #: number when a time limit was last set (IncompleteMessage).
        self.times_blocked = 0
        self._limited = 0
        #: The virtual host whose dead letters the connection waits for; None if it does not wait.
        self._held_in: VirtualHost | None = None
        #: Name of the rate limit because of which the link does not read now; "" while it reads.
        self.throttled = ""

    @property
    def published(self) -> int:
        """Number of publications that this connection's contexts have received since its login.

        Other connections of the user share the context, so the number includes their publications.
        Only the increase during a call of `receive_data` or `resume` is of this connection.
        """
        return int(self._published_offset + (self.context.received if self.context else 0))

    def use_context(self, context: PublishContext | None) -> None:
        """Publish through `context`; None stops publishing. The caller releases the old context."""
        self._published_offset = self.published
        if context is not None:
            self._published_offset -= context.received
        self.context = context

    @property
    def owner(self) -> tuple[str, str]:
        """Names of the client's user and virtual host: "" before login, unchanged after the end."""
        return "", ""

    @property
    def unsent(self) -> int:
        """Size of the output in this object and in the transport that is not sent yet, in bytes."""
        return int(len(self.out) + self._parts_size) + (
            0 if self.finished else self.sender.backlog()
        )

    def memory_bytes(self) -> int:
        """Return the size in bytes of unsent output and unhandled input.

        Subclasses add the memory of their outstanding deliveries.
        """
        return self.unsent + int(self._input_size)

    def admit(self, record: LoginRecord | None) -> None:
        """Record that the client has logged in; `record` is the field `record` of the Verdict."""
        self.admitted = True
        if record is not None:
            self._login_record = record
            record.on_connection_opened()

    # -- input

    def receive_data(self, data: bytes) -> None:
        """Handle a chunk of input. Raises nothing, whatever the chunk holds. Hot path."""
        self.last_input_at = self.agenda.now
        self.bytes_in += len(data)
        if self._input or self.stalled:
            self._input.append(data)
            self._input_size += len(data)
            if self.stalled:
                self.check_login_input()
                return
            if self.behind:
                return
            if self._input_size < self.need:
                self.limit_incomplete(self._input_size)
                return
            data = b"".join(self._input)
            self._input.clear()
        self._feed(data)

    def resume(self) -> None:
        """Continue with the unhandled input of an earlier turn."""
        self.behind = False
        if self._input and not self.stalled:
            data = b"".join(self._input)
            self._input.clear()
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        """Pass a chunk to `consume`, and store the bytes that `consume` did not handle."""
        self.need = 0
        self._feeding = True
        try:
            used: i64 = len(data) if self.finished else self.consume(data)
        finally:
            self._feeding = False
        self._input_size = 0 if self.finished else len(data) - used
        if self._input_size > 0:
            self._input.append(data[used:] if used > 0 else data)
            if self.stalled:
                self.check_login_input()
            elif not self.behind:
                self.limit_incomplete(self._input_size)
        if (len(self.out) > 0 or self._parts_size > 0) and not self.dirty:
            self.touch()

    def check_login_input(self, undecoded: i64 = 0) -> None:
        """Abort the connection if it has too much unhandled input before the login.

        The limit is LOGIN_INPUT_MAX bytes; `undecoded` is the share of the link, in bytes.
        """
        if self._input_size + undecoded > LOGIN_INPUT_MAX and not self.admitted:
            self.abort("too_much_before_login")
            self.touch()

    def consume(self, data: bytes) -> i64:
        """Handle complete frames, up to a BUDGET of work; return the number of bytes handled."""
        raise NotImplementedError

    def search_slot(self) -> SearchSlot:
        """Return the object that keeps the unfinished route searches of the present publication.

        The caller must call `end_search` when the publication is complete or refused.
        """
        slot = self.slot
        if slot is None:
            slot = self.slot = SearchSlot()
        return slot

    def end_search(self) -> i64:
        """Drop the searches of the present publication; return their cost in units of BUDGET."""
        slot = self.slot
        if slot is None:
            return 0
        cost = slot.spent * STEP_COST
        slot.spent = 0
        slot.searches = None
        return cost

    # -- backpressure

    def stall(self) -> None:
        """Handle no more input until `resume_input` is called."""
        self.stalled = True

    def resume_input(self) -> None:
        """End a stall. The input that arrived meanwhile is handled in the next turn."""
        self.stalled = False
        if self.blocks_after_stall:
            self.blocks_after_stall = False
            if self.front.broker.alarms.on:
                self.block()
                self.touch()
                return
        if not self._feeding:
            self.behind = True
        self.touch()
        if self.front.broker.alarms.on:
            # The alarm has begun during the stall.
            self.review_incomplete()

    def block(self) -> None:
        """Stall a client that has published during a memory or disk alarm, until no alarm is on."""
        if not self.stalled:
            self.stall()
            self.times_blocked += 1
            self.front.broker.alarms.wait(self)

    @property
    def blocked(self) -> bool:
        """True while an alarm blocks the connection."""
        return self in self.front.broker.alarms.waiting

    def limit_incomplete(self, held: i64) -> None:
        """Block a client that has sent `held` bytes of incomplete messages, if an alarm is on.

        Without this block, the memory of incomplete messages could grow during the alarm.
        """
        if held > INCOMPLETE_MAX and self.front.broker.alarms.on and not self.stalled:
            self.block()
            self.limit_block()

    def limit_block(self) -> None:
        """Start the time limit of a client that an alarm blocks in the middle of a message."""
        if self._limited != self.times_blocked:
            self._limited = self.times_blocked
            self.agenda.at(
                self.agenda.now + INCOMPLETE_PATIENCE,
                IncompleteMessage(self, self.front.broker.alarms),
            )

    def review_incomplete(self) -> None:
        """Block the client if it has sent a large part of a message before an alarm began.

        Without the block, a client that never completes a message could keep the alarm on for ever.
        """
        if not self.behind:
            self.limit_incomplete(self._input_size)

    def unblock(self) -> None:
        """End the stall that `block` began, because the alarm has ended."""
        if not self.finished:
            self.resume_input()

    def wait_for_dead_letters(self, vhost: VirtualHost) -> None:
        """Stall a client that has published to a queue with too many unpublished dead letters.

        `VirtualHost.set_behind` ends the stall.
        """
        if not self.stalled:
            self.stall()
            self._held_in = vhost
            vhost.held_publishers[self] = None

    def resume_publishing(self) -> None:
        self._held_in = None
        if not self.finished:
            self.resume_input()

    def reply_when_durable(self, ticket: Ticket, reply: bytes) -> None:
        """Send a reply once the ticket is settled; stall the connection until then."""
        if ticket.outstanding == 0:
            self.out.write(reply)
            return
        self.stall()
        add_reply(ticket, reply)

    def ticket(self) -> Ticket:
        """Return a new ticket for one method or packet; `reply_when_durable` waits for the ticket.

        The ticket counts the appends to the store that the method or packet causes.
        """
        return Ticket(DeferredReply(self))

    # -- the end

    def close(self, reason: str, text: str = "") -> None:
        """End the connection on the broker's initiative, and send the reason to the client.

        `reason` is a reason of end_reasons.py, and is counted in the metrics. `text` is sent to the
        client if its protocol has a field for it.
        """
        raise NotImplementedError

    def abort(self, reason: str) -> None:
        """End the connection without a reason for the client, for example after a timeout."""
        self._end(reason)

    def on_closed(self, reason: str = "lost") -> None:
        """Handle the end of a connection whose client closed it, or whose transport is lost."""
        self._end(reason)

    def _end(self, reason: str) -> None:
        """End the connection, and release the objects that it uses in the broker.

        The transport closes once the collected output is sent. Only the first reason is counted.
        """
        if not self.finished:
            self.finished = True
            self.stalled = False
            self.front.broker.alarms.leave(self)
            if self._held_in is not None:
                self._held_in.held_publishers.pop(self, None)
                self._held_in = None
            self.reason = self.reason or reason
            self._input.clear()
            self._input_size = 0
            self.front.leave(self)
            record, self._login_record = self._login_record, None
            if record is not None:
                record.on_connection_closed()
            self._release()

    def _release(self) -> None:
        """Release the broker's objects that the connection uses. Called once, at its end."""
        raise NotImplementedError

    def client_names(self) -> tuple[str, ...]:
        return tuple(name for name in (str(self.describe()["client"]), str(self.peer)) if name)

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """Return the connection's row in the list of connections: values by column name."""
        raise NotImplementedError
