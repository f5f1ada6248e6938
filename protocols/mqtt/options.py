"""Options of the MQTT front end: the limits and timings that it grants its clients.

The default values are the same as in the settings (trellis/settings/schema.py).
"""

from __future__ import annotations


class MqttOptions:
    """Limits and timings of all MQTT connections and sessions of one broker."""

    def __init__(self, version: str = "") -> None:
        #: Version of the broker, published in $SYS/broker/version.
        self.version = version
        #: Time that a client has to complete its login, in milliseconds.
        self.handshake_ms = 10_000
        #: Size of the largest packet, in bytes.
        self.max_packet = 16 << 20
        #: Largest number of levels of a topic name or topic filter.
        self.max_levels = 200
        #: Largest number of QoS 1 and QoS 2 messages in flight to one client; for MQTT 5, also from
        #: one client.
        self.receive_maximum = 1_024
        #: Longest session expiry interval, in seconds.
        self.session_expiry_s = 14 * 86_400
        #: Milliseconds that a client has after a restart of the broker to connect again before its
        #: will is published or the delay of its will begins.
        self.will_grace_ms = 0
        #: Largest number of sessions of the broker, with and without a connected client.
        self.sessions = 1_000_000
        #: Largest number of messages that wait in the inbox of one session.
        self.session_backlog = 100_000
        #: Largest number of subscriptions of one session, shared subscriptions included; 0 is no
        #: limit.
        self.subscriptions = 100_000
        #: Largest number of shared subscriptions of one session; 0 is no limit. The session's
        #: record has all of them. It is written when one of them changes, and when the client
        #: connects or disconnects. Making a record with 4,096 shared subscriptions takes 0.8 ms.
        self.shared_subscriptions = 4_096
        #: Largest number of topic aliases that a client of MQTT 5 may use; 0 offers none.
        self.topic_alias_maximum = 16
        #: Longest keep-alive in seconds, sent to clients of MQTT 5; 0 is no limit.
        self.keep_alive_max = 0
        #: Response information for clients that request it: this prefix and the client identifier.
        self.response_prefix = "responses/"
        #: Topic filters that no client may subscribe to.
        self.no_subscribe: list[str] = []
        #: Seconds between two publications of the $SYS topics; 0 publishes none.
        self.sys_interval_s = 10
