"""Calls of the HTTP API, their answers and their errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeVar

import msgspec

from broker.access.identity import Identity
from broker.errors import AccessRefused, BrokerError, NotFound
from broker.names import is_text, shown
from broker.nesting import NESTING_MAX, is_nested_too_deep
from broker.routing.authorization import DeclarationRights
from broker.store.audit import Actor
from broker.store.contract import SettledCallback, Ticket
from broker.vhost.client_declarations import rights_of
from broker.vhost.message_move import MessageMoves
from broker.vhost.vhost import VirtualHost
from trellis.http import contract
from trellis.http.management.rates import Key, Rates
from trellis.http.page_sessions import PageSessions
from trellis.http.slices import Slice, Slices
from trellis.monitoring.http_counters import HttpCounters
from trellis.monitoring.live_status import LiveStatus
from trellis.server.node import BrokerNode

#: Seconds that a change may take to become durable.
DURABLE_SECONDS: Final = 30.0

Row = dict[str, Any]
#: A row of a definitions document, with the name of its section.
SectionRow = tuple[str, Mapping[str, object]]
Result = TypeVar("Result")


class ApiRefusal(Exception):
    """Raised if a request is refused. `error` is RabbitMQ's name of the error."""

    def __init__(self, status: int, error: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.error = error
        self.reason = reason


def not_found(what: str) -> ApiRefusal:
    """Return the refusal for an object that does not exist; `what` is the text of the error."""
    return ApiRefusal(404, "Object Not Found", what)


def bad_request(reason: str) -> ApiRefusal:
    """Return the refusal for a malformed request: status 400, with a reason."""
    return ApiRefusal(400, "bad_request", reason)


def vhost_closing(name: str) -> ApiRefusal:
    """Return the refusal of a change in a virtual host that is being deleted."""
    return bad_request(
        f"vhost '{name}' is being deleted: wait until the deletion has ended, and create the vhost "
        "again"
    )


class Listing:
    """The answer of a handler that returns many rows.

    The iterator `rows` yields rows and three other kinds of values. None stands for a skipped
    object: other work may run. Bytes are a part of the payload of the next row. An asyncio.Event
    makes the answer wait until the event is set. If `shape` is PAGED, the gateway filters, sorts
    and pages the rows; see contract.py for other shapes.
    """

    def __init__(
        self, rows: AsyncIterator[Row | bytes | asyncio.Event | None], shape: int = contract.PAGED
    ) -> None:
        self.rows = rows
        self.shape = shape


class SectionedRows:
    """The answer of a handler that exports a document: a head, and rows in sections.

    `rows` yields (section, row), and None for each object that is not part of the document.
    """

    def __init__(
        self, head: Row, sections: tuple[str, ...], rows: Iterator[SectionRow | None]
    ) -> None:
        self.head = head
        self.sections = sections
        self.rows = rows


class Failure:
    """The answer of a handler with an error status and a body: a failed health check."""

    def __init__(self, status: int, value: Row) -> None:
        self.status = status
        self.value = value


class HandedOver:
    """The answer after a handover of the cluster's log; sent although the node has no lease."""

    def __init__(self, value: Row) -> None:
        self.value = value


class Empty:
    """The answer of a handler without a body: status 201 if an object was created, else 204.

    `location` is the path of the created object, for the header Location of the response.
    """

    def __init__(self, created: bool = False, location: str = "") -> None:
        self.status = 201 if created else 204
        self.location = location


class ApiBackend:
    """The objects that all API handlers share: node, counters, rates, moves, page sessions."""

    def __init__(self, node: BrokerNode, counters: HttpCounters) -> None:
        self.node = node
        self.counters = counters
        #: Divides the time for API calls in each turn of the event loop among all calls.
        self.slices = Slices()
        self.rates = Rates(counters)
        self.moves = MessageMoves()
        self.page_sessions = PageSessions(node, asyncio.get_running_loop().time)
        self.live_status = LiveStatus(node)

    def check_lease(self) -> None:
        """Raise ApiRefusal if this node belongs to a cluster and has no lease now.

        Without a lease, a standby may serve clients, so this node must refuse all requests.
        """
        if not self.node.turn.leased:
            raise ApiRefusal(
                503,
                "no_lease",
                "the replicated log of this node's cluster does not answer: try again",
            )


class ApiRequest:
    """A request to the API: path, names in the path, query, body, and the client's address.

    `body` is at most 64 KiB. A definitions document is in `rows` instead, which yields its rows in
    batches: (section, error in the section or "", rows as JSON).
    """

    def __init__(
        self,
        method: str,
        path: str,
        path_parameters: list[str],
        query: dict[str, str],
        address: str,
    ) -> None:
        self.method = method
        self.path = path
        self.path_parameters = path_parameters
        self.query = query
        self.address = address
        #: The token of the web page's session that the request belongs to; "" for none.
        self.session = ""
        #: True if the request comes from this machine, and from no page of another site.
        self.local = False
        self.body = b""
        self.rows: AsyncIterator[tuple[str, str, list[bytes]]] | None = None


#: The argument `gauges` of `Call.rated` for an object that has only counters.
NO_GAUGES: Final[Mapping[str, int]] = {}


class Call:
    """An API request that passed authorization, with the user that made it.

    The constructor raises ApiRefusal if a path parameter is not valid UTF-8, or if this node
    belongs to a cluster and has no lease now.
    """

    def __init__(self, backend: ApiBackend, request: ApiRequest, identity: Identity) -> None:
        backend.check_lease()
        self.node = backend.node
        self.broker = backend.node.broker
        self.counters = backend.counters
        self._slices = backend.slices
        self._rates = backend.rates
        self.moves = backend.moves
        self.page_sessions = backend.page_sessions
        self.live_status = backend.live_status
        self.request = request
        self.identity = identity
        self.path_parameters = request.path_parameters
        for part in self.path_parameters:
            if not is_text(part):
                raise bad_request(f"the part '{shown(part)}' of the path is not valid UTF-8")
        self.query = request.query
        self.node.turn.update_clock()

    @property
    def sees_everything(self) -> bool:
        """True if the user may see the objects of all virtual hosts and users."""
        return self.identity.administrator or "monitoring" in self.identity.tags

    def sees(self, vhost: VirtualHost) -> bool:
        """True if the user may see a virtual host."""
        return self.sees_everything or self.identity.for_vhost(vhost.name) is not None

    @property
    def vhosts(self) -> list[VirtualHost]:
        """Return the virtual hosts that the user may see."""
        return [vhost for vhost in self.broker.vhosts.values() if self.sees(vhost)]

    @property
    def path_vhosts(self) -> list[VirtualHost]:
        """Return the virtual host that the path names, or all virtual hosts that the user may see.

        Raises ApiRefusal if the named virtual host does not exist, or the user may not see it.
        """
        return [self.vhost(self.path_parameters[0])] if self.path_parameters else self.vhosts

    def vhost(self, name: str) -> VirtualHost:
        """Return a virtual host.

        Raises ApiRefusal if the virtual host does not exist, if the user may not see it, or if the
        request would add something to a virtual host that is being deleted.
        """
        vhost = self.broker.vhosts.get(name)
        if vhost is None:
            raise not_found(f"there is no vhost '{name}'")
        if not self.sees(vhost):
            raise ApiRefusal(
                403,
                "not_authorised",
                f"access to vhost '{name}' refused for user '{self.identity.name}': grant "
                "permissions with `trellis permissions set`",
            )
        if vhost.closing and self.request.method in ("PUT", "POST"):
            raise vhost_closing(name)
        return vhost

    def require_entry(self, vhost: VirtualHost) -> VirtualHost:
        """Return the virtual host if the user is an administrator, or has permissions in it.

        The tag `monitoring` shows all virtual hosts, but permits no change of a virtual host, and
        shows no parameters, which may hold passwords. Raises AccessRefused.
        """
        if not self.identity.administrator:
            self._within(vhost)
        return vhost

    def enters(self, vhost: VirtualHost) -> bool:
        """True if the user is an administrator, or has permissions in a virtual host."""
        return self.identity.administrator or self.identity.for_vhost(vhost.name) is not None

    def require_administrator(self, action: str) -> None:
        """Raise ApiRefusal unless the user is an administrator.

        `action` is the requested action, such as "list users", for the error message.
        """
        if not self.identity.administrator:
            raise ApiRefusal(
                403,
                "not_authorised",
                f"user '{self.identity.name}' lacks the tag 'administrator', which is required to "
                f"{action}",
            )

    def rights(self, vhost: VirtualHost) -> DeclarationRights:
        """Return the user's rights to declare objects in a virtual host. Raises AccessRefused."""
        return rights_of(vhost, self._within(vhost), self.identity.administrator)

    def may(self, operation: str, kind: str, name: str, vhost: VirtualHost) -> None:
        """Raise AccessRefused unless the user has a permission for an object in a virtual host.

        `operation` is the permission, such as "read"; `kind` and `name` name the object.
        """
        self._within(vhost).may(operation, kind, name, vhost.name)

    def _within(self, vhost: VirtualHost) -> Identity:
        """Return the user's identity in a virtual host.

        Raises AccessRefused if the user has no permissions there.
        """
        within = self.identity.for_vhost(vhost.name)
        if within is None:
            raise AccessRefused(
                f"access to vhost '{vhost.name}' refused for user '{self.identity.name}': grant "
                "permissions with `trellis permissions set`"
            )
        return within

    def rated(
        self, key: Key, counts: Mapping[str, int], gauges: Mapping[str, int] = NO_GAUGES
    ) -> Row:
        """Return the counters of an object by name, and their rates in fields `NAME_details`.

        `key` identifies the object, and `counts` are its counters. For `gauges`, such as a queue's
        number of messages, only the rates are returned. Return {} if all counters are 0.
        """
        if not any(counts.values()):
            return {}
        return self._rates.rated(key, counts, gauges, int(self.broker.agenda.now) / 1000)

    def slice(self) -> Slice:
        """Return a context manager for long work, in which the caller must await `Slice.pause`."""
        return Slice(self._slices)

    def flag(self, name: str) -> bool:
        """True if the query has the parameter `name` without a value, or with `true` or `1`."""
        return self.query.get(name) in ("true", "1", "")

    def body(self) -> Row:
        """Return the JSON object in the request, {} if there is none. Raises ApiRefusal."""
        try:
            value = msgspec.json.decode(self.request.body) if self.request.body.strip() else {}
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise bad_request(f"the body of the request is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise bad_request(f"the body must be a JSON object; its type is {type(value).__name__}")
        if is_nested_too_deep(value):
            raise bad_request(f"the body is nested more than {NESTING_MAX} levels deep")
        return value

    def acting(self) -> AbstractContextManager[None]:
        """Return a context manager: the audit trail records changes within it under the user."""
        trail = self.broker.store.audit
        if trail is None:
            return nullcontext()
        return trail.by(Actor(self.identity.name, self.request.address, "http"))

    def audit(
        self, action: str, kind: str, vhost: str, name: str, facts: Row | None = None
    ) -> None:
        """Record that the user did `action` to an object, if there is an audit trail.

        `kind`, `vhost` and `name` name the object; `facts` are details of the action.
        """
        if self.broker.store.audit is not None:
            with self.acting():
                self.broker.store.audit.acted(action, kind, vhost, name, facts)

    async def make_durable(self, change: Callable[[Ticket], Result]) -> Result:
        """Make a change of the broker by calling `change`; return its result once it is durable.

        The argument of `change` is a Ticket, which waits for the store to write the change. Raises
        TimeoutError if the store takes longer than DURABLE_SECONDS, and the errors of `change`.
        """
        self.node.turn.schedule()
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settled() -> None:
            if not durable.done():
                durable.set_result(None)

        ticket = Ticket(SettledCallback(settled))
        with self.acting():
            result = change(ticket)
        if ticket.outstanding:
            async with asyncio.timeout(DURABLE_SECONDS):
                await durable
        return result


async def iterate(rows: Iterable[Row | None]) -> AsyncIterator[Row | None]:
    """Turn an iterable of rows into the asynchronous iterator that a Listing needs."""
    for row in rows:
        yield row


def text(row: Mapping[str, Any], field: str, default: str | None = None) -> str:
    """Return a string in a field of a row, or `default` if the field is missing.

    Raises ApiRefusal if the value is not a string, or if a field without a default is missing.
    """
    value = row.get(field, default)
    if not isinstance(value, str):
        fault = "is missing" if value is None else "must be a string"
        raise bad_request(f"the field '{field}' of the body {fault}")
    return value


def flag(row: Mapping[str, Any], field: str) -> bool:
    """Return a boolean field of a row, False if the field is missing.

    Raises ApiRefusal if the value is not a boolean.
    """
    value = row.get(field, False)
    if value in ("true", "false"):  # Some tools write a boolean as text.
        return bool(value == "true")
    if not isinstance(value, bool):
        raise bad_request(f"the field '{field}' must be true or false")
    return value


def table(row: Mapping[str, Any], field: str) -> Row:
    """Return an object field of a row, {} if the field is missing.

    Raises ApiRefusal if the value is not a JSON object.
    """
    value = row.get(field)
    if value is None or value == []:  # PHP writes an empty object as [].
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"the field '{field}' must be a JSON object")
    return value


def encode(value: object) -> bytes:
    """Encode a value as JSON. Arguments of clients may hold values of any AMQP type."""
    return msgspec.json.encode(value, enc_hook=_encode_other)


def _encode_other(value: object) -> object:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    return str(value)


def refusal_of(error: Exception) -> ApiRefusal:
    """Return the HTTP refusal for an exception of the broker or of the request."""
    if isinstance(error, ApiRefusal):
        return error
    if isinstance(error, AccessRefused):
        return ApiRefusal(403, "not_authorised", str(error))
    if isinstance(error, NotFound):
        return not_found(str(error))
    if isinstance(error, BrokerError | ValueError):
        return bad_request(str(error))
    return ApiRefusal(
        503,
        "timeout",
        "the change was made, but is not durable yet, because the disk is slow: check whether it "
        "took effect before you try again",
    )
