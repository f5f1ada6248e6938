"""Reads a CONNECT, the packet that names the protocol level of the connection.

    protocol name   level (1 byte)   flags (1 byte)   keep-alive (2 bytes)   [properties]
    client identifier   [[properties] topic, payload of the will]   [user]   [password]

    flags   bit 7 user, 6 password, 5 will retain, 4 and 3 will QoS, 2 will,
            1 clean session (level 5: clean start), 0 reserved

Only packets of level 5 have properties.
"""

from __future__ import annotations

from typing import Final

from protocols.mqtt.codec.packets import CONNECT, MalformedPacket, PacketReader
from protocols.mqtt.codec.properties import (
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    NO_PROPERTIES,
    RECEIVE_MAXIMUM,
    REQUEST_RESPONSE,
    RESPONSE_TOPIC,
    SESSION_EXPIRY,
    TOPIC_ALIAS_MAXIMUM,
    WILL,
    WILL_DELAY,
    Properties5,
    read_properties,
)
from protocols.mqtt.codec.reasons import PROTOCOL_ERROR, TOPIC_NAME_INVALID

#: Protocol levels of MQTT 3.1, 3.1.1 and 5.
LEVEL_31: Final = 3
LEVEL_311: Final = 4
LEVEL_5: Final = 5
_NAMES: Final = {LEVEL_31: b"MQIsdp", LEVEL_311: b"MQTT", LEVEL_5: b"MQTT"}
#: The bit that bridges set in levels 3 and 4 (0x83, 0x84), as in Mosquitto.
_BRIDGE: Final = 0x80
#: The session expiry interval of a session that never expires.
NEVER: Final = 0xFFFFFFFF


class UnacceptableVersion(Exception):
    """Raised if a CONNECT names a protocol level that the broker does not support.

    `level` is the protocol level in which the broker writes the refusal.
    """

    def __init__(self, level: int) -> None:
        super().__init__("unacceptable protocol level")
        self.level = level


class WillMessage:
    """The will in a CONNECT: the message that the broker publishes when the connection breaks."""

    def __init__(
        self, topic: str, body: bytes, qos: int, retain: bool, properties: Properties5
    ) -> None:
        self.topic = topic
        self.body = body
        self.qos = qos
        self.retain = retain
        self.properties = properties

    @property
    def delay(self) -> int:
        """The Will Delay Interval in seconds."""
        return self.properties.number(WILL_DELAY, 0)


class Connect:
    """A valid CONNECT. At levels 3 and 4, the properties of level 5 have their defaults."""

    def __init__(
        self,
        level: int,
        keep_alive: int,
        clean: bool,
        client_id: str,
        will: WillMessage | None,
        user: str | None,
        password: bytes | None,
        properties: Properties5,
        bridge: bool = False,
    ) -> None:
        self.level = level
        #: True for a bridge of level 3 or 4: its subscriptions have No Local and Retain As
        #: Published, which these levels lack.
        self.bridge = bridge
        self.keep_alive = keep_alive
        self.clean = clean
        self.client_id = client_id
        self.will = will
        self.user = user
        self.password = password
        self.properties = properties

    @property
    def expiry(self) -> int:
        """Time in seconds for which the session outlives its connection; NEVER if the session does
        not expire.
        """
        if self.level == LEVEL_5:
            return self.properties.number(SESSION_EXPIRY, 0)
        return 0 if self.clean else NEVER

    @property
    def receive_maximum(self) -> int:
        """Largest number of unacknowledged QoS 1 and QoS 2 messages to the client at one time."""
        return self.properties.number(RECEIVE_MAXIMUM, 65_535)

    @property
    def maximum_packet_size(self) -> int:
        """Size of the largest packet that the client accepts, in bytes; 0 is no limit."""
        return self.properties.number(MAXIMUM_PACKET_SIZE, 0)

    @property
    def topic_alias_maximum(self) -> int:
        """Highest topic alias that the client accepts; 0 if it accepts none."""
        return self.properties.number(TOPIC_ALIAS_MAXIMUM, 0)

    @property
    def wants_response_information(self) -> bool:
        """True if the client requests Response Information in the CONNACK."""
        return self.properties.number(REQUEST_RESPONSE, 0) == 1

    @property
    def method(self) -> str | None:
        """The authentication method; None without enhanced authentication."""
        return self.properties.text(AUTHENTICATION_METHOD)

    @property
    def method_data(self) -> bytes:
        """The data for the authentication method in the CONNECT; b"" if there is none."""
        return self.properties.binary(AUTHENTICATION_DATA) or b""


def read_level(packet: bytes) -> int:
    """Return the protocol level that a CONNECT names; 0 if the packet is too short."""
    if len(packet) < 2:
        return 0
    at = 2 + (packet[0] << 8 | packet[1])
    return packet[at] if at < len(packet) else 0


def read_connect(reader: PacketReader) -> Connect:
    """Read a CONNECT. Raises UnacceptableVersion for an unsupported protocol level, MalformedPacket
    for any other error.
    """
    name, level = reader.binary(), reader.byte()
    if name not in (b"MQTT", b"MQIsdp"):
        raise MalformedPacket("CONNECT has an unknown protocol name: send MQTT")  # [MQTT-3.1.2-1]
    bridge = level in (LEVEL_31 | _BRIDGE, LEVEL_311 | _BRIDGE)
    if bridge:
        level -= _BRIDGE
    if _NAMES.get(level) != name:
        # [MQTT-3.1.2-2]: a client of a level above 5 can read a refusal of level 5.
        raise UnacceptableVersion(LEVEL_5 if level & 127 > LEVEL_311 else LEVEL_311)
    flags, keep_alive = reader.byte(), reader.two_bytes()
    qos, has_will, has_user, has_password = flags >> 3 & 3, flags & 4, flags & 128, flags & 64
    # [MQTT-3.1.2-3], [MQTT-3.1.2-11], [MQTT-3.1.2-12], [MQTT-3.1.2-13]. A password needs a user
    # name below level 5 [MQTT-3.1.2-22 of 3.1.1].
    if (
        flags & 1
        and level > LEVEL_31  # MQTT 3.1 has no rule for the reserved flag.
        or qos == 3
        or not has_will
        and flags & 0x38
        or has_password
        and not has_user
        and level < LEVEL_5
    ):
        raise MalformedPacket("the connect flags are invalid")
    properties = read_properties(reader, CONNECT) if level == LEVEL_5 else NO_PROPERTIES
    if properties.has(AUTHENTICATION_DATA) and not properties.has(AUTHENTICATION_METHOD):
        raise MalformedPacket(
            "CONNECT has authentication data, but no authentication method", code=PROTOCOL_ERROR
        )
    client_id = reader.text()
    will: WillMessage | None = None
    if has_will:
        will_properties = read_properties(reader, WILL) if level == LEVEL_5 else Properties5()
        topic = topic_name(reader.text())
        response = will_properties.text(RESPONSE_TOPIC)
        if response is not None:
            topic_name(response)
        will = WillMessage(topic, reader.binary(), qos, bool(flags & 32), will_properties)
    user = reader.text() if has_user else None
    password = reader.binary() if has_password else None
    reader.end()
    return Connect(
        level, keep_alive, bool(flags & 2), client_id, will, user, password, properties, bridge
    )


def topic_name(name: str) -> str:
    """Return `name` if it is a valid topic name [MQTT-3.3.2-2], [MQTT-4.7.3-1].

    Raises MalformedPacket if the name is invalid.
    """
    if not name or "+" in name or "#" in name:
        raise MalformedPacket("topic name is empty or contains + or #", code=TOPIC_NAME_INVALID)
    return name
