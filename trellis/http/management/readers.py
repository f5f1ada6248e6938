"""The users that may read topics of an MQTT topic filter: `GET /api/topic-readers/VHOST`.

The check of each user's rights is the same as for a subscription to the filter. The broker knows
the users of the settings and the stored users by name. The broker does not know the users of tokens
(JWT) and of amqtt plugins, so these users are missing in the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.access.identity import READ_ALL, READ_NONE, READ_SOME, Identity
from broker.vhost.vhost import VirtualHost
from matching.grammar import MQTT, InvalidPattern
from protocols.mqtt.codec.topics import EXCHANGE
from protocols.mqtt.connection.reauthorization import read_scope
from trellis.http.management.answers import Call, Listing, Row, bad_request, iterate

_SCOPES: Final = {READ_ALL: "all", READ_SOME: "some"}


async def readers(call: Call) -> Listing:
    """List the users that may read some or all topics of `filter`, with the rules that decide.

    Rules with `{client_id}` are evaluated with the client identifier `client_id` of the query. If
    the query has no `client_id`, such a rule permits no topic.
    """
    vhost = call.vhost(call.path_parameters[0])
    topic_filter = call.query.get("filter", "")
    try:
        MQTT.check(topic_filter, call.node.mqtt.options.max_levels)
    except InvalidPattern as error:
        raise bad_request(
            f"'filter' must be an MQTT topic filter, not '{topic_filter}': {error}"
        ) from None
    rows = _rows(call, vhost, topic_filter, call.query.get("client_id", ""))
    return Listing(iterate(rows))


def _rows(
    call: Call, vhost: VirtualHost, topic_filter: str, client_id: str
) -> Iterator[Row | None]:
    for known in _identities(call):
        identity = None if known is None else known.for_vhost(vhost.name, client_id)
        scope = READ_NONE
        if identity is not None:
            scope = read_scope(identity, topic_filter, vhost.name)
        if identity is None or scope == READ_NONE:
            yield None
            continue
        yield {
            "user": identity.name,
            "reads": _SCOPES[scope],
            "permission": identity.read_pattern,
            "rules": identity.rules_about(EXCHANGE, topic_filter),
        }


def _identities(call: Call) -> Iterator[Identity | None]:
    """Yield the identities of all users whose names the broker knows, the anonymous user first.

    Yield None in place of a user that does not exist.
    """
    yield call.node.accounts.anonymous_identity
    for name in {**call.node.accounts.settings_accounts, **call.broker.users.by_name}:
        yield call.broker.authenticator.identity_of(name)
