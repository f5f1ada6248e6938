"""Renames topics between the local and the remote broker of a bridge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from paho.mqtt.client import topic_matches_sub

from trellis.settings.bridge import BOTH, OUT, TopicRule

#: The largest QoS of a bridge. A client that uses QoS 2 must keep the state of its session over a
#: crash (MQTT 5, section 4.1), and a bridge stores nothing: after a kill, its broker would take a
#: new publication for a repeated one, and drop the new publication.
QOS_MAX: Final = 1


class TopicMap:
    """The topic filters of one direction of a bridge, and its rules that rename topics.

    `outward` is True for messages from the local to the remote broker.
    """

    def __init__(self, rules: Sequence[TopicRule], outward: bool) -> None:
        self._entries = [
            (
                (rule.local_prefix, rule.remote_prefix)
                if outward
                else (rule.remote_prefix, rule.local_prefix),
                rule,
            )
            for rule in rules
            if rule.direction == BOTH or (rule.direction == OUT) == outward
        ]

    @property
    def filters(self) -> dict[str, int]:
        """The filters to subscribe to at the source, with the largest QoS of each."""
        filters: dict[str, int] = {}
        for (prefix, _), rule in self._entries:
            topic_filter = prefix + rule.pattern
            filters[topic_filter] = min(QOS_MAX, max(rule.qos, filters.get(topic_filter, 0)))
        return filters

    def destination(self, topic: str) -> tuple[str, int] | None:
        """Return the topic at the destination and the QoS; None if no rule matches `topic`."""
        for (own, other), rule in self._entries:
            if topic_matches_sub(own + rule.pattern, topic):
                return other + topic[len(own) :], rule.qos
        return None
