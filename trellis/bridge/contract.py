"""The messages between the broker and the bridges' worker: one JSON object per line.

broker -> worker                           worker -> broker
Configure  all links to run, at a start    Ready   the worker serves messages
           and after each change           Report  the states of all links
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from trellis.settings.bridge import TopicRule

#: Kinds of links.
MQTT, SHOVEL, FEDERATION = "mqtt", "shovel", "federation"
#: States of a link. UP: both ends are connected. CONNECTING: an end is not connected, and the link
#: tries again. ENDED: a shovel has moved all messages that it was to move (src-delete-after).
UP, CONNECTING, ENDED = "up", "connecting", "ended"


class MqttLogin(Struct, frozen=True):
    """How a bridge connects to one of its two brokers.

    `ca`, `certificate` and `key` are paths of PEM files, "" for the defaults of the system.
    """

    host: str
    port: int
    client_id: str
    user: str = ""
    password: str = ""
    tls: bool = False
    ca: str = ""
    certificate: str = ""
    key: str = ""


class MqttBridge(Struct, frozen=True):
    """A bridge between the local broker and a remote MQTT broker; times are in seconds."""

    name: str
    local: MqttLogin
    remote: MqttLogin
    topics: tuple[TopicRule, ...]
    window: int
    max_hops: int
    session_expiry: int
    keep_alive: int
    reconnect_max: int


class Configure(Struct, tag=True):
    """All links that the worker runs. Links that run and have not changed are left alone."""

    bridges: list[MqttBridge]


class Ready(Struct, tag=True):
    """The worker serves messages."""


class Counters(Struct):
    """Counts of one link since the start of the worker.

    `sent` and `received` are messages that were copied to and from the remote broker. `refused`
    messages were refused by their destination. `dropped` messages had QoS 0 when their destination
    was away or slow. `looped` messages had passed too many bridges. `reconnects` are connections
    that were lost.
    """

    sent: int = 0
    received: int = 0
    refused: int = 0
    dropped: int = 0
    looped: int = 0
    reconnects: int = 0


class LinkState(Struct):
    """The state of one link.

    `remote` is a URL without credentials. `in_flight` is the number of messages that the link has
    taken and not acknowledged. `error` is the last problem, "" if there was none; `refusal` is the
    reason of the last refused message.
    """

    kind: str
    vhost: str
    name: str
    remote: str
    state: str
    error: str
    refusal: str
    in_flight: int
    counters: Counters


class Report(Struct, tag=True):
    """The states of all links."""

    links: list[LinkState]


ToWorker = Configure
FromWorker = Ready | Report

to_worker: Final = msgspec.json.Decoder(Configure)
from_worker: Final = msgspec.json.Decoder(FromWorker)


def line(message: ToWorker | FromWorker) -> bytes:
    """Return a message as one line."""
    return msgspec.json.encode(message) + b"\n"
