"""What every connection shares: input in any chunking, output collected, time told from outside,
waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from broker.access.identity import Identity
from broker.broker import Broker
from broker.messages.outlet import Outlet
from broker.store.contract import Ticket, Waiter
from protocols.tally import FrontCounters

#: What one call of `receive_data` may do, in publications and copies; the rest resumes next turn.
BUDGET: Final[i64] = 20_000
#: What a packet that comes rarely costs of it.
COLD: Final[i64] = 10
#: Octets that are kept for a client that waits for the verdict on its credentials.
LOGIN_INPUT_MAX: Final[i64] = 64 << 10

#: Reasons for which the broker closes a connection, as the metrics count them: an operator or a
#: changed permission, a client above its rate limit, and the end of the broker process.
EXPELLED: Final = "expelled"
TOO_FAST: Final = "too_fast"
SHUTDOWN: Final = "shutdown"


def _nothing() -> int:
    return 0


class Peer:
    """Who is at the other end.

    `local` is whether it is on this machine, and nobody else speaks through it.
    """

    def __init__(self, address: str = "127.0.0.1", port: int = 0, local: bool = True) -> None:
        self.address = address
        self.port = port
        self.local = local
        #: The listener that it came to.
        self.listener = ""
        #: What a certificate that we trust says it is; "" without one.
        self.certificate = ""
        #: Whether it is a browser that shows a page of somebody else, whose user knows nothing of
        #: what is said.
        self.cross_site = False

    def __str__(self) -> str:
        if self.port == 0 and self.address == "unix":
            return self.address
        return (
            f"[{self.address}]:{self.port}"
            if ":" in self.address
            else f"{self.address}:{self.port}"
        )


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
        #: Number of closed connections by reason.
        self.closed: dict[str, int] = {}
        #: Number of logins by outcome.
        self.logins: dict[str, int] = {}

    def enter(self, connection: Connection) -> None:
        """Add a new connection."""
        self.connections[connection] = None
        self.opened += 1

    def leave(self, connection: Connection) -> None:
        """Remove a connection that has ended, and count its reason."""
        self.connections.pop(connection, None)
        self.closed[connection.reason] = self.closed.get(connection.reason, 0) + 1

    def count_login(self, outcome: str) -> None:
        """Count a login as "accepted", "refused" or "busy"."""
        self.logins[outcome] = self.logins.get(outcome, 0) + 1


class Connection(Outlet):
    """One client. The top floor calls `receive_data`, `data_to_send`, `advance`, `close`,
    `abort` and `on_closed`, and reads

    * `behind`: input is left over, stop reading and call `resume` next turn;
    * `stalled`: the connection waits for a verdict or for the store, stop reading until it is not;
    * `finished`: close the transport once the output is sent;
    * `deadline`: call `advance` when this time (ms) has come; 0 for never.
    """

    def __init__(self, front: ConnectionRegistry, peer: Peer) -> None:
        super().__init__()
        self.front = front
        self.peer = peer
        self.behind = False
        self.stalled = False
        self.finished = False
        #: Why it ended, as the metrics name it.
        self.reason = ""
        #: The peer asked for the end, and is to read our answer before it reads that nothing more
        #: comes.
        self.answers_last = False
        self.deadline: i64 = 0
        self.agenda = front.broker.agenda
        self.opened_at = self.agenda.wall
        self.admitted = False
        #: Has published what the store must keep.
        self.persists = False
        #: When the peer last said anything, in ms.
        self.last_input_at: i64 = self.agenda.now
        #: Octets, from the first one not consumed, without which `consume` need not be called
        #: again.
        self.need: i64 = 0
        self.bytes_in: i64 = 0
        self._input: list[bytes] = []
        self._input_size: i64 = 0
        self._feeding = False
        front.enter(self)
        #: The how manieth of its front end it is, and how many octets its transport holds that are
        #: not sent yet.
        self.number = front.opened
        self.transport_backlog: Callable[[], int] = _nothing
        #: When its client is nobody any more, unless it proves itself anew: in ms, 0 for never.
        self.expires: i64 = 0
        #: Why it is not read for a while; empty: it is.
        self.throttled = ""

    @property
    def published(self) -> int:
        """Publications that came in by this connection's gate, which others use too: what matters
        is how it grows.
        """
        return 0

    @property
    def owner(self) -> tuple[str, str]:
        """User and virtual host; empty before they are known."""
        return "", ""

    @property
    def unsent(self) -> int:
        """Octets that wait for the client to read: here and in the transport."""
        return int(len(self.out) + self._parts_size) + self.transport_backlog()

    # -- input

    def receive_data(self, data: bytes) -> None:
        """Take a chunk. Whatever it holds, no exception comes out. Hot path, once per chunk."""
        self.last_input_at = self.agenda.now
        self.bytes_in += len(data)
        if self._input or self.stalled:
            self._input.append(data)
            self._input_size += len(data)
            if self.stalled:
                self._check_patience()
                return
            if self._input_size < self.need or self.behind:
                return
            data = b"".join(self._input)
            self._input.clear()
        self._feed(data)

    def resume(self) -> None:
        """Go on with the input that a former call left over."""
        self.behind = False
        if self._input and not self.stalled:
            data = b"".join(self._input)
            self._input.clear()
            self._feed(data)

    def _feed(self, data: bytes) -> None:
        self.need = 0
        self._feeding = True
        used: i64 = len(data) if self.finished else self.consume(data)
        self._feeding = False
        self._input_size = 0 if self.finished else len(data) - used
        if self._input_size > 0:
            self._input.append(data[used:] if used > 0 else data)
            if self.stalled:
                self._check_patience()
        if len(self.out) > 0 and not self.dirty:
            self.touch()

    def _check_patience(self) -> None:
        """A client that waits for the verdict may send so much ahead, however it is cut."""
        if self._input_size > LOGIN_INPUT_MAX and not self.admitted:
            self.abort("too_much_before_login")
            self.touch()

    def consume(self, data: bytes) -> i64:
        """Handle complete frames; returns how many octets they took."""
        raise NotImplementedError

    # -- waiting

    def stall(self) -> None:
        """Take no more input until `go_on`."""
        self.stalled = True

    def resume_input(self) -> None:
        """What the connection waited for has come: what was kept is handled next turn."""
        self.stalled = False
        if not self._feeding:
            self.behind = True
        self.touch()

    def block(self) -> None:
        """An alarm is on, and this client publishes: take no more input until it is over."""
        if not self.stalled:
            self.stall()
            self.front.broker.alarms.wait(self)

    def unblock(self) -> None:
        if not self.finished:
            self.resume_input()

    def reply_when_durable(self, ticket: Ticket, octets: bytes) -> None:
        """Write the octets once the ticket is settled; until then nothing else is heard."""
        if ticket.outstanding == 0:
            self.out.write(octets)
            return
        self.stall()
        waiting = ticket.waiter
        assert isinstance(waiting, DeferredReply)
        waiting.octets += octets

    def ticket(self) -> Ticket:
        """For one method or packet: what it appends, its answer waits for."""
        return Ticket(DeferredReply(self))

    # -- time, and the end

    def advance(self, now: int) -> None:
        """The deadline has come."""
        raise NotImplementedError

    def set_expiry(self, identity: Identity | None) -> None:
        """Whoever the client is has proven it until then."""
        expires = 0.0 if identity is None else identity.expires
        self.expires = (
            0
            if expires == 0.0
            else max(1, self.agenda.now + i64((expires - self.agenda.wall) * 1000))
        )

    def reauthorize(self) -> None:
        """Somebody's rights changed, perhaps this client's: it goes on with those that it has now,
        or goes.
        """

    def close(self, reason: str, text: str = "") -> None:
        """End the connection on the broker's initiative, and tell the client why.

        `reason` is one of EXPELLED, TOO_FAST and SHUTDOWN and is counted; `text` is for the client,
        as far as its protocol can carry it.
        """
        raise NotImplementedError

    def abort(self, reason: str) -> None:
        """End the connection without telling the client why, for example after a timeout."""
        self._end(reason)

    def on_closed(self, reason: str = "lost") -> None:
        """Handle the end of a connection whose client closed it, or whose transport is lost."""
        self._end(reason)

    def _end(self, reason: str) -> None:
        """Release everything; the transport closes once the collected output is sent.

        Only the first reason is counted.
        """
        if not self.finished:
            self.finished = True
            self.stalled = False
            self.front.broker.alarms.leave(self)
            self.reason = self.reason or reason
            self.transport_backlog = _nothing
            self._input.clear()
            self.front.leave(self)
            self._release()

    def _release(self) -> None:
        """Give back what the connection holds in the broker. Called once, when it has ended."""
        raise NotImplementedError

    def describe(self) -> dict[str, object]:
        """A row for operators."""
        return {
            "peer": str(self.peer),
            "protocol": self.front.name,
            "user": "",
            "state": "closing" if self.finished else "open",
            "listener": self.peer.listener,
            "since": int(self.opened_at),
            "octets_in": int(self.bytes_in),
            "octets_out": int(self.bytes_out),
            "unsent": self.unsent,
            "slow": self._slowness,
        }

    @property
    def _slowness(self) -> str:
        """Why nothing is given to the client, or taken from it, just now; empty: it is."""
        if self.paused:
            return "reads too slowly"
        if self in self.front.broker.alarms.waiting:
            return "waits for the end of an alarm"
        return self.throttled or ("waits" if self.stalled else "")


class DeferredReply(Waiter):
    """An answer that waits for the store, and its connection with it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.octets = b""

    def settled(self) -> None:
        connection = self._connection
        if connection.stalled and self.octets and not connection.finished:
            connection.out.write(self.octets)
            connection.resume_input()
