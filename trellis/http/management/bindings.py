"""Bindings: list, create and delete them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any
from urllib.parse import quote

from broker.errors import no_queue
from broker.queues.destination import Destination
from broker.queues.queue import Queue
from broker.routing.binding import Binding
from broker.routing.exchanges import Exchange
from broker.vhost.vhost import VirtualHost
from matching.grammar import swap
from trellis.http.management import serializers
from trellis.http.management.answers import (
    Call,
    Empty,
    Listing,
    Row,
    bad_request,
    iterate,
    not_found,
    table,
    text,
)
from trellis.http.management.topology import exchange_name, named_queue


def _bindings_from(vhost: VirtualHost, exchange: Exchange) -> Iterable[Row]:
    for binding in exchange.bindings:
        yield serializers.binding_row(vhost, exchange.name, binding)


async def bindings(call: Call) -> Listing:
    """List the bindings of the virtual host in the path, or of all visible virtual hosts.

    With `default=false` in the query, the bindings of the default exchange are left out. With
    `key=TEXT`, a binding is listed only if its key contains the text, or if the MQTT topic filter
    that corresponds to its key contains the text.
    """
    vhosts = call.path_vhosts
    with_default = call.query.get("default") != "false"
    wanted = call.query.get("key", "").lower()

    async def rows() -> AsyncIterator[Row | None]:
        for vhost in vhosts:
            for queue in list(vhost.queues.values()) if with_default else ():
                row = serializers.default_binding(vhost, queue)
                yield row if _has_key(row, wanted) else None
            for exchange in list(vhost.exchanges.values()):
                for row in _bindings_from(vhost, exchange):
                    yield row if _has_key(row, wanted) else None

    return Listing(rows())


def _has_key(row: Row, wanted: str) -> bool:
    """True if the binding key of a row, or the corresponding MQTT topic filter, contains `wanted`.

    `wanted` is in lowercase; the key may have any case.
    """
    key = row["routing_key"].lower()
    return wanted in key or wanted in swap(key)


async def exchange_source(call: Call) -> Listing:
    """List the bindings whose source is the exchange that the path names."""
    vhost = call.vhost(call.path_parameters[0])
    exchange = vhost.exchange(exchange_name(call.path_parameters[1]))
    if exchange.name == "":
        return Listing(
            iterate(
                serializers.default_binding(vhost, queue) for queue in list(vhost.queues.values())
            )
        )
    return Listing(iterate(_bindings_from(vhost, exchange)))


def _bindings_to(vhost: VirtualHost, target: Destination) -> Iterator[Row | None]:
    """Yield the bindings to a destination; None after each exchange, so that other work can run."""
    for exchange in list(vhost.exchanges.values()):
        for binding in exchange.bindings.to(target):
            yield serializers.binding_row(vhost, exchange.name, binding)
        yield None


async def exchange_destination(call: Call) -> Listing:
    """List the bindings whose destination is the exchange that the path names."""
    vhost = call.vhost(call.path_parameters[0])
    return Listing(
        iterate(_bindings_to(vhost, vhost.exchange(exchange_name(call.path_parameters[1]))))
    )


async def queue_bindings(call: Call) -> Listing:
    """List the bindings of the queue that the path names, or the subscriptions of an inbox."""
    vhost, queue = named_queue(call)

    def rows() -> Iterator[Row | None]:
        if not queue.private:
            yield serializers.default_binding(vhost, queue)
            yield from _bindings_to(vhost, queue)
            return
        for each in list(vhost.subscribers):
            if each.inbox is queue:
                yield from _bindings_to(vhost, each)
            yield None

    return Listing(iterate(rows()))


def _binding_ends(call: Call) -> tuple[VirtualHost, Exchange, Destination, str]:
    """Return the virtual host, source, destination and kind of destination that a path names.

    The path is .../{vhost}/e/{source}/{q or e}/{destination}. The kind is "queue" or "exchange".
    Raises ApiRefusal, and NotFound if the source or the destination does not exist.
    """
    vhost = call.vhost(call.path_parameters[0])
    kind = "queue" if "/q/" in _tail(call) else "exchange"
    source = vhost.exchange(exchange_name(call.path_parameters[1]))
    target: Destination = (
        vhost.exchange(call.path_parameters[2])
        if kind == "exchange"
        else _owned(vhost, call.path_parameters[2])
    )
    return vhost, source, target, kind


def _tail(call: Call) -> str:
    """Return the part of a path that tells whether a binding leads to a queue or an exchange.

    The part is `/q/` for a queue, and `/e/` for an exchange.
    """
    return "/q/" if call.request.path.split("/")[6] == "q" else "/e/"


def _owned(vhost: VirtualHost, name: str) -> Queue:
    """Return the queue or inbox with a name in a virtual host. Raises NotFound."""
    queue = vhost.queues.get(name)
    if queue is None:
        raise no_queue(name, vhost.name)
    return queue


def _check_not_exclusive(vhost: VirtualHost, target: object) -> None:
    """Raise ResourceLocked if the destination of a binding is an exclusive queue.

    Only the connection that declared an exclusive queue may bind and unbind it, as in RabbitMQ.
    """
    if isinstance(target, Queue):
        vhost.queue(target.name)


async def bindings_between(call: Call) -> Listing:
    """List the bindings between the source and the destination that the path names."""
    vhost, source, target, _ = _binding_ends(call)
    if source.name == "":
        return Listing(
            iterate(
                [serializers.default_binding(vhost, target)] if isinstance(target, Queue) else []
            )
        )
    return Listing(
        iterate(
            serializers.binding_row(vhost, source.name, one) for one in source.bindings.to(target)
        )
    )


async def post_binding(call: Call) -> Any:
    """Create a binding between the source and the destination that the path names."""
    vhost, source, target, kind = _binding_ends(call)
    row = call.body()
    key, arguments = text(row, "routing_key", ""), table(row, "arguments")
    if source.name == "":
        raise bad_request(
            "operation not permitted on the default exchange, which routes to queues by their names"
        )
    call.may("write", kind, target.name, vhost)
    call.may("read", "exchange", source.name, vhost)
    _check_not_exclusive(vhost, target)
    call.rights(vhost).check_binding(source, key, target if isinstance(target, Exchange) else None)
    binding = Binding(key, target, arguments=arguments)
    await call.make_durable(lambda ticket: vhost.bind(source.name, binding, ticket))
    # The end of the path of the binding, as in RabbitMQ's API: tools read `properties_key` there.
    location = f"{quote(target.name, '')}/{quote(serializers.properties_key(binding), '')}"
    return Empty(True, location)


async def _find_binding(call: Call) -> tuple[VirtualHost, Exchange, Binding, str]:
    """Return the virtual host, source, binding and kind of destination that a path names.

    Searches in slices. Raises ApiRefusal, NotFound.
    """
    vhost, source, target, kind = _binding_ends(call)
    async with call.slice() as work:
        for binding in source.bindings.to(target):
            if serializers.properties_key(binding) == call.path_parameters[3]:
                return vhost, source, binding, kind
            if work.over:
                await work.pause()
    raise not_found(
        f"there is no binding with the properties_key '{call.path_parameters[3]}' between exchange "
        f"'{source.name}' and {kind} '{target.name}' in vhost '{vhost.name}'"
    )


async def binding(call: Call) -> Row:
    """Return the binding that the path names."""
    vhost, source, existing, _ = await _find_binding(call)
    return serializers.binding_row(vhost, source.name, existing)


async def delete_binding(call: Call) -> Empty:
    """Delete the binding that the path names."""
    vhost, source, existing, kind = await _find_binding(call)
    call.may("write", kind, existing.destination.name, vhost)
    call.may("read", "exchange", source.name, vhost)
    _check_not_exclusive(vhost, existing.destination)
    await call.make_durable(lambda ticket: vhost.unbind(source.name, existing, ticket))
    return Empty()
