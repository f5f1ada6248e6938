"""Diagnosis of a client: the reasons why the broker refuses, disconnects or slows it.

A client is identified by its MQTT client identifier, by the `connection_name` that its AMQP
connection declared, by the broker's full name of the connection, by its address, or by its user.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from broker.alarms import Alarms
from broker.messages.fates import OVER_LIMIT
from broker.queues.queue import Queue
from protocols.amqp.connection.connection import AmqpConnection
from protocols.connection import Connection
from protocols.mqtt.session.session import Session
from protocols.refusal_fields import ACCESS, CAUSE, LIMIT, MISSING_EXCHANGE, MISSING_QUEUE
from trellis.diagnosis.findings import Problem, command, in_vhost, only, plural
from trellis.diagnosis.findings import waiting as waits
from trellis.diagnosis.queues import FULL, state_of
from trellis.server.refusals import LoggedRefusal

#: Names of the fields of a logged refusal that may name a client.
NAME_FIELDS: Final = ("client_id", "client", "user", "address", "new_address")
#: Largest number of refusals of a client that are shown: the latest ones.
REFUSALS_MAX: Final = 10
#: The event of a refused HTTP request.
HTTP_REFUSED: Final = "http_refused"
#: The texts of refusals, by event.
_EVENTS: Final = {
    "login_refused": "a login was refused",
    "connection_refused": "a connection was refused",
    "connection_closed": "the broker closed a connection",
    "channel_closed": "the broker closed a channel",
    "publication_refused": "a publication was refused",
    "topic_refused": "a topic was refused",
    "publications_left_out": "further publications were refused",
    "subscription_refused": "a subscription was refused",
    "session_taken_over": "another connection took the session over",
    HTTP_REFUSED: "a request over HTTP was refused",
}


def belongs_to(row: dict[str, object], full_name: str, name: str) -> bool:
    """True if `name` names the connection: client identifier, connection name, user or address.

    The address is with or without its port. `row` is the connection's row in the list of
    connections, `full_name` the broker's full name of the connection.
    """
    peer = str(row["peer"])
    return name in (row.get("client"), row["user"], peer, peer.rpartition(":")[0], full_name)


def refusal_findings(
    refusals: Iterable[LoggedRefusal], name: str, operator: str = ""
) -> list[Problem]:
    """Return a problem for each of the last refusals of a client, the latest refusal first.

    Refused HTTP requests of `operator`, the user that asks, are left out: an operator that
    mistypes a name is no client with a problem.
    """
    known = [
        one
        for one in refusals
        if name in (one.fields.get(field) for field in NAME_FIELDS)
        and (one.event != HTTP_REFUSED or one.fields.get("user") != operator)
    ]
    return [_refusal(one) for one in reversed(known[-REFUSALS_MAX:])]


def _refusal(refusal: LoggedRefusal) -> Problem:
    fields = refusal.fields
    at = datetime.fromtimestamp(refusal.at, UTC).isoformat(timespec="seconds")
    times = f", and {plural(refusal.repetitions, 'time')} again" if refusal.repetitions else ""
    text = _EVENTS.get(refusal.event, refusal.event)
    user = f" for user '{fields['user']}'" if fields.get("user") else ""
    by = fields.get("new_address") or fields.get("address", "")
    origin = f" from {by}" if by else ""
    return Problem(
        refusal.event,
        f"{text}{user}{origin} at {at.replace('+00:00', 'Z')}{times}: {fields.get('note', '')}",
        _after_refusal(refusal),
    )


def _after_refusal(refusal: LoggedRefusal) -> str:
    """Return the command that shows more about the cause of a refusal, or about its event."""
    user, cause = refusal.fields.get("user", ""), refusal.fields.get(CAUSE, "")
    if cause == ACCESS and user:
        return command("permissions", "list", user)
    if cause in (MISSING_QUEUE, MISSING_EXCHANGE):
        vhost = in_vhost(refusal.fields.get("vhost", "/"))
        return command("list", "queues" if cause == MISSING_QUEUE else "exchanges", *vhost)
    if refusal.event == "subscription_refused" and cause == LIMIT:
        return command("list", "settings", "--filter", "name=mqtt.*subscriptions")
    if refusal.event == "session_taken_over":
        return command("list", "connections")
    if refusal.event == "login_refused":
        return command("users", "list")
    return command("list", "log", *only("event", refusal.event))


def connection_findings(
    connection: Connection, row: dict[str, object], alarms: Alarms
) -> Iterator[Problem]:
    """Yield the problems of an open connection; `row` is its row in the list of connections."""
    peer = row["peer"]
    if connection.blocked:
        names = ", ".join(alarms.on) or "none"
        yield Problem(
            "blocked",
            f"the connection from {peer} published during an alarm, so the broker does not read "
            f"from this connection until all alarms have ended; alarms now: {names}",
            command("health"),
        )
    elif row["slow"]:
        unsent = connection.unsent
        rest = f"; {plural(unsent, 'byte')} wait to be sent to it" if unsent else ""
        text = f"the connection from {peer} {_slow(str(row['slow']))}{rest}"
        yield Problem("slow", text, _after_slow(connection, str(peer)))
    if isinstance(connection, AmqpConnection):
        yield from _channels(connection)


def _slow(reason: str) -> str:
    known = {
        "reads too slowly": "reads too slowly, so queues deliver to other consumers",
        "waits": "waits: the broker handles its last request",
    }
    return known.get(reason, f"{reason}, so the broker throttles it")


def _after_slow(connection: Connection, peer: str) -> str:
    if connection.throttled and not connection.paused:
        return command("list", "settings", "--filter", "name=rates.*")
    return watch_connection(peer)


def _channels(connection: AmqpConnection) -> Iterator[Problem]:
    for channel in connection.channels.open.values():
        held = int(channel.receiver.unacked.count)
        consumers = list(channel.receiver.consumers.values())
        full = [
            one
            for one in consumers
            if state_of(one) == FULL and isinstance(one.queue, Queue) and one.queue.depth > 0
        ]
        if full:
            yield Problem(
                "prefetch_full",
                f"channel {int(channel.number)} holds {plural(held, 'unacknowledged message')}; "
                f"consumer '{full[0].tag}' of queue '{full[0].queue.name}' has as many as its "
                "prefetch allows, and more wait",
                command("why", "queue", full[0].queue.name, *in_vhost(channel.vhost.name)),
            )


def watch_connection(peer: str) -> str:
    """Return the command to type next about a client that is connected from `peer` and has no
    problem.
    """
    return command("list", "connections", *only("peer", peer), "--watch")


def watch_session(client_id: str) -> str:
    """Return the command to type next about a client that has a session, but no connection and no
    problem.
    """
    return command("list", "sessions", *only("client_id", client_id), "--watch")


def session_findings(session: Session) -> Iterator[Problem]:
    """Yield the problems of an MQTT session."""
    name, vhost = session.name, in_vhost(session.vhost.name)
    waiting, in_flight = int(session.inbox.depth), int(session.in_flight.count)
    if session.connection is None:
        yield Problem(
            "away",
            f"the client is not connected; its session keeps "
            f"{plural(session.subscriptions.total, 'subscription')} and "
            f"{plural(waiting, 'message')} for it; if the client will not return, "
            f"`{command('sessions', 'delete', name, *vhost)}` ends the session",
            watch_session(name),
        )
    elif waiting and any(state_of(one) == FULL for one in session.inbox.consumers):
        yield Problem(
            "receive_maximum",
            f"{waits(waiting)}, because the client has not acknowledged {in_flight:,}, which is "
            "its Receive Maximum",
            watch_session(name),
        )
    over = session.inbox.fates()[OVER_LIMIT]
    if over:
        yield Problem(
            "backlog",
            f"messages dropped, because more than mqtt.session_backlog "
            f"({session.inbox.max_length:,}) waited: {over:,}",
            command("list", "settings", "--filter", "name=mqtt.session_backlog"),
        )
    if session.dropped:
        yield Problem(
            "dropped",
            "messages of QoS 0 dropped, because the client did not read fast enough: "
            f"{int(session.dropped):,}",
            watch_session(name),
        )
    if session.missed:
        yield Problem(
            "missed",
            "messages of QoS 0 lost while the client was not connected (to keep messages, publish "
            f"with QoS 1): {int(session.missed):,}",
            command("trace", "--queue", session.inbox.name, *vhost),
        )
    if not session.subscriptions.total:
        yield Problem(
            "no_subscription",
            "the session has no subscription, so it receives no message",
            command("list", "log", "--filter", "event=subscription_refused"),
        )
