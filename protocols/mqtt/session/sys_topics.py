"""Publishes the broker's counters under $SYS/broker/..., with the names that Mosquitto uses.

The $SYS topics are not routed: no queue receives them, and clients cannot publish to them. Their
values are texts, and their QoS is 0. The first subscription to a filter that begins with `$SYS`
creates the topics. Their values are renewed at an interval while a session with such a subscription
exists.
"""

from __future__ import annotations

from math import exp
from typing import Final

from broker.agenda import Agenda, Task
from broker.messages.message import AT_MOST_ONCE, PLAIN, Address, Message
from matching.grammar import MQTT, swap
from matching.topics import TopicIndex
from protocols.mqtt.codec.topics import EXCHANGE
from protocols.mqtt.session.retained_delivery import RetainedDelivery
from protocols.mqtt.session.session import Session

#: Prefix of topic filters that match $SYS topics.
ROOT: Final = "$SYS"
#: The periods of the load averages, in minutes.
AVERAGES: Final = (1, 5, 15)


#: The number of objects (sessions, connections, queues) that are counted in one turn of the event
#: loop.
STEP: Final = 2_000


class Survey:
    """One computation of the values of the $SYS topics.

    The computation counts sessions, connections and queues in steps, so that the event loop is not
    blocked.
    """

    def step(self, most: int) -> bool:
        """Count up to `most` more sessions, connections and queues; return True if some remain."""
        raise NotImplementedError

    def counts(self) -> dict[str, int]:
        """Return the counts by topic, without the prefix `$SYS/broker/` of the topics.

        A count whose topic begins with `load/` is published as load averages.
        """
        raise NotImplementedError


class Surveyor:
    """Creates a Survey each time that the values of the $SYS topics are computed again.

    This class is only an interface: the front end implements it.
    """

    def survey(self) -> Survey:
        """Begin a new computation of the values of the $SYS topics, and return it."""
        raise NotImplementedError


class LoadAverage:
    """The load averages of a counter: its growth per minute, averaged over 1, 5 and 15 minutes."""

    def __init__(self) -> None:
        self.rates = [0.0] * len(AVERAGES)
        self._last = -1

    def take(self, count: int, seconds: float) -> None:
        """Update the averages with the present count, `seconds` after the previous call."""
        if self._last >= 0 and seconds > 0:
            rate = max(0, count - self._last) * 60 / seconds
            for at, minutes in enumerate(AVERAGES):
                weight = exp(-seconds / (60 * minutes))
                self.rates[at] = rate + weight * (self.rates[at] - rate)
        self._last = count


class SysTree(Task):
    """The $SYS topics with their values, and the sessions that watch them."""

    def __init__(self, agenda: Agenda, interval_s: int, version: str, surveyor: Surveyor) -> None:
        self._agenda = agenda
        self._interval_s = interval_s
        self._version = version
        self._surveyor = surveyor
        self._survey: Survey | None = None
        self._began = agenda.now
        self._index: TopicIndex[Message] = TopicIndex(MQTT)
        self._values: dict[str, str] = {}
        self._loads: dict[str, LoadAverage] = {}
        self._watchers: dict[Session, None] = {}
        self._running = False
        self._renewed_at = 0

    def __len__(self) -> int:
        return len(self._values)

    def watch(self, session: Session) -> None:
        """Send a session each value that changes from now on, because the session has subscribed to
        $SYS topics.
        """
        if self._interval_s == 0:
            return
        self._watchers[session] = None
        if not self._running:
            self._running = True
            survey = self._surveyor.survey()
            if survey.step(STEP):
                self._survey = survey
                self._agenda.later(self)
            else:
                self._renew(survey.counts())
                self._wait()

    def send_all(self, session: Session, topic_filter: str) -> None:
        """Send a session all values that match its subscription, as retained messages."""
        binding = session.subscriptions.get(topic_filter)
        if binding is not None:
            delivery = RetainedDelivery(session, binding)
            for message in list(self._index.walk(topic_filter)):
                delivery.receive_retained(message)

    def run(self) -> None:
        """Renew the values, and send the changed values to the subscribed sessions."""
        if self._survey is None:
            for session in [
                session for session in self._watchers if session.dead or not _watches(session)
            ]:
                del self._watchers[session]
            if not self._watchers:
                self._running = False
                return
            self._survey = self._surveyor.survey()
        if self._survey.step(STEP):
            self._agenda.later(self)
            return
        changed = self._renew(self._survey.counts())
        self._survey = None
        for session in self._watchers:
            filters = [
                topic_filter
                for topic_filter in session.subscriptions
                if topic_filter.startswith(ROOT)
            ]
            if session.outlet is not None:
                for topic, message in changed:
                    if any(MQTT.matches(topic_filter, topic) for topic_filter in filters):
                        session.vhost.internal.count_copies(1, 0)
                        session.offer(message)
        self._wait()

    def _wait(self) -> None:
        self._agenda.at(self._agenda.now + self._interval_s * 1000, self)

    def _renew(self, counts: dict[str, int]) -> list[tuple[str, Message]]:
        """Renew the values. Return the topic and the message of each value that has changed."""
        now = int(self._agenda.now)
        seconds = (now - self._renewed_at) / 1000
        self._renewed_at = now
        values = {"version": self._version, "uptime": f"{int(now - self._began) // 1000} seconds"}
        for name, count in counts.items():
            if name.startswith("load/"):
                load = self._loads.setdefault(name, LoadAverage())
                load.take(count, seconds)
                for at, minutes in enumerate(AVERAGES):
                    values[f"{name}/{minutes}min"] = f"{load.rates[at]:.2f}"
            else:
                values[name] = str(count)
        changed: list[tuple[str, Message]] = []
        for name, value in values.items():
            if self._values.get(name) != value:
                self._values[name] = value
                topic = f"{ROOT}/broker/{name}"
                message = Message(
                    Address(EXCHANGE, swap(topic)), value.encode(), PLAIN, AT_MOST_ONCE
                )
                self._index.put(topic, message.copy(AT_MOST_ONCE, True))
                changed.append((topic, message))
        return changed


def _watches(session: Session) -> bool:
    """True if the session has a subscription to $SYS topics."""
    return any(topic_filter.startswith(ROOT) for topic_filter in session.subscriptions)
