"""Matching profiles: advice of `trellis pipeline advise` on matchers, cached routes and prewarming.

A profile says which matcher a topic exchange uses, how many routes are cached, and which topics are
resolved before the first message. A profile is advice: an entry for a missing exchange is ignored,
an exchange declared with `x-matcher` keeps that matcher, and the broker stores no part of a
profile.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec

from broker.broker import Broker
from broker.routing.exchanges.topic import TopicExchange
from broker.routing.prewarming import PrewarmedName, Prewarming
from broker.vhost.vhost import VirtualHost
from matching.grammar import AMQP, MQTT, InvalidTopic, swap
from matching.registry import NAMES as ALGORITHMS
from protocols.mqtt.connection.service import NAMES
from trellis import logs
from trellis.settings import SettingsError

#: Version of the file format.
FORMAT: Final = 1
#: Exchange to which MQTT clients publish.
_TOPICS: Final = "amq.topic"
#: Largest number of bindings of an exchange whose matcher may change while clients are connected.
#: To rebuild a matcher with more bindings would block the clients for more than 50 ms.
MAX_REBUILT: Final = 20_000


class ExchangeProfile(msgspec.Struct, frozen=True):
    """Advice for one topic exchange."""

    vhost: str
    exchange: str
    matcher: str | None = None
    prewarm: list[str] = msgspec.field(default_factory=list)


class MatchingProfile(msgspec.Struct, frozen=True):
    """Content of a profile file, which may have further fields for human readers."""

    format: int
    routes: Annotated[int, msgspec.Meta(ge=1, le=1 << 26)]
    exchanges: list[ExchangeProfile]


def read(path: str, allowed: tuple[str, ...]) -> MatchingProfile | None:
    """Return the profile in a file, or None for an empty path.

    Raises SettingsError for a file that is not a valid profile, or that names a matcher which is
    not in `allowed`, the value of the setting matcher.allowed.
    """
    if not path:
        return None
    try:
        profile = msgspec.json.decode(Path(path).read_bytes(), type=MatchingProfile)
    except OSError as error:
        raise SettingsError(
            f"matcher.profile: {path}: {error.strerror}; "
            f"`trellis pipeline advise --output {path}` writes a profile"
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"matcher.profile: {path} is not a matching profile: {error}; "
            f"`trellis pipeline advise --output {path}` writes one"
        ) from error
    if profile.format != FORMAT:
        raise SettingsError(
            f"matcher.profile: {path} has format {profile.format}, "
            f"and this version of Trellis reads only {FORMAT}; "
            "write it again with `trellis pipeline advise` of this version"
        )
    for each in profile.exchanges:
        if each.matcher is not None and each.matcher not in allowed:
            known = (
                "is missing in matcher.allowed; add it there"
                if each.matcher in ALGORITHMS
                else "does not exist; write the profile again with `trellis pipeline advise`"
            )
            raise SettingsError(
                f"matcher.profile: {path} gives exchange '{each.exchange}' "
                f"the matcher '{each.matcher}', which {known}"
            )
    return profile


def apply(
    broker: Broker, profile: MatchingProfile | None, routes: int, default: str, serving: bool
) -> None:
    """Apply a profile; without a profile, apply `routes` and the matcher `default` of the settings.

    `routes` is the capacity of each route cache. `serving` is True while clients are connected.
    """
    broker.limits.routes = profile.routes if profile is not None else routes
    advised: dict[str, dict[str, ExchangeProfile]] = {}
    for each in profile.exchanges if profile is not None else ():
        advised.setdefault(each.vhost, {})[each.exchange] = each
    changed = warmed = 0
    for vhost in broker.vhosts.values():
        here = advised.pop(vhost.name, {})
        for context in vhost.contexts:
            context.capacity = broker.limits.routes
        changed += _choose(vhost, here, default, serving)
        warmed += _warm(broker, vhost, here)
    if profile is not None:
        logs.info(
            "matching_profile",
            routes=profile.routes,
            matchers_changed=changed,
            topics_warmed=warmed,
        )
    for name in advised:
        logs.warning(
            "matching_profile_unused",
            vhost=name,
            note="the profile names a vhost that does not exist; create the vhost, or write the "
            "profile again with `trellis pipeline advise`",
        )


def _choose(
    vhost: VirtualHost, advised: dict[str, ExchangeProfile], default: str, serving: bool
) -> int:
    changed = 0
    for exchange in vhost.exchanges.values():
        if not isinstance(exchange, TopicExchange) or "x-matcher" in exchange.options.arguments:
            continue
        each = advised.get(exchange.name)
        wanted = each.matcher if each is not None and each.matcher is not None else default
        if wanted == exchange.algorithm:
            continue
        count = sum(1 for _ in exchange)
        if serving and count > MAX_REBUILT:
            logs.warning(
                "matcher_not_changed",
                vhost=vhost.name,
                exchange=exchange.name,
                bindings=count,
                note="there are too many bindings to change the matcher now; restart the broker",
            )
            continue
        exchange.use(wanted)
        changed += 1
    return changed


def _warm(broker: Broker, vhost: VirtualHost, advised: dict[str, ExchangeProfile]) -> int:
    names: dict[str, list[PrewarmedName]] = {}
    count = 0
    for each in advised.values():
        source = each.exchange.encode()
        for topic in each.prewarm:
            key = topic.encode("utf-8", "surrogateescape")
            if len(source) > 255 or len(key) > 255 or each.exchange not in vhost.exchanges:
                continue
            count += 1
            name = bytes([len(source)]) + source + bytes([len(key)]) + key
            names.setdefault("amqp", []).append(PrewarmedName(name, each.exchange, topic))
            if each.exchange == _TOPICS and _publishable(swap(topic)):
                filtered = PrewarmedName(swap(topic).encode(), each.exchange, topic)
                for front in set(NAMES.values()):
                    names.setdefault(front, []).append(filtered)
    prewarming = vhost.contexts.prewarmer = Prewarming(broker.agenda, names) if names else None
    if prewarming is not None:
        for context in vhost.contexts:
            prewarming.prewarm(context)
    return count


def _publishable(topic: str) -> bool:
    """True if MQTT clients may publish to a topic under every setting."""
    try:
        MQTT.check_topic(topic)
    except InvalidTopic:
        return False
    return (
        not topic.startswith("$")
        and topic.count(MQTT.separator) < 100
        and AMQP.split(swap(topic)) != []
    )
