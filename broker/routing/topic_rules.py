"""Topic permissions of bindings: a user may bind a queue to topics that the user may read."""

from __future__ import annotations

from broker.access.identity import READ_ALL, Identity
from broker.errors import AccessRefused
from broker.routing.exchanges import Exchange, TopicExchange
from matching.grammar import swap


def check_binding(identity: Identity, source: Exchange, key: str, vhost: str) -> None:
    """Raise AccessRefused unless the identity may read all topics that match the binding key.

    A queue may have other consumers, so permission for a part of the topics is not enough. The
    key is converted to an MQTT filter, which the access rules can check. A `#` within the key
    becomes the end of the filter, because MQTT allows `#` at the end only; the filter then matches
    more topics than the key.
    """
    if source.kind != TopicExchange.kind:
        return
    words = swap(key).split("/")
    wider = words[: words.index("#") + 1] if "#" in words else words
    topic_filter = "/".join("+" if word == "*" else word for word in wider)
    if identity.read_scope(source.name, key, topic_filter, False) != READ_ALL:
        raise AccessRefused(
            f"read access to topic '{key}' in exchange '{source.name}' in vhost '{vhost}' refused "
            f"for user '{identity.name}'"
        )
