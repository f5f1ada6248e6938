"""The settings of the sections limits and rates."""

from typing import Annotated

from msgspec import Meta

from broker.limits import BrokerLimits
from protocols.amqp.options import AmqpOptions
from protocols.mqtt.options import MqttOptions
from trellis.settings.declaration import MIB, CoreField, Section, milliseconds, option
from trellis.settings.listeners import (
    AMQP,
    BROKER,
)


class Limits(Section, frozen=True, kw_only=True):
    """Limits on messages, connections, queues, memory and disk space."""

    message: Annotated[
        int,
        option(
            "size in bytes of the largest message body",
            ge=1,
            le=512 * MIB,
            unit="bytes",
            fills=BrokerLimits,
        ),
    ] = BROKER.message
    transaction_parts: Annotated[
        int,
        option(
            "largest number of message copies and settlements in one AMQP transaction; a commit "
            "carries out all of them in one turn of the event loop",
            ge=1,
            fills=BrokerLimits,
        ),
    ] = BROKER.transaction_parts
    connections: Annotated[
        int,
        option(
            "largest number of client connections; 0 is as many as the file descriptor limit "
            "allows",
            ge=0,
        ),
    ] = 0
    unauthenticated_per_address: Annotated[
        int,
        option(
            "largest number of connections of one IP address (or IPv6 network /64) that have not "
            "logged in yet",
            ge=1,
        ),
    ] = 100
    handshake: Annotated[
        float,
        option(
            "seconds within which a client must log in",
            ge=0.01,
            le=3600,
            unit="s",
            fills=(
                CoreField(AmqpOptions, "handshake_ms", milliseconds),
                CoreField(MqttOptions, "handshake_ms", milliseconds),
            ),
        ),
    ] = AMQP.handshake_ms / 1000
    routes: Annotated[
        int,
        option(
            "largest number of routes that are cached for one user of a virtual host",
            ge=1,
            fills=BrokerLimits,
        ),
    ] = BROKER.routes
    pattern_nodes: Annotated[
        int,
        option(
            "largest number of index nodes that the lookup of one topic may visit because of "
            "the wildcard patterns of one queue or session; 0 is no limit",
            ge=0,
            fills=BrokerLimits,
        ),
    ] = BROKER.pattern_nodes
    address_connections: Annotated[
        int,
        option(
            "largest number of connections of one IP address (or IPv6 network /64); loopback "
            "addresses are exempt; 0 is no limit",
            ge=0,
        ),
    ] = 0
    user_connections: Annotated[
        int,
        option(
            "largest number of connections of one user; 0 is no limit", ge=0, fills=BrokerLimits
        ),
    ] = BROKER.user_connections
    vhost_connections: Annotated[
        int,
        option(
            "largest number of connections to one virtual host; 0 is no limit",
            ge=0,
            fills=BrokerLimits,
        ),
    ] = BROKER.vhost_connections
    user_channels: Annotated[
        int,
        option(
            "largest number of AMQP channels of one user; 0 is no limit", ge=0, fills=BrokerLimits
        ),
    ] = BROKER.user_channels
    channel_consumers: Annotated[
        int,
        option(
            "largest number of consumers of one AMQP channel; 0 is no limit",
            ge=0,
            fills=BrokerLimits,
        ),
    ] = BROKER.channel_consumers
    consumer_timeout: Annotated[
        int,
        option(
            "milliseconds within which an AMQP client must acknowledge a delivery; otherwise its "
            "channel is closed; the queue argument x-consumer-timeout has precedence; 0 is no "
            "limit",
            ge=0,
            unit="ms",
            fills=BrokerLimits,
        ),
    ] = BROKER.consumer_timeout
    memory: Annotated[
        float,
        option(
            "share of the memory of the machine or container above which publishers are blocked; "
            "0 is no limit",
            ge=0,
            le=1,
        ),
    ] = 0.6
    disk_free: Annotated[
        int,
        option(
            "free disk space in bytes of the data directory below which publishers are blocked; "
            "0 is no limit",
            ge=0,
            unit="bytes",
        ),
    ] = 50 * MIB
    queues: Annotated[
        int,
        option(
            "largest number of queues of each virtual host (not of the broker); 0 is no limit",
            ge=0,
            fills=BrokerLimits,
        ),
    ] = BROKER.queues
    exchanges: Annotated[
        int,
        option(
            "largest number of exchanges of each virtual host (not of the broker), predeclared "
            "exchanges included; 0 is no limit",
            ge=0,
            fills=BrokerLimits,
        ),
    ] = BROKER.exchanges


def _message_rate(of: str) -> Meta:
    return option(f"messages per second that {of} may publish; 0 is no limit", ge=0)


def _byte_rate(of: str) -> Meta:
    return option(f"bytes per second that {of} may send; 0 is no limit", ge=0, unit="bytes")


class RatesSettings(Section, frozen=True, kw_only=True):
    """Rate limits. If a client exceeds a limit, the broker pauses reading from the client."""

    connection_messages: Annotated[int, _message_rate("one connection")] = 0
    connection_bytes: Annotated[int, _byte_rate("one connection")] = 0
    user_messages: Annotated[int, _message_rate("one user")] = 0
    user_bytes: Annotated[int, _byte_rate("one user")] = 0
    vhost_messages: Annotated[int, _message_rate("all clients of one virtual host")] = 0
    vhost_bytes: Annotated[int, _byte_rate("all clients of one virtual host")] = 0
    address_messages: Annotated[int, _message_rate("one IP address (or IPv6 network /64)")] = 0
    address_bytes: Annotated[int, _byte_rate("one IP address (or IPv6 network /64)")] = 0
    patience: Annotated[
        float,
        option(
            "longest time in seconds for which a client is throttled; a client that would have to "
            "wait longer is disconnected",
            ge=0,
            le=3600,
            unit="s",
        ),
    ] = 10.0
