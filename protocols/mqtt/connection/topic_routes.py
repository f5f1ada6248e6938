"""Finds the route of a topic that is not in the route cache."""

from __future__ import annotations

from broker.routing.plan_search import SearchSlot
from broker.routing.publish_context import PublishContext
from broker.routing.route import Route
from protocols.mqtt.connection.connection import MqttConnection
from protocols.mqtt.connection.refused_publications import TOPIC_MAX


class TopicRoutes:
    """The part of a packet handler that finds new routes, and logs topics with too many levels."""

    def __init__(self, connection: MqttConnection) -> None:
        self._connection = connection
        self._topics = connection.service.topics

    def find(self, context: PublishContext, topic: bytes, slot: SearchSlot) -> Route | None:
        """Return a new route for a topic; None if the search for the route's plan pauses.

        `slot` keeps the unfinished searches of the publication. If this method returns a route, the
        caller must call `MqttConnection.end_search`: on the fast path at once, on the slow path
        after `MqttConnection.plan_of`.
        """
        topics = self._topics
        before = topics.too_deep
        route = topics.resolve(context, topic, slot)
        if topics.too_deep > before:
            self._log_depth(topic)
        return route

    def _log_depth(self, topic: bytes) -> None:
        """Log that a publication was refused because its topic has too many levels."""
        connection = self._connection
        shown = topic[:TOPIC_MAX].decode(errors="replace")
        connection.service.log_refused_publication(
            "topic_refused",
            connection,
            shown,
            f"the topic has more than mqtt.max_levels = {self._topics.max_levels} levels: raise "
            "the setting or shorten the topic",
            {"client_id": connection.client_id, "topic": shown},
        )
