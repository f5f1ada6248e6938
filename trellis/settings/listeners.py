"""The settings of TLS and of each port that the broker listens on.

Listener                     enabled, host, port
 |-- Metrics, Http
 '-- ProtocolListener        proxies
      |-- PlainListener      a Unix socket as well           Amqp, Mqtt
      |-- TlsListener        a certificate is needed         Amqps, Mqtts, Wss
      '-- Ws
"""

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Literal

from msgspec import field

from broker.limits import BrokerLimits
from protocols.amqp.options import AmqpOptions
from protocols.mqtt.options import MqttOptions
from trellis.settings.declaration import KIB, MIB, CoreField, Section, option
from trellis.settings.values import (
    check_addresses,
    check_hosts,
    check_mode,
    check_networks,
    check_origins,
    check_path,
    check_rule,
    check_topic_filter,
    split_addresses,
    split_networks,
    split_origins,
)

Anonymous = Literal["loopback", "true", "false"]
ClientCertificate = Literal["none", "optional", "required"]
TlsVersion = Literal["1.2", "1.3"]
NameFrom = Literal["common_name", "dns", "email", "uri"]
Certificates = dict[str, dict[str, str]]

#: Options objects of the core, from which the settings take their defaults.
AMQP, MQTT, BROKER = AmqpOptions(), MqttOptions(), BrokerLimits()

Port = Annotated[int, option("port; 0 takes a free port", ge=0, le=65535)]


class Listener(Section, frozen=True, kw_only=True):
    """A settings section that declares a listener: addresses, a port, and a switch."""

    enabled: Annotated[bool, option("open this listener; false keeps its port closed")] = True
    host: Annotated[
        str,
        option(
            "IP addresses to listen on, separated by commas; 0.0.0.0 is all of IPv4",
            check=check_addresses,
        ),
    ] = "127.0.0.1,::1"
    port: Port

    @property
    def addresses(self) -> list[str]:
        """The IP addresses in the setting `host`, each once, in order, in canonical form."""
        return split_addresses(self.host)


class ProtocolListener(Listener, frozen=True, kw_only=True):
    """A settings section that declares a listener for AMQP or MQTT clients."""

    proxies: Annotated[
        str,
        option(
            "IP addresses and networks of proxies, separated by commas; their connections must "
            "begin with a PROXY protocol header",
            check=check_networks,
        ),
    ] = ""

    @property
    def networks(self) -> list[IPv4Network | IPv6Network]:
        """The networks of the setting `proxies`."""
        return split_networks(self.proxies)


class PlainListener(ProtocolListener, frozen=True, kw_only=True):
    """A settings section that declares a listener without TLS, and optionally a Unix socket."""

    socket: Annotated[str, option('path of a Unix socket to listen on as well; "" is none')] = ""
    socket_mode: Annotated[
        str, option("permissions of the Unix socket, as in chmod", check=check_mode)
    ] = "0660"

    @property
    def mode(self) -> int:
        """The permissions of the Unix socket, `socket_mode`, as a number."""
        return int(self.socket_mode, 8)


class TlsListener(ProtocolListener, frozen=True, kw_only=True):
    """A settings section that declares a listener with TLS."""

    enabled: Annotated[
        bool,
        option(
            "open this listener, with the certificate of tls.certificate; false keeps its port "
            "closed"
        ),
    ] = False
    client_certificate: Annotated[
        ClientCertificate,
        option("ask clients for a certificate that an authority in tls.ca has signed"),
    ] = "none"


class Amqp(PlainListener, frozen=True, kw_only=True):
    """The listener for AMQP 0-9-1, and limits of AMQP clients."""

    port: Port = 5672
    heartbeat: Annotated[
        int,
        option(
            "heartbeat interval in seconds offered to clients; 0 offers none",
            ge=0,
            le=65535,
            unit="s",
            fills=AmqpOptions,
        ),
    ] = AMQP.heartbeat
    product: Annotated[
        str,
        option(
            "product name that AMQP clients see; Celery and kombu share the prefetch count of a "
            "worker among its queues only if this name is RabbitMQ",
            fills=AmqpOptions,
        ),
    ] = AMQP.product
    frame_max: Annotated[
        int,
        option(
            "size in bytes of the largest frame offered to clients",
            ge=4096,
            le=128 * KIB,
            unit="bytes",
            fills=AmqpOptions,
        ),
    ] = AMQP.frame_max
    channel_max: Annotated[
        int,
        option(
            "largest number of channels that one connection may open",
            ge=1,
            le=65535,
            fills=AmqpOptions,
        ),
    ] = AMQP.channel_max


