"""Moves of messages between queues: begin, list and cancel them, and dry runs."""

from __future__ import annotations

import math
from typing import Final

from broker.access.identity import Identity
from broker.queues.queue import Queue
from broker.store.disk import OutOfDescriptors
from broker.vhost.message_move import RUNNING_MAX, MessageMove
from broker.vhost.move_destination import MoveDestination, ToExchange, ToOrigin, ToQueue
from broker.vhost.move_survey import MoveSurvey
from broker.vhost.vhost import VirtualHost
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
    text,
)
from trellis.http.management.messages import whole_number
from trellis.http.management.peeking import readable_queue
from trellis.http.management.topology import exchange_name

#: Largest number of messages that one request can move.
COUNT_MAX: Final = 1 << 53


async def move(call: Call) -> Row:
    """Move messages of the queue in the path to another queue or to an exchange, or make a dry run.

    The body has `queue`, or `exchange` and optionally `key`. The body may also have `count`
    (largest number of messages), `rate` (messages per second) and `dry_run` (only report what a
    move would do).
    """
    vhost, source = _source(call)
    row = call.body()
    if ("queue" in row) == ("exchange" in row):
        raise bad_request(
            "the body must name one destination: give either 'queue', or 'exchange' (and 'key')"
        )
    destination: MoveDestination
    if "queue" in row:
        name = text(row, "queue")
        if vhost.queue(name) is source:
            raise bad_request(
                f"queue '{name}' is the source of the move, so it cannot be its destination"
            )
        destination = ToQueue(name)
    else:
        exchange = exchange_name(text(row, "exchange"))
        vhost.exchange(exchange)
        destination = ToExchange(exchange, text(row, "key") if "key" in row else None)
        call.may("write", "exchange", exchange or "amq.default", vhost)
    return await _begin(call, vhost, source, destination)


async def redrive(call: Call) -> Row:
    """Redrive the dead letters of a queue: move them back to the queues that dead-lettered them.

    The body may have `count` (largest number of messages), `rate` (messages per second) and
    `dry_run` (only report the destinations).
    """
    vhost, source = _source(call)
    return await _begin(call, vhost, source, ToOrigin())


def _source(call: Call) -> tuple[VirtualHost, Queue]:
    """Return the queue that the path names, if its messages can be moved.

    Raises ResourceLocked if the queue is exclusive to a connection or belongs to a session, and
    ApiRefusal or AccessRefused if the user may not read its messages.
    """
    vhost, source = readable_queue(call, "move messages of")
    return vhost, vhost.queue(source.name)


async def _begin(
    call: Call, vhost: VirtualHost, source: Queue, destination: MoveDestination
) -> Row:
    """Begin to move messages from `source` to `destination`; return the row of the move.

    If the request has `dry_run`, move nothing, and return what a move would move now. Raises
    ApiRefusal, AccessRefused.
    """
    row = call.body()
    count = whole_number(row, "count", COUNT_MAX, COUNT_MAX)
    rate = _rate(row)
    if not isinstance(destination, ToExchange):
        call.may("write", "exchange", "amq.default", vhost)
    if flag(row, "dry_run"):
        return await _survey(call, vhost, source, destination, count)
    other = call.moves.running(source)
    if other or call.moves.is_full:
        problem = (
            f"move {other} of queue '{source.name}' is running: wait until this move ends, or "
            "cancel it"
            if other
            else f"{RUNNING_MAX} moves are running, which is the limit: wait until a move ends, or "
            "cancel a move"
        )
        raise ApiRefusal(409, "conflict", problem)
    begun = MessageMove(
        vhost, source, destination, _identity_now(call, vhost), count, rate, call.identity.name
    )
    call.node.turn.schedule()
    started = call.moves.start(begun)
    facts = {"move": started, "destination": destination.text(), "messages": begun.wanted}
    call.audit("move", "queue", vhost.name, source.name, facts)
    return move_row(started, begun)


def _rate(row: Row) -> float:
    rate = row.get("rate", 0)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < math.inf:
        raise bad_request("'rate' must be a number of messages per second, 0 (no limit) or larger")
    return float(rate)


class _PresentIdentity:
    """A callable that returns the present identity of a call's user in one virtual host.

    A move calls this object, because permissions may change while the move runs.
    """

    def __init__(self, call: Call, vhost: VirtualHost) -> None:
        self._authenticator = call.broker.authenticator
        self._identity = call.identity
        self._vhost = vhost.name

    def __call__(self) -> Identity | None:
        renewed = self._authenticator.renew(self._identity)
        return None if renewed is None else renewed.for_vhost(self._vhost)


def _identity_now(call: Call, vhost: VirtualHost) -> _PresentIdentity:
    return _PresentIdentity(call, vhost)


async def _survey(
    call: Call, vhost: VirtualHost, source: Queue, destination: MoveDestination, count: int
) -> Row:
    """Return the result of a dry run: the messages that a move would move now, by destination.

    `count` is the largest number of messages to move. Raises ApiRefusal.
    """
    identity = _PresentIdentity(call, vhost)()
    if identity is None:
        raise ApiRefusal(
            403,
            "not_authorised",
            f"user '{call.identity.name}' has no permissions in vhost '{vhost.name}' any more: "
            "grant permissions with `trellis permissions set`",
        )
    survey = MoveSurvey(vhost, identity, destination, source, count)
    try:
        async with call.slice() as work:
            for _ in survey.steps():
                if work.over:
                    await work.pause()
    except OutOfDescriptors:
        raise ApiRefusal(
            503,
            "busy",
            "the broker has no free file descriptor to read the messages of queue "
            f"'{source.name}': try again",
        ) from None
    return {
        "dry_run": True,
        "vhost": vhost.name,
        "queue": source.name,
        "destination": destination.text(),
        "messages": survey.messages,
        "examined": survey.examined,
        "queues": [
            {"name": name, "messages": number, "transient": name in survey.transient}
            for name, number in survey.queues.items()
        ],
        "refused": survey.refused,
    }


def move_row(number: int, known: MessageMove) -> Row:
    """Return a move of messages as a row of the API."""
    return {
        "id": number,
        "vhost": known.vhost.name,
        "queue": known.source.name,
        "destination": known.destination.text(),
        "user": known.user,
        "state": known.state if known.is_complete or known.state == "running" else "ending",
        "reason": known.reason,
        "messages": known.wanted,
        "moved": int(known.moved),
        "refused": known.refused,
        "rate": known.rate,
    }


async def moves(call: Call) -> Listing:
    """List the moves of messages that are running, and the last moves that have ended."""
    return Listing(
        iterate(
            move_row(number, known) if call.sees(known.vhost) else None
            for number, known in call.moves.all()
        )
    )


async def one_move(call: Call) -> Row:
    """Return the move of messages that the path names, with its progress."""
    return move_row(*_named(call))


async def cancel(call: Call) -> Empty:
    """Cancel the move of messages that the path names. Messages that were moved stay moved."""
    number, known = _named(call)
    if known.user != call.identity.name:
        call.require_administrator(f"cancel move {number} of user '{known.user}'")
    call.node.turn.schedule()
    known.cancel()
    call.audit("cancel", "move", known.vhost.name, known.source.name, {"move": number})
    return Empty()


def _named(call: Call) -> tuple[int, MessageMove]:
    """Return the move that the path names, with its number. Raises ApiRefusal."""
    name = call.path_parameters[0]
    known = call.moves.find(int(name)) if name.isdecimal() and len(name) < 16 else None
    if known is None or not call.sees(known.vhost):
        raise not_found(f"there is no move '{name}'; GET /api/moves lists the moves")
    return int(name), known
