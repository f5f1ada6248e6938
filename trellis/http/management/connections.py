"""Connections, channels and consumers: list them, and close connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final

from broker.broker import Broker
from broker.vhost.vhost import VirtualHost
from protocols.amqp.channel.ack_timeout import timeout_of
from protocols.amqp.channel.channel import Channel
from protocols.amqp.channel.consumer import AmqpConsumer
from protocols.amqp.connection.connection import AmqpConnection
from protocols.connection import Connection
from protocols.end_reasons import EXPELLED
from protocols.mqtt.connection.connection import MqttConnection
from trellis.diagnosis.clients import belongs_to
from trellis.http.management.answers import (
    ApiRefusal,
    Call,
    Empty,
    Listing,
    Row,
    iterate,
    not_found,
)
from trellis.http.management.paged import Columns, selected_page
from trellis.http.management.rates import with_sum
from trellis.monitoring.client_rows import shown_queue

#: RabbitMQ's names of the protocols, by their names in Trellis.
PROTOCOLS: Final = {
    "amqp091": "AMQP 0-9-1",
    "mqtt310": "MQTT 3.1",
    "mqtt311": "MQTT 3.1.1",
    "mqtt50": "MQTT 5.0",
}


def name_of(connection: Connection) -> str:
    """Return the name of a connection, which is unique among the open connections."""
    peer = f"unix:{connection.number}" if connection.peer.port == 0 else str(connection.peer)
    return f"{peer} -> {connection.peer.listener or connection.front.name}"


def vhost_of(connection: Connection) -> VirtualHost | None:
    """Return the virtual host of a connection; None before its login."""
    if isinstance(connection, AmqpConnection):
        return connection.vhost
    return (
        connection.vhost
        if isinstance(connection, MqttConnection) and connection.session is not None
        else None
    )


def _seen(call: Call) -> Iterator[Connection | None]:
    """Yield the connections that the user may see: all of them, or the user's own.

    Yield None instead of a connection that the user may not see, or that is closed or closing.
    """
    for front in call.node.fronts:
        for connection in list(front.connections):
            seen = call.sees_everything or connection.describe()["user"] == call.identity.name
            yield connection if seen and _here(connection) else None


def connection_row(connection: Connection, node: str) -> Row:
    """Return a connection as a row of the API; `node` is the name of this node."""
    description = connection.describe()
    vhost = vhost_of(connection)
    host, port = connection.sender.local_address()
    row: Row = {
        "name": name_of(connection),
        "node": node,
        "type": "network",
        "user": description["user"],
        "user_who_performed_action": description["user"],
        "vhost": "" if vhost is None else vhost.name,
        "protocol": PROTOCOLS.get(str(description["protocol"]), str(description["protocol"])),
        "peer_host": connection.peer.address,
        "peer_port": connection.peer.port,
        "host": host,
        "port": port,
        "ssl": connection.peer.listener in ("amqps", "mqtts", "wss"),
        "connected_at": int(connection.opened_at * 1000),
        "recv_oct": int(connection.bytes_in),
        "send_oct": int(connection.bytes_out),
        "send_pend": int(connection.unsent),
        "state": "blocked" if connection.paused else str(description["state"]),
        "client_properties": {},
    }
    if connection.peer.certificate:
        row["peer_cert_subject"] = connection.peer.certificate
    if isinstance(connection, AmqpConnection):
        row |= {
            "channels": len(connection.channels.open),
            "channel_max": int(connection.handshake.channel_max),
            "frame_max": int(connection.frame_max),
            "timeout": int(connection.handshake.heartbeat),
            "auth_mechanism": connection.handshake.mechanism,
            "client_properties": dict(connection.handshake.client.properties),
        }
        if connection.handshake.client.connection_name:
            row["user_provided_name"] = connection.handshake.client.connection_name
    elif isinstance(connection, MqttConnection):
        row |= {
            "channels": 0,
            "timeout": int(connection.keep_alive),
            "client_properties": {"client_id": connection.client_id},
            "variable_map": {"client_id": connection.client_id},
        }
    return row


def _connection_row(call: Call, connection: Connection) -> Row:
    """Return a connection with the rates of the bytes that it carries."""
    row = connection_row(connection, call.broker.name)
    counts = {"recv_oct": int(connection.bytes_in), "send_oct": int(connection.bytes_out)}
    return row | call.rated(("connection", row["name"], str(row["connected_at"])), counts)


#: The columns by which the broker sorts a page of connections without making their rows.
COLUMNS: Final[Columns[Connection]] = {
    "name": name_of,
    "connected_at": lambda one: int(one.opened_at * 1000),
    "recv_oct": lambda one: int(one.bytes_in),
    "send_oct": lambda one: int(one.bytes_out),
    "send_pend": lambda one: int(one.unsent),
}


async def connections(call: Call) -> Listing | Row:
    """List the connections, of one virtual host if the path names it.

    With `client` in the query, list only the connections of this client: a client identifier, a
    user, an address, or the name of a connection.
    """
    vhost = call.vhost(call.path_parameters[0]) if call.path_parameters else None
    client = call.query.get("client")

    def is_listed(each: Connection) -> bool:
        if vhost is not None and vhost_of(each) is not vhost:
            return False
        return client is None or belongs_to(each.describe(), name_of(each), client)

    def listed() -> Iterator[Connection | None]:
        for each in _seen(call):
            yield each if each is not None and is_listed(each) else None

    page = await selected_page(call, listed(), COLUMNS, lambda one: _connection_row(call, one))
    if page is not None:
        return page
    return Listing(
        iterate(None if each is None else _connection_row(call, each) for each in listed())
    )


def _here(connection: Connection) -> bool:
    """True if a connection is open and is not closing."""
    return not connection.finished and not (
        isinstance(connection, AmqpConnection) and connection.state == "closing"
    )


async def _named(call: Call) -> Connection:
    """Return the open connection that the path names. Searches in slices. Raises ApiRefusal."""
    async with call.slice() as work:
        for connection in _seen(call):
            if connection is not None and name_of(connection) == call.path_parameters[0]:
                return connection
            if work.over:
                await work.pause()
    raise not_found(f"there is no connection '{call.path_parameters[0]}'")


async def connection(call: Call) -> Row:
    """Return the connection that the path names."""
    return _connection_row(call, await _named(call))


async def delete_connection(call: Call) -> Empty:
    """Close the connection that the path names.

    Only administrators may close the connection of another user. The header X-Reason of RabbitMQ's
    tools is ignored: the reason that clients get does not change.
    """
    selected = await _named(call)
    if selected.describe()["user"] != call.identity.name:
        call.require_administrator("close a connection of another user")
    _close(call, selected)
    return Empty()


async def user_connections(call: Call) -> Listing:
    """List the connections of the user that the path names."""
    name = call.path_parameters[0]
    return Listing(
        iterate(
            _connection_row(call, each)
            if each is not None and each.describe()["user"] == name
            else None
            for each in _seen(call)
        )
    )


async def delete_user_connections(call: Call) -> Empty:
    """Close the connections of the user that the path names."""
    name = call.path_parameters[0]
    async with call.slice() as work:
        for connection in _seen(call):
            if connection is not None and connection.describe()["user"] == name:
                _close(call, connection)
            if work.over:
                await work.pause()
    return Empty()


def _close(call: Call, connection: Connection) -> None:
    call.node.turn.schedule()
    if not connection.finished:
        connection.close(EXPELLED, "closed by an operator")
        owner, vhost = connection.owner
        call.audit("close", "connection", vhost, name_of(connection), {"user": owner})


# -- channels


def _channels(call: Call) -> Iterator[tuple[AmqpConnection, Channel] | None]:
    """Yield the channels that the user may see. Yield None for each connection that is skipped."""
    for connection in _seen(call):
        if isinstance(connection, AmqpConnection):
            for channel in list(connection.channels.open.values()):
                yield connection, channel
        else:
            yield None


def _details(connection: Connection) -> Row:
    return {
        "name": name_of(connection),
        "peer_host": connection.peer.address,
        "peer_port": connection.peer.port,
    }


def _channel_name(connection: AmqpConnection, channel: Channel) -> str:
    return f"{name_of(connection)} ({int(channel.number)})"


def channel_row(connection: AmqpConnection, channel: Channel, node: str) -> Row:
    """Return a channel as a row of the API; `node` is the name of this node."""
    transaction = channel.publisher.transaction
    return {
        "name": _channel_name(connection, channel),
        "number": int(channel.number),
        "user": connection.handshake.user,
        "user_who_performed_action": connection.handshake.user,
        "vhost": channel.vhost.name,
        "node": node,
        "connection_details": _details(connection),
        "state": "running",
        "consumer_count": len(channel.receiver.consumers),
        "prefetch_count": int(channel.receiver.prefetch),
        "global_prefetch_count": int(channel.receiver.shared_prefetch),
        "messages_unacknowledged": int(channel.receiver.unacked.count),
        "messages_unconfirmed": 0
        if channel.publisher.confirms is None
        else channel.publisher.confirms.waiting,
        "messages_uncommitted": 0 if transaction is None else len(transaction.publications),
        "acks_uncommitted": 0 if transaction is None else len(transaction.settlements),
        "confirm": channel.publisher.confirms is not None,
        "transactional": channel.transactional,
    }


def _channel_row(call: Call, connection: AmqpConnection, channel: Channel) -> Row:
    """Return a channel with its message statistics."""
    row = channel_row(connection, channel, call.broker.name)
    key = ("channel", row["name"], str(int(connection.opened_at * 1000)))
    statistics = call.rated(key, with_sum(channel.statistics()))
    return row | {"message_stats": statistics} if statistics else row


async def channels(call: Call) -> Listing:
    """List the channels of all connections, of one connection, or in one virtual host."""
    vhost: VirtualHost | None = None
    if call.path_parameters and call.request.path.startswith("/api/connections/"):
        named = await _named(call)
        own = list(named.channels.open.values()) if isinstance(named, AmqpConnection) else []
        return Listing(
            iterate(
                _channel_row(call, named, channel)
                for channel in own
                if isinstance(named, AmqpConnection)
            )
        )
    if call.path_parameters:
        vhost = call.vhost(call.path_parameters[0])
    return Listing(
        iterate(
            _channel_row(call, *pair)
            if pair is not None and (vhost is None or pair[1].vhost is vhost)
            else None
            for pair in _channels(call)
        )
    )


async def channel(call: Call) -> Row:
    """Return the channel that the path names, with its consumers."""
    async with call.slice() as work:
        for pair in _channels(call):
            if pair is not None and _channel_name(*pair) == call.path_parameters[0]:
                row = _channel_row(call, *pair)
                row["consumer_details"] = [
                    _consumer_row(*pair, one, call.broker)
                    for one in pair[1].receiver.consumers.values()
                ]
                return row
            if work.over:
                await work.pause()
    raise not_found(f"there is no channel '{call.path_parameters[0]}'")


# -- consumers


def _consumer_row(
    connection: AmqpConnection, channel: Channel, consumer: AmqpConsumer, broker: Broker
) -> Row:
    queue = consumer.queue
    active = not queue.arguments.single_active_consumer or consumer in queue.consumers
    return {
        "queue": {"name": shown_queue(channel, consumer), "vhost": channel.vhost.name},
        "consumer_tag": consumer.tag,
        "exclusive": consumer.exclusive,
        "ack_required": not consumer.no_ack,
        "prefetch_count": int(consumer.prefetch),
        # The consumer timeout in ms; 0 for none. Clients of the API require the field.
        "consumer_timeout": int(timeout_of(queue, broker.limits)),
        "active": active,
        "activity_status": "up" if active else "waiting",
        "messages_unacknowledged": consumer.outstanding,
        "arguments": dict(consumer.arguments),
        "channel_details": {
            "name": _channel_name(connection, channel),
            "number": int(channel.number),
            "node": broker.name,
            "user": connection.handshake.user,
            "connection_name": name_of(connection),
            "peer_host": connection.peer.address,
            "peer_port": connection.peer.port,
        },
    }


async def consumers(call: Call) -> Listing:
    """List the consumers, of one virtual host if the path names it.

    With `queue` in the query, list only the consumers of the queue of this name.
    """
    queue = call.query.get("queue")
    vhost = call.vhost(call.path_parameters[0]) if call.path_parameters else None
    if vhost is None and not call.sees_everything and not call.vhosts:
        raise ApiRefusal(
            403,
            "not_authorised",
            f"user '{call.identity.name}' has no permissions in any virtual host: grant "
            "permissions with `trellis permissions set`",
        )

    async def rows() -> AsyncIterator[Row | None]:
        for pair in _channels(call):
            if pair is None or vhost is not None and pair[1].vhost is not vhost:
                yield None
                continue
            for consumer in list(pair[1].receiver.consumers.values()):
                named = queue is None or shown_queue(pair[1], consumer) == queue
                yield _consumer_row(*pair, consumer, call.broker) if named else None

    return Listing(rows())