class Amqps(TlsListener, frozen=True, kw_only=True):
    """The listener for AMQP 0-9-1 over TLS. Clients may log in with a certificate (EXTERNAL)."""

    port: Port = 5671


class Mqtt(PlainListener, frozen=True, kw_only=True):
    """The listener for MQTT 3.1, 3.1.1 and 5, and limits of MQTT clients."""

    port: Port = 1883
    anonymous: Annotated[
        Anonymous, option("accept clients without a user name: from loopback only, always or never")
    ] = "loopback"
    anonymous_rules: Annotated[
        tuple[str, ...],
        option(
            "access rules for topics of clients without a user name; an empty list allows every "
            "topic",
            check=check_rule,
        ),
    ] = ()
    max_packet: Annotated[
        int,
        option(
            "size in bytes of the largest MQTT packet of a client",
            ge=256,
            le=268_435_460,
            unit="bytes",
            fills=MqttOptions,
        ),
    ] = MQTT.max_packet
    max_levels: Annotated[
        int,
        option(
            "largest number of levels of a topic name or topic filter",
            ge=1,
            le=65535,
            fills=MqttOptions,
        ),
    ] = MQTT.max_levels
    receive_maximum: Annotated[
        int,
        option(
            "largest number of QoS 1 and 2 messages that are in flight to one client; the same "
            "limit holds for messages from one client of MQTT 5",
            ge=1,
            le=65535,
            fills=MqttOptions,
        ),
    ] = MQTT.receive_maximum
    topic_alias_maximum: Annotated[
        int,
        option(
            "largest number of topic aliases that one client may use; 0 permits none",
            ge=0,
            le=65535,
            fills=MqttOptions,
        ),
    ] = MQTT.topic_alias_maximum
    keep_alive_max: Annotated[
        int,
        option(
            "longest keep-alive time in seconds; a client of MQTT 5 that asks for a longer one "
            "gets this value; 0 is no limit",
            ge=0,
            le=65535,
            unit="s",
            fills=MqttOptions,
        ),
    ] = MQTT.keep_alive_max
    response_prefix: Annotated[
        str,
        option(
            "prefix of the response information that an MQTT 5 client may request; the client "
            'identifier follows the prefix; "" gives no response information',
            fills=MqttOptions,
        ),
    ] = MQTT.response_prefix
    no_subscribe: Annotated[
        tuple[str, ...],
        option(
            "topic filters that no client may subscribe to",
            fills=CoreField(MqttOptions, convert=list),
        ),
    ] = tuple(MQTT.no_subscribe)
    sys_interval: Annotated[
        int,
        option(
            "seconds between two publications of $SYS/broker/...; 0 publishes none",
            ge=0,
            unit="s",
            fills=CoreField(MqttOptions, "sys_interval_s"),
        ),
    ] = MQTT.sys_interval_s
    session_expiry: Annotated[
        int,
        option(
            "longest time in seconds that the session of a disconnected client is kept",
            ge=0,
            le=4_294_967_295,
            unit="s",
            fills=CoreField(MqttOptions, "session_expiry_s"),
        ),
    ] = MQTT.session_expiry_s
    sessions: Annotated[
        int,
        option(
            "largest number of sessions of the broker, with and without a connected client",
            ge=1,
            fills=MqttOptions,
        ),
    ] = MQTT.sessions
    subscriptions: Annotated[
        int,
        option(
            "largest number of subscriptions of one session; 0 is no limit", ge=0, fills=MqttOptions
        ),
    ] = MQTT.subscriptions
    shared_subscriptions: Annotated[
        int,
        option(
            "largest number of shared subscriptions of one session; 0 is no limit",
            ge=0,
            fills=MqttOptions,
        ),
    ] = MQTT.shared_subscriptions
    session_backlog: Annotated[
        int, option("largest number of messages that wait for one session", ge=1, fills=MqttOptions)
    ] = MQTT.session_backlog
    retained: Annotated[
        int,
        option(
            "largest number of retained messages of each virtual host", ge=0, fills=BrokerLimits
        ),
    ] = BROKER.retained
    retained_bytes: Annotated[
        int,
        option(
            "largest total size in bytes of the retained messages of each virtual host",
            ge=0,
            unit="bytes",
            fills=BrokerLimits,
        ),
    ] = BROKER.retained_bytes
    qos0_high_mark: Annotated[
        int,
        option(
            "size in bytes of a client's unsent output above which QoS 0 messages to this client "
            "are dropped",
            ge=KIB,
            unit="bytes",
        ),
    ] = MIB


