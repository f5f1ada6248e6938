"""The matching profile that `trellis pipeline advise` writes: which matcher an exchange has, how
many routes are kept, and which topics are resolved before anybody asks.

It is a help and no definition: what it says of exchanges that are not there is passed over, an
exchange that was declared with `x-matcher` keeps that, and nothing of it is stored.
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

#: The version of the file that is known.
FORMAT: Final = 1
#: The exchange that MQTT publishes to.
_TOPICS: Final = "amq.topic"
#: While clients are here, the matcher of an exchange with more bindings is not changed: that would
#: hold them up for more than 50 ms.
REBUILT: Final = 20_000


class ExchangeProfile(msgspec.Struct, frozen=True):
    """What is advised for a topic exchange."""

    vhost: str
    exchange: str
    matcher: str | None = None
    prewarm: list[str] = msgspec.field(default_factory=list)


class MatchingProfile(msgspec.Struct, frozen=True):
    """The whole file; it may say more, for people."""

    format: int
    routes: Annotated[int, msgspec.Meta(ge=1, le=1 << 26)]
    exchanges: list[ExchangeProfile]


def read(path: str, allowed: tuple[str, ...]) -> MatchingProfile | None:
    """The profile, None for no path.

    Raises SettingsError: nothing of a file that is not understood is used.
    """
    if not path:
        return None
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=MatchingProfile)
    except OSError as error:
        raise SettingsError(
            f"matcher.profile: {path}: {error.strerror}; `trellis pipeline advise --output {path}` writes one"
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SettingsError(f"matcher.profile: {path} is no profile: {error}") from error
    if found.format != FORMAT:
        raise SettingsError(
            f"matcher.profile: {path} has format {found.format}, and this version knows {FORMAT}; "
            "write it anew with this version's `trellis pipeline advise`"
        )
    for each in found.exchanges:
        if each.matcher is not None and each.matcher not in allowed:
            known = (
                "is not allowed here (matcher.allowed)" if each.matcher in ALGORITHMS else "is none"
            )
            raise SettingsError(
                f"matcher.profile: {path} names the matcher '{each.matcher}' for exchange '{each.exchange}', which {known}"
            )
    return found


def apply(
    broker: Broker, profile: MatchingProfile | None, routes: int, default: str, serving: bool
) -> None:
    """Do as the profile says; without one, as the settings say. `serving`: clients are here."""
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
        logs.warning("matching_profile_unused", vhost=name, note="there is no such vhost")


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
        if serving and count > REBUILT:
            logs.warning(
                "matcher_not_changed",
                vhost=vhost.name,
                exchange=exchange.name,
                bindings=count,
                note="it changes with a restart",
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
            octets = bytes([len(source)]) + source + bytes([len(key)]) + key
            names.setdefault("amqp", []).append(PrewarmedName(octets, each.exchange, topic))
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
    """Whether MQTT clients may publish it, at any setting."""
    try:
        MQTT.check_topic(topic)
    except InvalidTopic:
        return False
    return (
        not topic.startswith("$")
        and topic.count(MQTT.separator) < 100
        and AMQP.split(swap(topic)) != []
    )
