"""One question to the API: who asks, about what; and how an answer, or a refusal, is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from broker.access.identity import Identity
from broker.errors import AccessRefused, BrokerError, NotFound
from broker.store.contract import SettledCallback, Ticket
from broker.vhost.vhost import VirtualHost
from trellis.http.server import Request, Response
from trellis.http.stream_files import SegmentSender
from trellis.monitoring.http_counters import HttpCounters
from trellis.server.node import BrokerNode

JSON: Final = "application/json"
#: Seconds that a change may take until it is durable.
DURABLE_SECONDS: Final = 30.0
#: Rows made, or written as JSON, without letting others have a turn.
SLICE_ROWS: Final = 100

Row = dict[str, Any]
Made = TypeVar("Made")


class ApiRefusal(Exception):
    """An answer that is an error: RabbitMQ's word for it, and why."""

    def __init__(self, status: int, error: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.error = error
        self.reason = reason


def not_found(what: str) -> ApiRefusal:
    return ApiRefusal(404, "Object Not Found", what)


def bad_request(reason: str) -> ApiRefusal:
    return ApiRefusal(400, "bad_request", reason)


class Listing:
    """Many rows, made one by one: they are paged, sorted and cut down to columns as the question
    wants it.
    """

    def __init__(self, rows: AsyncIterator[Row]) -> None:
        self.rows = rows


class Empty:
    """Nothing to say but that it is so."""

    def __init__(self, created: bool = False) -> None:
        self.status = 201 if created else 204


class ApiBackend:
    """What every API request may need: the broker node, the HTTP counters, the segment sender."""

    def __init__(self, node: BrokerNode, counters: HttpCounters, sender: SegmentSender) -> None:
        self.node = node
        self.counters = counters
        self.sender = sender


class Call:
    """An API request of a user that may make it."""

    def __init__(self, backend: ApiBackend, request: Request, identity: Identity) -> None:
        self.node = backend.node
        self.broker = backend.node.broker
        self.counters = backend.counters
        self.sender = backend.sender
        self.request = request
        self.identity = identity
        self.path_parameters = request.path_parameters
        self.query = request.query
        self.node.turn.update_clock()

    @property
    def sees_everything(self) -> bool:
        """Whether it may look at what belongs to others."""
        return self.identity.administrator or "monitoring" in self.identity.tags

    def sees(self, vhost: VirtualHost) -> bool:
        return self.sees_everything or self.identity.for_vhost(vhost.name) is not None

    @property
    def vhosts(self) -> list[VirtualHost]:
        """Those that it sees."""
        return [vhost for vhost in self.broker.vhosts.values() if self.sees(vhost)]

    def vhost(self, name: str) -> VirtualHost:
        """The virtual host of this name. Raises Refusal."""
        vhost = self.broker.vhosts.get(name)
        if vhost is None:
            raise not_found(f"there is no vhost '{name}'")
        if not self.sees(vhost):
            raise ApiRefusal(
                403, "not_authorised", f"user '{self.identity.name}' may not enter vhost '{name}'"
            )
        return vhost

    def may(self, operation: str, kind: str, name: str, vhost: VirtualHost) -> None:
        """Rights as a client of AMQP would need them. Raises AccessRefused."""
        within = self.identity.for_vhost(vhost.name)
        if within is None:
            raise AccessRefused(
                f"access to vhost '{vhost.name}' refused for user '{self.identity.name}'"
            )
        within.may(operation, kind, name, vhost.name)

    def flag(self, name: str) -> bool:
        return self.query.get(name) in ("true", "1", "")

    def body(self) -> Row:
        """The JSON object that came; none is an empty one. Raises Refusal."""
        try:
            value = msgspec.json.decode(self.request.body) if self.request.body.strip() else {}
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise ApiRefusal(400, "bad_request", f"not JSON: {error}") from None
        if not isinstance(value, dict):
            raise bad_request(f"a JSON object is needed, and this is {type(value).__name__}")
        return value

    async def make_durable(self, change: Callable[[Ticket], Made]) -> Made:
        """Make a change, and wait until it lasts. Raises BrokerError."""
        self.node.turn.schedule()
        lasts: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def settled() -> None:
            if not lasts.done():
                lasts.set_result(None)

        ticket = Ticket(SettledCallback(settled))
        made = change(ticket)
        if ticket.outstanding:
            async with asyncio.timeout(DURABLE_SECONDS):
                await lasts
        return made


def text(row: Mapping[str, Any], field: str, default: str | None = None) -> str:
    """Raises Refusal."""
    value = row.get(field, default)
    if not isinstance(value, str):
        raise bad_request(f"'{field}' is {'missing' if value is None else 'no text'}")
    return value


def flag(row: Mapping[str, Any], field: str) -> bool:
    """Raises Refusal."""
    value = row.get(field, False)
    if value in ("true", "false"):  # As some tools write it.
        return bool(value == "true")
    if not isinstance(value, bool):
        raise bad_request(f"'{field}' is neither true nor false")
    return value


def table(row: Mapping[str, Any], field: str) -> Row:
    """Raises Refusal."""
    value = row.get(field)
    if value is None or value == []:  # As PHP writes an empty one.
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"'{field}' is no JSON object")
    return value


def encode(value: object) -> bytes:
    """JSON, whatever clients put into arguments."""
    return msgspec.json.encode(value, enc_hook=_odd)


def _odd(value: object) -> object:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    return str(value)


def encode_many(rows: list[Row]) -> bytes:
    """A JSON list; no row is left afterwards.

    For a thread: in steps, so that the loop gets its turns.
    """
    parts: list[bytes] = []
    rows.reverse()
    while rows:
        some = rows[-SLICE_ROWS:]
        some.reverse()
        del rows[-SLICE_ROWS:]
        parts.append(encode(some)[1:-1])
    return b"[" + b",".join(parts) + b"]"


def refuse(status: int, error: str, reason: str, challenge: bool = False) -> Response:
    return Response(status, encode({"error": error, "reason": reason}), JSON, challenge)


def refusal_of(error: Exception) -> Response:
    """What is answered when the core refuses, or the question is wrong."""
    if isinstance(error, ApiRefusal):
        return refuse(error.status, error.error, error.reason)
    if isinstance(error, AccessRefused):
        return refuse(403, "not_authorised", str(error))
    if isinstance(error, NotFound):
        return refuse(404, "Object Not Found", str(error))
    if isinstance(error, BrokerError | ValueError):
        return refuse(400, "bad_request", str(error))
    return refuse(503, "timeout", "it was done, and is not on the disk yet")
