"""Paths that RabbitMQ does not have: rows for `trellis list`, delayed messages, MQTT sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from broker.queues.delay import DelayQueue
from broker.replication.errors import ReplicationError
from trellis.http import contract
from trellis.http.management.answers import (
    DURABLE_SECONDS,
    ApiRefusal,
    Call,
    Empty,
    HandedOver,
    Listing,
    Row,
    bad_request,
    not_found,
)
from trellis.monitoring import listings

#: The fields that identify a row without a field `name`: of sessions, consumers, connections,
#: retained messages, topics and bindings, and events of the log.
NAME_FIELDS: Final = ("client_id", "consumer_tag", "peer", "topic", "routing_key", "event")
#: Largest number of digits of the number of a delayed message.
ORDER_DIGITS_MAX: Final = 18


async def rows(call: Call) -> Listing:
    """Return the rows of `trellis list KIND` in the virtual hosts that the user may see."""
    return await _rows(call, call.path_parameters[0])


async def delayed(call: Call) -> Listing:
    """List the messages that wait in delayed exchanges, as `trellis list delayed` does."""
    return await _rows(call, "delayed")


async def _rows(call: Call, kind: str) -> Listing:
    if kind not in listings.KINDS:
        raise not_found(f"there is no list '{kind}'; the lists are {', '.join(listings.KINDS)}")
    if kind in listings.ADMINISTRATOR_KINDS:
        call.require_administrator(f"list the {kind}")
    if kind in listings.MONITORING_KINDS and not call.sees_everything:
        other = "; GET /api/retained/VHOST lists the retained topics that the user may read"
        raise ApiRefusal(
            403,
            "not_authorised",
            f"user '{call.identity.name}' lacks the tag 'monitoring', which the list '{kind}' "
            f"requires{other if kind == 'retained' else ''}",
        )
    paged = "page" in call.query
    # A connection has no virtual host before its login: only monitoring shows it.
    seen = None if call.sees_everything else {vhost.name for vhost in call.vhosts}

    async def visible() -> AsyncIterator[Row | None]:
        async for row in listings.KINDS[kind](call.node):
            if seen is not None and row.get("vhost", "") not in seen:
                yield None
            elif paged and "name" not in row:
                # The gateway filters pages by this field.
                names = [str(row[field]) for field in NAME_FIELDS if field in row]
                yield {"name": names[0] if names else "", **row}
            else:
                yield row

    return Listing(visible(), contract.PAGED if paged else contract.PLAIN)


async def switch(call: Call) -> HandedOver:
    """Hand the replicated log over to the standby that the body names in `to`.

    Without `to`, the broker chooses the standby. This process ends soon after the answer.
    """
    hand_over, wanted = call.node.switch, call.body().get("to", "")
    if hand_over is None:
        raise not_found("no other node can take over: this broker is not a node of a cluster")
    if not isinstance(wanted, str):
        raise bad_request("the field 'to' must be the name of a node")
    call.audit("switch", "cluster", "", wanted)
    try:
        return HandedOver({"to": await hand_over(wanted)})
    except ReplicationError as error:
        raise ApiRefusal(409, "not_switched", str(error)) from None


async def cancel(call: Call) -> list[Row]:
    """Cancel the delayed message that the query names; return [] after the cancellation.

    The query has `vhost`, `exchange` and `id`, the number of the message in the exchange.
    """
    vhost, name, order = (call.query.get(field, "") for field in ("vhost", "exchange", "id"))
    waiting = call.broker.vhosts[vhost].delays.get(name) if vhost in call.broker.vhosts else None

    def on_removed() -> None:
        call.audit("delete", "delayed message", vhost, name, {"id": order})

    is_number = order.isdecimal() and len(order) <= ORDER_DIGITS_MAX
    if (
        waiting is None
        or not is_number
        or not await _withdrawn(call, waiting, int(order), on_removed)
    ):
        raise not_found(
            f"exchange '{name}' in vhost '{vhost}' delays no message with the number '{order}'"
        )
    await call.make_durable(call.broker.store.wait_for_all)
    return []


async def _withdrawn(
    call: Call, waiting: DelayQueue, sequence: int, on_removed: Callable[[], None]
) -> bool:
    """Withdraw the message `sequence` from the delayed messages of an exchange.

    Return True if the message was removed, False if the exchange delays no such message.

    `on_removed` is called when the message has been removed. If the API call ends while the search
    for the message still runs, the search is cancelled. Raises TimeoutError after DURABLE_SECONDS.
    """
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def on_answer(existed: bool) -> None:
        if existed:
            on_removed()
        if not answer.done():
            answer.set_result(existed)

    withdrawal = waiting.withdraw(sequence, on_answer)
    call.node.turn.schedule()
    try:
        async with asyncio.timeout(DURABLE_SECONDS):
            return await answer
    finally:
        withdrawal.cancel()


async def delete_session(call: Call) -> Empty:
    """End the MQTT session of a client identifier, with its messages, and disconnect its client.

    The client's will is not published. Afterwards any user may connect with the identifier.
    """
    vhost, client_id = call.vhost(call.path_parameters[0]), call.path_parameters[1]
    if not await call.make_durable(
        lambda ticket: call.node.mqtt.delete_session(vhost, client_id, ticket)
    ):
        raise not_found(f"client identifier '{client_id}' has no session in vhost '{vhost.name}'")
    call.audit("delete", "session", vhost.name, client_id)
    return Empty()