class Mqtts(TlsListener, frozen=True, kw_only=True):
    """The listener for MQTT over TLS."""

    port: Port = 8883
    certificate_user: Annotated[
        bool,
        option("log in a client without a user name as the user that its certificate names"),
    ] = False


WebSocketPath = Annotated[
    str, option("path of the WebSocket; with /ws, clients may also use /mqtt", check=check_path)
]
Origins = Annotated[
    str,
    option(
        "web origins, separated by commas, whose pages may connect, in addition to pages of this "
        "host; clients in pages of other hosts must give a user name; * is every origin",
        check=check_origins,
    ),
]


class Ws(ProtocolListener, frozen=True, kw_only=True):
    """The listener for MQTT over WebSocket."""

    enabled: Annotated[bool, option("open this listener; false keeps its port closed")] = False
    port: Port = 15675
    path: WebSocketPath = "/ws"
    origins: Origins = ""

    @property
    def origin_list(self) -> list[str]:
        """The web origins of the setting `origins`, in lowercase."""
        return split_origins(self.origins)


class Wss(Mqtts, frozen=True, kw_only=True):
    """The listener for MQTT over WebSocket over TLS."""

    port: Port = 15676
    path: WebSocketPath = "/ws"
    origins: Origins = ""

    @property
    def origin_list(self) -> list[str]:
        """The web origins of the setting `origins`, in lowercase."""
        return split_origins(self.origins)


class Tls(Section, frozen=True, kw_only=True):
    """Certificates of amqps, mqtts, wss and HTTPS. SIGHUP reads the files again."""

    certificate: Annotated[
        str, option("PEM file of the broker's certificate and its intermediate certificates")
    ] = ""
    key: Annotated[
        str,
        option('PEM file of the unencrypted private key; "" is the file of tls.certificate'),
    ] = ""
    ca: Annotated[str, option("PEM file of the authorities that sign certificates of clients")] = ""
    crl: Annotated[
        str,
        option(
            "PEM file of certificate revocation lists, one of each authority that signs "
            'certificates of clients; a client whose certificate is listed is refused; "" is none'
        ),
    ] = ""
    minimum: Annotated[TlsVersion, option("oldest TLS version that clients may use")] = "1.2"
    user_from: Annotated[
        NameFrom, option("field of a client's certificate that holds its user name")
    ] = "common_name"
    names: Annotated[
        Certificates,
        option("certificates for other server names (SNI); *.NAME matches any LABEL.NAME"),
    ] = field(default_factory=dict)


class Metrics(Listener, frozen=True, kw_only=True):
    """Prometheus metrics and health checks over HTTP, by default without a login."""

    port: Port = 15692
    login: Annotated[
        bool,
        option(
            "show metrics only to users with the tag monitoring or administrator; health checks "
            "need no login"
        ),
    ] = False
    topics: Annotated[
        tuple[str, ...],
        option(
            "MQTT topic filters, at most 100: trellis_topic_unroutable_total counts the messages "
            "without a destination for each filter",
            check=check_topic_filter,
        ),
    ] = ()


class Http(Listener, frozen=True, kw_only=True):
    """The HTTP API, which requires a login. `trellis list` and other commands use the API."""

    port: Port = 15672
    tls: Annotated[
        bool, option("serve HTTPS instead of HTTP, with the certificate of tls.certificate")
    ] = False
    client_certificate: Annotated[
        ClientCertificate,
        option("ask HTTPS clients for a certificate that an authority in tls.ca has signed"),
    ] = "none"
    hosts: Annotated[
        str,
        option(
            "host names, separated by commas, by which clients on this machine reach this port, "
            "in addition to localhost; a user limited to loopback must use one of these names",
            check=check_hosts,
        ),
    ] = ""
    connections: Annotated[
        int,
        option(
            "largest number of connections that are open at once; 4 of them are kept for "
            "administrators",
            ge=8,
        ),
    ] = 64
    address_connections: Annotated[
        int, option("largest number of connections that are open from one address", ge=1)
    ] = 16

    @property
    def host_names(self) -> list[str]:
        """The host names of the setting `hosts`, in lowercase."""
        return split_origins(self.hosts)
