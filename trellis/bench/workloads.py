"""The table of workloads. A new workload is a new entry, if the fields can describe its traffic.

Messages go from `publishers` to `subscribers`; each client has its own connection. Messages use
`topics` different topics in turn. `sharing` decides which subscribers receive a message:

    ALL         every subscriber, by an MQTT wildcard filter or an AMQP queue with a wildcard key
    TOPICS      the one subscriber of its topic
    COMPETING   one of the consumers of the one queue
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ALL: Final = "everybody"
TOPICS: Final = "topics"
COMPETING: Final = "competing"

KIB: Final = 1024


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The traffic of one benchmark: protocols, clients, message size and delivery guarantees.

    `publish` and `consume` name the protocol of each side: "mqtt" or "amqp".
    """

    name: str
    text: str
    publish: str
    consume: str
    publishers: int = 1
    subscribers: int = 1
    sharing: str = ALL
    #: MQTT: QoS of messages and subscriptions.
    qos: int = 0
    #: AMQP: True if the consumer acknowledges each message.
    acks: bool = False
    #: AMQP: prefetch count of the consumer; 0 is no limit.
    prefetch: int = 0
    #: AMQP: True if publisher confirms are on.
    confirms: bool = False
    #: AMQP: True for persistent messages and durable queues. MQTT: True if the subscribers have
    #: persistent sessions (clean session 0), for which the broker stores the messages.
    persistent: bool = False
    #: AMQP: number of additional bindings of the exchange, which match no message.
    bindings: int = 0
    #: AMQP: True for a headers exchange instead of a topic exchange.
    headers: bool = False
    #: Size of a body in bytes.
    size: int = 100
    topics: int = 16
    #: Largest number of messages that a publisher sends at once.
    batch: int = 64
    #: Largest number of messages in flight. With a window of 1, latency is measured.
    window: int = 4096

    @property
    def protocols(self) -> set[str]:
        """The protocols that the workload uses: "mqtt", "amqp" or both."""
        return {self.publish, self.consume}


def _mqtt(
    name: str,
    text: str,
    *,
    qos: int = 0,
    publishers: int = 1,
    subscribers: int = 1,
    sharing: str = ALL,
    persistent: bool = False,
    batch: int = 64,
    window: int = 4096,
) -> Workload:
    return Workload(
        name="mqtt-" + name,
        text="MQTT " + text,
        publish="mqtt",
        consume="mqtt",
        qos=qos,
        publishers=publishers,
        subscribers=subscribers,
        sharing=sharing,
        persistent=persistent,
        batch=batch,
        window=window,
    )


def _amqp(
    name: str,
    text: str,
    *,
    acks: bool = False,
    prefetch: int = 0,
    confirms: bool = False,
    publishers: int = 1,
    subscribers: int = 1,
    sharing: str = ALL,
    size: int = 100,
    bindings: int = 0,
    headers: bool = False,
    batch: int = 64,
    window: int = 4096,
) -> Workload:
    return Workload(
        name="amqp-" + name,
        text="AMQP " + text,
        publish="amqp",
        consume="amqp",
        acks=acks,
        prefetch=prefetch,
        confirms=confirms,
        publishers=publishers,
        subscribers=subscribers,
        sharing=sharing,
        size=size,
        bindings=bindings,
        headers=headers,
        batch=batch,
        window=window,
    )


#: Largest number of messages in flight in workloads with QoS 1 and 2. Brokers drop messages of a
#: slow client above a limit (Mosquitto 1,000, NATS 1,024).
_SMALL_WINDOW: Final = 1_000

_ALL: Final = (
    _mqtt("qos0", "QoS 0, one publisher, one subscriber, stream"),
    _mqtt("qos1", "QoS 1, one publisher, one subscriber, stream", qos=1, window=_SMALL_WINDOW),
    _mqtt("qos2", "QoS 2, one publisher, one subscriber, stream", qos=2, window=_SMALL_WINDOW),
    *(
        _mqtt(
            f"qos{qos}-persistent",
            f"QoS {qos}, one publisher, one subscriber with a persistent session",
            qos=qos,
            persistent=True,
            window=_SMALL_WINDOW,
        )
        for qos in (1, 2)
    ),
    _mqtt("fan10", "QoS 0, every message to 10 subscribers", subscribers=10),
    _mqtt(
        "fan1000",
        "QoS 0, every message to 1,000 subscribers, one in flight",
        subscribers=1000,
        batch=1,
        window=1,
    ),
    _mqtt(
        "50pub",
        "QoS 0, 50 publishers, one message per send",
        publishers=50,
        batch=1,
        window=_SMALL_WINDOW,
    ),
    _mqtt("16topics", "QoS 0, 16 topics, a subscriber for each", subscribers=16, sharing=TOPICS),
    _mqtt("pingpong", "QoS 0, one message in flight", batch=1, window=1),
    _amqp("auto", "no acknowledgements, one publisher, one queue, one consumer"),
    _amqp(
        "ack",
        "every message acknowledged, prefetch 1,000, confirms",
        acks=True,
        prefetch=1000,
        confirms=True,
    ),
    _amqp("fan10", "every message to 10 queues", subscribers=10),
    _amqp(
        "50pub", "50 publishers, one message per send", publishers=50, batch=1, window=_SMALL_WINDOW
    ),
    _amqp("pingpong", "one message in flight", batch=1, window=1),
    _amqp("1k", "bodies of 1 KiB", size=KIB),
    _amqp("64k", "bodies of 64 KiB", size=64 * KIB),
    _amqp(
        "compete5",
        "one queue, 5 consumers that acknowledge, prefetch 250",
        subscribers=5,
        sharing=COMPETING,
        acks=True,
        prefetch=250,
    ),
    _amqp("bindings10k", "topic exchange with 10,000 other bindings", bindings=10_000),
    _amqp("bindings100k", "topic exchange with 100,000 other bindings", bindings=100_000),
    _amqp(
        "headers", "headers exchange, two headers required, one queue, one consumer", headers=True
    ),
    _amqp(
        "headers10k", "headers exchange with 10,000 other bindings", headers=True, bindings=10_000
    ),
    Workload(
        name="amqp-durable",
        text="AMQP persistent, 256 bytes, durable queue, confirms, acks, prefetch 1,000",
        publish="amqp",
        consume="amqp",
        acks=True,
        prefetch=1000,
        confirms=True,
        persistent=True,
        size=256,
    ),
    Workload(
        name="amqp-durable-one",
        text="AMQP persistent, 256 bytes, durable queue, one message in flight",
        publish="amqp",
        consume="amqp",
        acks=True,
        prefetch=1000,
        confirms=True,
        persistent=True,
        size=256,
        batch=1,
        window=1,
    ),
    Workload(
        name="cross-mqtt-amqp",
        text="MQTT QoS 0 publisher, AMQP consumer without acknowledgements",
        publish="mqtt",
        consume="amqp",
    ),
    Workload(
        name="cross-amqp-mqtt",
        text="AMQP publisher, MQTT QoS 0 subscriber",
        publish="amqp",
        consume="mqtt",
    ),
    # This workload comes last, because some brokers are busy for a while after so many connections
    # were closed.
    _mqtt(
        "fan10000",
        "QoS 0, every message to 10,000 subscribers, one in flight",
        subscribers=10_000,
        batch=1,
        window=1,
    ),
)

WORKLOADS: Final[dict[str, Workload]] = {workload.name: workload for workload in _ALL}
