"""Virtual hosts, exchanges and queues: list, create, protect, pause, purge and delete them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Final

from broker.compatibility import TRACING
from broker.queues.pausing import pause, resume
from broker.queues.queue import Queue
from broker.routing.exchanges import Exchange
from broker.routing.exchanges.base import ExchangeOptions
from broker.store.contract import Ticket
from broker.stream.queue import StreamQueue
from broker.vhost.client_declarations import purge_queue as purge
from broker.vhost.client_declarations import with_default_type
from broker.vhost.options import OPTIONS, options_of
from broker.vhost.vhost import VirtualHost
from trellis.http.management import serializers
from trellis.http.management.answers import (
    ApiRefusal,
    Call,
    Empty,
    Listing,
    Row,
    bad_request,
    flag,
    iterate,
    not_found,
    table,
    text,
    vhost_closing,
)
from trellis.http.management.paged import Columns, selected_page
from trellis.http.management.rates import delivery_counts
from trellis.monitoring.ingress import collect_counts

#: Number of objects that are counted in one turn of the event loop.
COUNT_SLICE: Final = 1_000
#: Seconds that the deletion of a virtual host may take.
VHOST_DELETION_SECONDS: Final = 60.0
#: Seconds between two checks whether the deletion of a virtual host is complete.
POLL_SECONDS: Final = 0.01
#: Name of the default exchange in the API; its real name is empty.
DEFAULT: Final = "amq.default"

#: The gauges in the API row of a queue (counts that may fall), and the rates in the row of a queue
#: that never had a message.
_GAUGES: Final = ("messages", "messages_ready", "messages_unacknowledged")
_STILL: Final[Row] = {f"{name}_details": {"rate": 0.0} for name in _GAUGES}


def exchange_name(name: str) -> str:
    """Return the name of the exchange that a path names: "" for DEFAULT, else `name` itself."""
    return "" if name == DEFAULT else name


# -- virtual hosts


async def count_messages(vhost: VirtualHost) -> tuple[int, int]:
    """Count the ready and unacknowledged messages of a virtual host, in slices; return both."""
    totals = vhost.totals()
    more = True
    while more:
        more = totals.step(COUNT_SLICE)
        await asyncio.sleep(0)
    return int(totals.ready + totals.inbox_ready), int(totals.unacked + totals.inbox_unacked)


async def _vhost_row(call: Call, vhost: VirtualHost) -> Row:
    return serializers.vhost_row(vhost, call.broker.name, *await count_messages(vhost))


async def vhosts(call: Call) -> Listing:
    """List the virtual hosts that the user may see."""

    async def rows() -> AsyncIterator[Row]:
        for vhost in call.vhosts:
            yield await _vhost_row(call, vhost)

    return Listing(rows())


async def vhost(call: Call) -> Row:
    """Return the virtual host that the path names."""
    return await _vhost_row(call, call.vhost(call.path_parameters[0]))


async def put_vhost(call: Call) -> Empty:
    """Create a virtual host, or change its description, tags and default queue type."""
    name, row = call.path_parameters[0], call.body()
    known = call.broker.vhosts.get(name)
    if known is not None and known.closing:
        raise vhost_closing(name)
    if row.get("tracing") is not None and flag(row, "tracing"):
        raise bad_request(f"cannot trace vhost '{name}': {TRACING.text}")
    creator = call.identity.name
    options = None
    if row.keys() & {*OPTIONS, "metadata"} or known is None:
        before = {} if known is None else known.options.row
        given = {**table(row, "metadata"), **row, "metadata": {}}
        options = options_of(name, {**before, **given, "limits": before.get("limits", {})})

    def create(ticket: Ticket) -> None:
        """Create the virtual host and the permissions of its creator, in one step."""
        call.broker.create_vhost(name, ticket, options)
        if known is None and call.broker.users.by_name.get(creator) is call.identity:
            # As in RabbitMQ, the creator of a virtual host gets all permissions in it. (The
            # settings grant the permissions of their users.)
            call.broker.users.set_permission(name, creator, ".*", ".*", ".*", ticket)

    await call.make_durable(create)
    return Empty(known is None)


async def protect_vhost(call: Call) -> Empty:
    """Protect the virtual host that the path names from deletion."""
    return await _set_protection(call, True)


async def unprotect_vhost(call: Call) -> Empty:
    """Remove the protection from deletion of the virtual host that the path names."""
    return await _set_protection(call, False)


async def _set_protection(call: Call, protected: bool) -> Empty:
    vhost = call.vhost(call.path_parameters[0])
    options = vhost.options.with_protection(protected)
    await call.make_durable(lambda ticket: call.broker.create_vhost(vhost.name, ticket, options))
    return Empty()


async def delete_vhost(call: Call) -> Empty:
    """Delete the virtual host that the path names, and wait until the deletion has ended."""
    vhost = call.vhost(call.path_parameters[0])
    await call.make_durable(lambda ticket: call.broker.close_vhost(vhost.name, ticket))
    call.node.review()
    for _ in range(int(VHOST_DELETION_SECONDS / POLL_SECONDS)):
        if call.broker.vhosts.get(vhost.name) is not vhost:
            await call.make_durable(call.broker.store.wait_for_all)
            return Empty()
        await asyncio.sleep(POLL_SECONDS)
    raise ApiRefusal(
        503,
        "timeout",
        f"vhost '{vhost.name}' is still being deleted after {VHOST_DELETION_SECONDS:g} s; the "
        "deletion goes on: GET the vhost until it is not found",
    )


# -- exchanges


async def exchanges(call: Call) -> Listing:
    """List the exchanges of the virtual host in the path, or of all visible virtual hosts."""
    vhosts = call.path_vhosts

    async def rows() -> AsyncIterator[Row]:
        for vhost in vhosts:
            await collect_counts([vhost])
            for exchange in list(vhost.exchanges.values()):
                yield _exchange_row(call, vhost, exchange)

    return Listing(rows())


async def exchange(call: Call) -> Row:
    """Return the exchange that the path names."""
    vhost = call.vhost(call.path_parameters[0])
    await collect_counts([vhost])
    return _exchange_row(call, vhost, vhost.exchange(exchange_name(call.path_parameters[1])))


def _exchange_row(call: Call, vhost: VirtualHost, exchange: Exchange) -> Row:
    """Return an exchange as a row of the API.

    The caller must have collected the exchange's message statistics.
    """
    row = serializers.exchange_row(vhost, exchange)
    counts = {
        "publish_in": int(exchange.published),
        "publish_out": int(exchange.copies),
        "drop_unroutable": int(exchange.unroutable),
    }
    statistics = call.rated(("exchange", vhost.name, exchange.name), counts)
    return row | {"message_stats": statistics} if statistics else row


async def put_exchange(call: Call) -> Empty:
    """Declare the exchange that the path names."""
    vhost, name, row = call.vhost(call.path_parameters[0]), call.path_parameters[1], call.body()
    options = ExchangeOptions(
        flag(row, "durable") if "durable" in row else True,
        flag(row, "auto_delete"),
        flag(row, "internal"),
        table(row, "arguments"),
    )
    known = name in vhost.exchanges
    kind = text(row, "type", "direct")
    call.rights(vhost).check_exchange(name, kind, options.arguments, known)
    if not known and (name.startswith("amq.") or not name):
        raise bad_request(_reserved("exchange", name))
    await call.make_durable(lambda ticket: vhost.declare_exchange(name, kind, options, ticket))
    return Empty(not known)


def _reserved(kind: str, name: str) -> str:
    """Return the error for the name of a new queue or exchange: empty, or with the prefix amq."""
    fault = "contains reserved prefix 'amq.*'" if name else "must not be empty"
    return f"{kind} name '{name}' {fault}"


async def delete_exchange(call: Call) -> Empty:
    """Delete the exchange that the path names."""
    vhost, name = call.vhost(call.path_parameters[0]), exchange_name(call.path_parameters[1])
    vhost.exchange(name)
    if not name or name.startswith("amq."):
        raise bad_request(
            f"deletion of system exchange '{name}' in vhost '{vhost.name}' not allowed"
        )
    call.may("configure", "exchange", name, vhost)
    await call.make_durable(
        lambda ticket: vhost.delete_exchange(name, call.query.get("if-unused") == "true", ticket)
    )
    return Empty()


# -- queues


#: The columns by which the broker sorts a page of queues without making their rows.
QUEUE_COLUMNS: Final[Columns[tuple[VirtualHost, Queue]]] = {
    "name": lambda one: one[1].name,
    "vhost": lambda one: one[0].name,
    "messages": lambda one: int(one[1].depth + one[1].unacked),
    "messages_ready": lambda one: int(one[1].depth),
    "messages_unacknowledged": lambda one: int(one[1].unacked),
    "consumers": lambda one: one[1].consumer_count,
    "head_age_ms": lambda one: one[1].head_age,
}


async def queues(call: Call) -> Listing | Row:
    """List the queues and inboxes of the path's virtual host, or of all visible vhosts.

    With `sessions=false` in the query, the inboxes of MQTT sessions are left out.
    """
    vhosts = call.path_vhosts
    with_inboxes = call.query.get("sessions") != "false"

    def listed() -> Iterator[tuple[VirtualHost, Queue]]:
        for vhost in vhosts:
            inboxes = vhost.inboxes.values() if with_inboxes else ()
            for queue in [*vhost.queues.values(), *inboxes]:
                yield vhost, queue

    page = await selected_page(
        call, listed(), QUEUE_COLUMNS, lambda one: _queue_row(call, one[0], one[1])
    )
    if page is not None:
        return page
    return Listing(iterate(_queue_row(call, vhost, queue) for vhost, queue in listed()))


def named_queue(call: Call) -> tuple[VirtualHost, Queue]:
    """Return the virtual host and the queue that a path names. Raises ApiRefusal."""
    vhost, name = call.vhost(call.path_parameters[0]), call.path_parameters[1]
    queue = vhost.queues.get(name) or vhost.inboxes.get(name)
    if queue is None:
        raise missing_queue(call, vhost, name)
    return vhost, queue


def missing_queue(call: Call, vhost: VirtualHost, name: str) -> ApiRefusal:
    """Return the refusal of a request for a queue that does not exist.

    If an MQTT session with an inbox has the name, the text says so, and names the inbox.
    """
    text = f"no queue '{name}' in vhost '{vhost.name}'"
    session = call.node.mqtt.sessions.find(vhost, name)
    if session is not None and session.inbox.name:
        text += (
            f", but session '{name}' in vhost '{vhost.name}' has the inbox '{session.inbox.name}' "
            "(column `inbox` of `trellis list sessions`): give the name of the inbox"
        )
    return not_found(text)


async def queue(call: Call) -> Row:
    """Return the queue that the path names."""
    return _queue_row(call, *named_queue(call))


def _queue_row(call: Call, vhost: VirtualHost, queue: Queue) -> Row:
    """Return a queue as a row of the API, with its message statistics and rates."""
    row = serializers.queue_row(vhost, queue, call.broker.name)
    statistics = queue.statistics()
    if not any(statistics):
        return row | _STILL
    gauges = {name: row[name] for name in _GAUGES}
    rated = call.rated(("queue", vhost.name, queue.name), delivery_counts(statistics), gauges)
    for name in _GAUGES:
        row[f"{name}_details"] = rated.pop(f"{name}_details")
    row["message_stats"] = rated
    return row


async def put_queue(call: Call) -> Empty:
    """Declare the queue that the path names."""
    vhost, name, row = call.vhost(call.path_parameters[0]), call.path_parameters[1], call.body()
    durable = flag(row, "durable") if "durable" in row else True
    auto_delete = flag(row, "auto_delete")
    arguments = with_default_type(vhost, name, table(row, "arguments"), durable, False, auto_delete)
    known = name in vhost.queues
    if not known and (name.startswith("amq.") or not name):
        raise bad_request(_reserved("queue", name))
    call.rights(vhost).check_queue(name, arguments, known)
    await call.make_durable(
        lambda ticket: vhost.declare_queue(
            name, durable, arguments, None, False, auto_delete, ticket
        )
    )
    return Empty(not known)


async def delete_queue(call: Call) -> Empty:
    """Delete the queue that the path names.

    With `if-unused=true` in the query, a queue with consumers is not deleted; with `if-empty=true`,
    a queue with messages. An exclusive queue is not deleted either, as in RabbitMQ: only its
    connection may delete it. In these cases, the request is refused.
    """
    vhost, queue = named_queue(call)
    call.may("configure", "queue", queue.name, vhost)
    deleted = vhost.queue(queue.name)
    await call.make_durable(
        lambda ticket: vhost.delete_queue(
            deleted,
            call.query.get("if-unused") == "true",
            call.query.get("if-empty") == "true",
            ticket,
        )
    )
    return Empty()


async def pause_queue(call: Call) -> Empty:
    """Pause the deliveries of the queue that the path names.

    A paused queue accepts messages and delivers none until it is resumed or the broker ends.
    """
    queue = _pausable(call)
    if pause(queue):
        call.audit("pause", "queue", queue.vhost, queue.name)
    return Empty()


async def resume_queue(call: Call) -> Empty:
    """Resume the deliveries of the paused queue that the path names."""
    queue = _pausable(call)
    if resume(queue):
        call.audit("resume", "queue", queue.vhost, queue.name)
    return Empty()


def _pausable(call: Call) -> Queue:
    """Return the queue that the path names, if it can be paused. Raises ApiRefusal."""
    _, queue = _no_stream(
        call,
        "configure",
        "cannot be paused: each consumer reads at an offset of its own; close the consumers "
        "instead",
    )
    return queue


def _no_stream(call: Call, right: str, problem: str) -> tuple[VirtualHost, Queue]:
    """Return the virtual host and the queue in the path, for a request that streams cannot serve.

    Also schedule a turn of the broker, in which the change of the queue takes effect. Raises
    ApiRefusal if the queue is a stream; `problem` is the reason in the error. Raises AccessRefused
    if the user lacks the permission `right` for the queue, ResourceLocked if the queue is exclusive
    to a connection or belongs to a session.
    """
    vhost, named = named_queue(call)
    call.may(right, "queue", named.name, vhost)
    queue = vhost.queue(named.name)
    if isinstance(queue, StreamQueue):
        raise bad_request(
            f"queue '{queue.name}' in vhost '{vhost.name}' is a stream, which {problem}"
        )
    call.node.turn.schedule()
    return vhost, queue


async def purge_queue(call: Call) -> Empty:
    """Purge the queue that the path names: remove all its ready messages. Raises ApiRefusal."""
    vhost, queue = _no_stream(
        call,
        "read",
        "cannot be purged: retention (x-max-age, x-max-length-bytes) removes old rows",
    )

    def purge_and_wait(ticket: Ticket) -> None:
        purge(vhost, queue)
        call.broker.store.wait_for_all(ticket)

    await call.make_durable(purge_and_wait)
    return Empty()
