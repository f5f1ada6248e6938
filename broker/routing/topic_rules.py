"""Whether rules about topics allow a binding, whoever asks for it and by which way."""

from __future__ import annotations

from broker.access.identity import READ_ALL, Identity
from broker.errors import AccessRefused
from broker.routing.exchanges import Exchange, TopicExchange
from matching.grammar import swap


def check_binding(identity: Identity, source: Exchange, key: str, vhost: str) -> None:
    """Raises AccessRefused. Rules are asked with a filter that takes all that the key takes. (`#`
    before the end becomes the last word: no narrower filter holds everything.) A queue may have
    other readers, so it is all or nothing.
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
