"""The settings of an MQTT bridge, and the rules of its topics and of its URL."""

from __future__ import annotations

import shlex
from typing import Annotated, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from matching.grammar import MQTT, InvalidPattern
from trellis.settings.declaration import Section, option
from trellis.settings.values import check_name, check_optional_name

OUT: Final = "out"
IN: Final = "in"
BOTH: Final = "both"
#: Port of each scheme of a remote broker's URL.
PORTS: Final = {"mqtt": 1883, "mqtts": 8883}
QOS_MAX: Final = 2
#: The versions of MQTT that a bridge can speak to the remote broker; AUTO is MQTT 5, and MQTT 3.1.1
#: if the broker refuses MQTT 5.
MQTT5: Final = "5"
MQTT311: Final = "3.1.1"
AUTO: Final = "auto"
RemoteProtocol = Literal["5", "3.1.1", "auto"]
#: Largest number of entries in `topics`: each is compared with the topic of each message.
TOPICS_MAX: Final = 100
_TOPIC_FORM: Final = (
    "must be PATTERN [out|in|both [QOS [LOCAL_PREFIX [REMOTE_PREFIX]]]], as in mosquitto.conf; "
    'an empty prefix is ""'
)
_URL_FORM: Final = 'must be "mqtt://HOST:PORT" or "mqtts://HOST:PORT"'


class TopicRule(NamedTuple):
    """One entry of a bridge's `topics`.

    The local topic is `local_prefix` followed by a topic that matches `pattern`; the remote topic
    is `remote_prefix` followed by the same topic. `direction` is OUT (local to remote), IN or BOTH.
    """

    pattern: str
    direction: str
    qos: int
    local_prefix: str
    remote_prefix: str


def parse_topic(text: str) -> TopicRule:
    """Return the parts of an entry of `topics`. Raises ValueError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{_TOPIC_FORM} ({error})") from None
    if not 1 <= len(words) <= len(TopicRule._fields):
        raise ValueError(_TOPIC_FORM)
    pattern, direction, qos, local, remote = [*words, *("", OUT, "0", "", "")[len(words) :]]
    if direction not in (OUT, IN, BOTH):
        raise ValueError(f"{_TOPIC_FORM} ('{direction}' is not out, in or both)")
    if qos not in ("0", "1", "2"):
        raise ValueError(f"{_TOPIC_FORM} (QoS '{qos}' is not 0, 1 or 2)")
    for prefix in (local, remote):
        try:
            MQTT.check(prefix + pattern)
        except InvalidPattern as error:
            raise ValueError(
                f"{_TOPIC_FORM} ('{prefix + pattern}' is not a topic filter: {error.rule})"
            ) from None
        if "+" in prefix or "#" in prefix:
            raise ValueError(f"{_TOPIC_FORM} (the prefix '{prefix}' contains a wildcard)")
    return TopicRule(pattern, direction, int(qos), local, remote)


def check_topic(text: str) -> None:
    """Raise ValueError unless the text is an entry of a bridge's `topics`."""
    parse_topic(text)


class RemoteAddress(NamedTuple):
    """The parts of a remote broker's URL."""

    host: str
    port: int
    tls: bool


def parse_remote(url: str) -> RemoteAddress:
    """Return the parts of the URL of a remote MQTT broker. Raises ValueError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{_URL_FORM} ({error})") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not contain credentials; set remote_user and remote_password")
    beyond_port = parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme not in PORTS or not parts.hostname or beyond_port or port == 0:
        raise ValueError(_URL_FORM)
    return RemoteAddress(parts.hostname, port or PORTS[parts.scheme], parts.scheme == "mqtts")


def check_remote(url: str) -> None:
    """Raise ValueError unless the text is the URL of an MQTT broker."""
    parse_remote(url)


class BridgeSettings(Section, frozen=True, kw_only=True):
    """A bridge: copies messages between this broker and a remote MQTT broker."""

    name: Annotated[str, option("name of the bridge in logs, lists and metrics", check=check_name)]
    remote: Annotated[
        str,
        option(
            "URL of the remote broker: mqtt://HOST:PORT or mqtts://HOST:PORT", check=check_remote
        ),
    ]
    topics: Annotated[
        tuple[str, ...],
        option(
            'topics to copy, each written "PATTERN [out|in|both [QOS [LOCAL_PREFIX '
            '[REMOTE_PREFIX]]]]"; the first entry that matches decides',
            check=check_topic,
        ),
    ]
    remote_protocol: Annotated[
        RemoteProtocol,
        option(
            "version of MQTT that the bridge speaks to the remote broker; auto: MQTT 5, and MQTT "
            "3.1.1 after the broker has refused MQTT 5"
        ),
    ] = MQTT5
    remote_packet_max: Annotated[
        int,
        option(
            "largest MQTT packet in bytes that the remote broker accepts; the bridge refuses "
            "larger messages; 0 means the limit that the remote broker announces (only in MQTT 5)",
            ge=0,
            le=268_435_460,
            unit="bytes",
        ),
    ] = 0
    remote_user: Annotated[str, option("user name at the remote broker")] = ""
    remote_password: Annotated[str, option("password at the remote broker", secret=True)] = ""
    ca: Annotated[
        str,
        option(
            'PEM file of the authorities that sign the remote certificate; "" means the '
            "authorities of the system"
        ),
    ] = ""
    certificate: Annotated[
        str, option('PEM file of the bridge\'s client certificate; "" means no certificate')
    ] = ""
    key: Annotated[
        str,
        option('PEM file of the private key; "" means that the key is in the file `certificate`'),
    ] = ""
    client_id: Annotated[
        str,
        option(
            "client identifier at the remote broker; each copied message has this identifier in "
            "the user property trellis-bridge, which prevents loops; "
            '"" is HOSTNAME.NAME, or CLUSTER.NAME in a cluster'
        ),
    ] = ""
    local_user: Annotated[
        str,
        option(
            'user name at this broker, or VHOST:USER; "" means that the bridge is an anonymous '
            "client",
            check=check_optional_name,
        ),
    ] = ""
    local_password: Annotated[str, option("password at this broker", secret=True)] = ""
    window: Annotated[
        int,
        option(
            "largest number of unacknowledged messages in each direction",
            ge=1,
            le=10_000,
        ),
    ] = 256
    max_hops: Annotated[
        int,
        option(
            "largest number of bridges that copy one message, one after the other", ge=1, le=100
        ),
    ] = 1
    session_expiry: Annotated[
        int,
        option(
            "time in seconds for which both brokers keep the bridge's session after a disconnect",
            ge=1,
            le=4_294_967_295,
            unit="s",
        ),
    ] = 1_209_600
    keep_alive: Annotated[
        int,
        option("keep-alive of the bridge's connections in seconds", ge=5, le=65_535, unit="s"),
    ] = 30
    reconnect_max: Annotated[
        int,
        option(
            "longest wait in seconds before the next attempt to connect; the first wait is 1 s, "
            "and each further wait is twice as long",
            ge=1,
            le=3_600,
            unit="s",
        ),
    ] = 30


class Shovels(Section, frozen=True, kw_only=True):
    """Shovels and federation links, which are parameters as in RabbitMQ."""

    user: Annotated[
        str, option("user of the URIs amqp:// and amqp:///VHOST, which mean this broker")
    ] = "guest"
    password: Annotated[str, option("password of shovels.user", secret=True)] = "guest"
