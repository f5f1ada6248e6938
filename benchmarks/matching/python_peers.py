"""Answers the requests of `trellis bench matching` with a matcher from PyPI.

    python_peers.py paho | amqtt

`paho` is paho-mqtt's MQTTMatcher: a trie with one value per filter, here a list of subscribers.
`amqtt` does what amqtt's broker does for a message: it calls `_matches` for each filter in a dict.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent.parent)
)  # Add the root, where Python finds the request protocol and the measuring loops of Trellis.

from trellis.bench.matching import step


def filter_of(pattern: str) -> str:
    """Convert an AMQP pattern to an MQTT filter. Raises Unable if `#` is not the last word."""
    if "#" in pattern[:-1]:
        raise Unable("MQTT permits `#` only at the end of a pattern")
    return pattern.replace(".", "/").replace("*", "+")


class Unable(Exception):
    """Raised if an AMQP pattern has no equivalent in MQTT."""


class PahoMatcher:
    """A matcher that uses paho-mqtt's MQTTMatcher, with a list of subscribers for each filter."""

    def __init__(self) -> None:
        from paho.mqtt.matcher import MQTTMatcher

        make: Any = MQTTMatcher  # paho's class has no type annotations
        self._matcher = make()

    def subscribe(self, pattern: str, subscriber: int) -> bool:
        """Add the (pattern, subscriber) pair; return False if it was already present."""
        name = filter_of(pattern)
        try:
            self._matcher[name].append(subscriber)
        except KeyError:
            self._matcher[name] = [subscriber]
        return True

    def unsubscribe(self, pattern: str, subscriber: int) -> bool:
        """Remove the (pattern, subscriber) pair; return False if it was not present."""
        name = filter_of(pattern)
        subscribers = self._matcher[name]
        subscribers.remove(subscriber)
        if not subscribers:
            del self._matcher[name]
        return True

    def match(self, topic: str) -> list[int]:
        """Return the subscribers of all matching patterns, each once."""
        return [
            each
            for subscribers in self._matcher.iter_match(topic.replace(".", "/"))
            for each in subscribers
        ]

    def matches_any(self, topic: str) -> bool:
        """True if at least one pattern matches."""
        return next(self._matcher.iter_match(topic.replace(".", "/")), None) is not None


class AmqttMatcher:
    """A matcher that does lookups as amqtt's broker does: it compares a topic with each filter."""

    def __init__(self) -> None:
        from amqtt.broker import Broker

        self._matches = Broker._matches
        # No broker of amqtt runs: the method uses only its arguments.
        self._broker = Broker.__new__(Broker)
        self._broker.logger = _NoLog()
        self._subscriptions: dict[str, list[int]] = {}

    def subscribe(self, pattern: str, subscriber: int) -> bool:
        """Add the (pattern, subscriber) pair; return False if it was already present."""
        self._subscriptions.setdefault(filter_of(pattern), []).append(subscriber)
        return True

    def unsubscribe(self, pattern: str, subscriber: int) -> bool:
        """Remove the (pattern, subscriber) pair; return False if it was not present."""
        name = filter_of(pattern)
        self._subscriptions[name].remove(subscriber)
        if not self._subscriptions[name]:
            del self._subscriptions[name]
        return True

    def match(self, topic: str) -> list[int]:
        """Return the subscribers of all matching patterns, each once."""
        topic = topic.replace(".", "/")
        matches, broker = self._matches, self._broker
        return [
            each
            for name, subscribers in self._subscriptions.items()
            if matches(broker, topic, name)
            for each in subscribers
        ]

    def matches_any(self, topic: str) -> bool:
        """True if at least one pattern matches."""
        topic = topic.replace(".", "/")
        return any(self._matches(self._broker, topic, name) for name in self._subscriptions)


class _NoLog:
    def debug(self, *_: object) -> None:
        pass


class PythonPeer(step.MatchingStep):
    """Answers the requests of `trellis bench matching` with one of the matchers of this module."""

    def make(self) -> Any:
        return PahoMatcher() if self.name == "paho" else AmqttMatcher()

    def do(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["kind"] == "about":
            return {
                "version": (
                    f"{version('paho-mqtt' if self.name == 'paho' else 'amqtt')}, Python "
                    f"{sys.version.split()[0]}"
                )
            }
        try:
            return super().do(request)
        except Unable as error:
            return {"unable": str(error)}


if __name__ == "__main__":
    sys.exit(step.serve(PythonPeer(sys.argv[1])))
