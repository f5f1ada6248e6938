"""The messages of shovels: their properties are bytes, which a shovel copies without a change.

pika would decode the properties of each received message and encode them again. This changes
messages: a floating-point number becomes an integer, and a short integer a longer one. pika cannot
encode floating-point numbers at all, and a timestamp after the year 9999 ends its connection.
"""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

import msgspec
import pika
import pika.spec

from broker.routing.deduplication import NUMBER_HEADERS
from protocols.amqp.codec.properties import amended, read_properties
from trellis.bridge import contract
from trellis.bridge.amqp_end import ChannelClosed, LinkLost
from trellis.bridge.contract import Shovel
from trellis.bridge.shovel_definition import shown_uri
from trellis.copied_properties import without_instructions
from trellis.settings.schema import NodeSettings

#: Headers of a message, with RabbitMQ's names: HOPS lists the federation links that have copied the
#: message, SHOVELLED the shovels; TIMESTAMP is the time of the last copy in seconds since 1970.
HOPS: Final = "x-received-from"
SHOVELLED: Final = "x-shovelled"
TIMESTAMP: Final = "x-shovelled-timestamp"
#: Bytes of a header frame beside the properties: frame header and end, class, weight, body size.
HEADER_OVERHEAD: Final = 20


class PropertyBytes(pika.BasicProperties):  # type: ignore[misc]
    """The properties of a message as encoded bytes, which pika neither decodes nor encodes."""

    def __init__(self, data: bytes = b"\0\0") -> None:
        super().__init__()
        self.data = data

    def decode(self, encoded: bytes, offset: int = 0) -> PropertyBytes:
        """Keep the properties of a received header frame, still encoded; return this object."""
        self.data = bytes(encoded[offset:])
        return self

    def encode(self) -> list[bytes]:
        """Return the bytes for a header frame."""
        return [self.data]


def keep_properties_encoded() -> None:
    """Make pika return the properties of each received message as PropertyBytes.

    The change applies to all connections of pika in this process.
    """
    pika.spec.props[pika.BasicProperties.INDEX] = PropertyBytes


class SourceMessage(NamedTuple):
    """A message of the source that is not acknowledged; `properties` are encoded."""

    tag: int
    exchange: str
    key: str
    properties: bytes
    body: bytes


class MessageEditor:
    """An editor of the properties that a shovel or a federation link publishes for a message."""

    def __init__(self, shovel: Shovel, node: str) -> None:
        """Prepare the editor. `node` is the name of this broker in the headers."""
        self._shovel = shovel
        self._node = node
        #: Names of the cluster and of the virtual host from which the messages come.
        self._upstream = ("", "")
        #: Properties that replace properties of each message.
        self._changed: dict[str, Any] = msgspec.json.decode(shovel.target.properties)
        if shovel.kind == contract.FEDERATION:
            # `user_id` is a user of the upstream. This broker would refuse the message again and
            # again, because `user_id` must be the user of the connection.
            self._changed["user_id"] = None
        #: True if each message gets the same routing key at the destination.
        self._sets_key = bool(shovel.target.queue) or shovel.target.key is not None

    def source_connected(self, cluster: str, vhost: str) -> None:
        """Record the names of the source's cluster and virtual host for the header HOPS."""
        self._upstream = cluster, vhost

    def adapts_to(self, error: LinkLost) -> bool:
        """Remove `user_id` from all further messages if the destination has refused this property.

        A broker refuses a `user_id` that is not the user of the connection, unless this user has
        the tag `impersonator`. Without the removal, the broker would refuse the message at each
        attempt. A `user_id` that `dest-publish-properties` sets is not removed. Return True if
        `error` is such a refusal and the property is removed from now on.
        """
        refused = isinstance(error, ChannelClosed) and error.code == 406 and "user_id" in str(error)
        if not refused or "user_id" in self._changed:
            return False
        self._changed["user_id"] = None
        return True

    def edit(self, properties: bytes) -> bytes | None:
        """Return the encoded properties for the destination.

        Return None if `max_hops` links have already copied the message, or if a link has copied it
        from the virtual host of this shovel before.
        """
        shovel = self._shovel
        headers: dict[str, object] = {}
        if shovel.max_hops:
            hops = self._hops(properties)
            if hops is None:
                return None
            headers[HOPS] = hops
        # Messages of one producer may come through several queues and links, out of the order of
        # their numbers: the destination would drop them as repeats. A shovel within one virtual
        # host would lose each of them.
        properties = without_instructions(properties, self._sets_key, NUMBER_HEADERS)
        if self._changed:
            properties = amended(properties, {}, self._changed)
        if shovel.target.forward_headers:
            headers[SHOVELLED] = [self._passage(), *_list(properties, SHOVELLED)]
        if shovel.target.timestamp_header:
            headers[TIMESTAMP] = int(time.time())
        return amended(properties, headers, {}) if headers else properties

    def _hops(self, properties: bytes) -> list[object] | None:
        """Return the new value of the header HOPS; None if the message must not be copied."""
        hops = _list(properties, HOPS)
        if len(hops) >= self._shovel.max_hops or self._has_been_here(hops):
            return None
        source = self._shovel.source
        hop = {
            "uri": shown_uri(source.uris),
            "exchange": source.exchange,
            "redelivered": False,
            "node": self._node,
            "cluster-name": self._upstream[0],
            "vhost": self._upstream[1],
        }
        return [hop, *hops]

    def _has_been_here(self, hops: list[object]) -> bool:
        """True if a link has copied the message from this virtual host, as RabbitMQ's links check.

        Brokers with the default name are not checked: another broker may have it, too.
        """
        here = self._node, self._shovel.vhost
        return self._node != NodeSettings().name and any(
            isinstance(hop, dict) and (hop.get("cluster-name"), hop.get("vhost")) == here
            for hop in hops
        )

    def _passage(self) -> dict[str, object]:
        """Return the entry of this shovel in the header SHOVELLED."""
        shovel = self._shovel
        return {
            "shovelled-by": self._node,
            "shovel-type": "dynamic",
            "shovel-name": shovel.name,
            "shovel-vhost": shovel.vhost,
            "src-uri": shown_uri(shovel.source.uris),
            "dest-uri": shown_uri(shovel.target.uris),
        }


def _list(properties: bytes, header: str) -> list[object]:
    """Return the value of a header that is a list; an empty list if there is none."""
    headers = read_properties(properties).get("headers")
    value = headers.get(header) if isinstance(headers, dict) else None
    return value if isinstance(value, list) else []
