"""The columns of each kind of `trellis list`, to report a wrong column even if the list is empty.

The rows of the broker (trellis/monitoring/listings.py) name their columns, but an empty list has no
row. tests/top/test_listings.py compares the names in this module with the rows of a broker.
"""

from typing import Final

_DEAD_LETTERED: Final = (
    *("dead_lettered_expired", "dead_lettered_maxlen", "dead_lettered_rejected"),
    "dead_lettered_delivery_limit",
)
#: The counts of queues and sessions.
_COUNTS: Final = (
    *("published", "delivered", "redelivered", "acknowledged", "expired", "over_limit", "rejected"),
    *("dead_lettered", *_DEAD_LETTERED),
)

COLUMNS: Final = {
    "queues": (
        *("vhost", "name", "kind", "durable", "auto_delete", "exclusive", "messages_ready"),
        *("messages_unacknowledged", "head_age_ms", "consumers", *_COUNTS),
        *("paused", "policy", "arguments"),
    ),
    "exchanges": (
        *("vhost", "name", "type", "durable", "auto_delete", "internal", "bindings"),
        *("published", "copies", "unroutable", "dead_letters_expired", "dead_letters_maxlen"),
        *("dead_letters_rejected", "dead_letters_delivery_limit", "matcher", "arguments"),
    ),
    "bindings": (
        *("vhost", "source", "routing_key", "grammar", "destination", "destination_type"),
        "arguments",
    ),
    # AMQP connections have `channels`, and MQTT connections have `keep_alive`.
    "connections": (
        *("peer", "protocol", "user", "state", "listener", "since", "octets_in", "octets_out"),
        *("unsent", "slow", "vhost", "channels", "client", "keep_alive"),
    ),
    "channels": (
        *("vhost", "peer", "number", "user", "consumers", "prefetch", "messages_unacknowledged"),
        *("messages_unconfirmed", "confirms", "transactional"),
    ),
    "consumers": (
        *("vhost", "queue", "consumer_tag", "user", "peer", "channel", "prefetch"),
        *("acknowledges", "exclusive", "priority", "active"),
    ),
    "sessions": (
        *("client_id", "vhost", "connected", "persistent", "subscriptions", "inbox", "queued"),
        *("in_flight", "dropped", "missed", *_COUNTS, "delivered_qos0"),
    ),
    "users": ("name", "tags", "role", "from", "loopback_only", "connections"),
    "policies": ("vhost", "name", "pattern", "apply_to", "priority", "definition"),
    "delayed": (
        *("vhost", "exchange", "id", "routing_key", "due", "left_ms", "bytes", "persistent"),
    ),
    "retained": ("vhost", "topic", "qos", "bytes", "expires_in_ms"),
    "settings": ("name", "value", "source", "after_restart"),
    "topics": ("vhost", "exchange", "routing_key", "messages", "unroutable"),
    "topic_groups": ("topics", "unroutable"),
    "log": ("time", "level", "event", "fields"),
    "certificates": ("file", "not_after", "days_left"),
    "cluster": (
        *("cluster", "state", "epoch", "offset", "batch", "silence", "lease", "appended"),
        *("append_seconds", "trimmed", "log_bytes", "listed", "struck", "survivor_bytes"),
    ),
    "bridges": (
        *("kind", "vhost", "name", "remote", "state", "protocol", "since", "sent", "received"),
        *("refused", "dropped", "looped", "reconnects", "in_flight", "error", "refusal"),
    ),
}
