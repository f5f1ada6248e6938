"""An MQTT bridge: connections to two brokers, and the copying of messages in each direction."""

from __future__ import annotations

import asyncio

from paho.mqtt.client import MQTTMessage

from trellis.bridge import contract
from trellis.bridge.contract import BridgeState, LinkCounters, MqttBridge
from trellis.bridge.echoes import Echoes
from trellis.bridge.forwarding import Forwarding
from trellis.bridge.mqtt_end import Handler, MqttEnd
from trellis.bridge.topic_map import TopicMap


class EndHandler(Handler):
    """The handler of the events of one connection.

    The connection is the source of the direction `away`, and the destination of the direction
    `back`.
    """

    def __init__(self, away: Forwarding, back: Forwarding) -> None:
        self._away = away
        self._back = back

    def on_up(self, present: bool) -> None:
        self._away.source_up(present)
        self._back.destination_up(present)

    def on_down(self) -> None:
        self._back.destination_down()

    def on_replaced(self) -> None:
        self._back.destination_replaced()

    def on_message(self, message: MQTTMessage) -> None:
        self._away.forward(message)

    def on_settled(self, identifier: int, refusal: str, code: int) -> None:
        self._back.settled(identifier, refusal, code)


class MqttLink:
    """A running bridge between the local broker and a remote MQTT broker."""

    def __init__(self, bridge: MqttBridge) -> None:
        self._bridge = bridge
        outward, inward = TopicMap(bridge.topics, True), TopicMap(bridge.topics, False)
        self._local = MqttEnd(bridge, bridge.local, outward.filters)
        self._remote = MqttEnd(bridge, bridge.remote, inward.filters)
        mark, hops = bridge.remote.client_id, bridge.max_hops
        self._echoes = echoes = Echoes(inward)
        longest = bridge.reconnect_max
        self._outward = Forwarding(self._local, self._remote, outward, mark, hops, echoes, longest)
        self._inward = Forwarding(self._remote, self._local, inward, mark, hops, echoes, longest)
        self._local.handler = EndHandler(self._outward, self._inward)
        self._remote.handler = EndHandler(self._inward, self._outward)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to connect to both brokers."""
        self._tasks = [asyncio.create_task(end.run()) for end in (self._local, self._remote)]

    def stop(self) -> None:
        """Close the connections; both brokers keep the sessions."""
        for task, end in zip(self._tasks, (self._local, self._remote), strict=True):
            task.cancel()
            end.stop()
        for direction in (self._outward, self._inward):
            direction.stop()

    @property
    def state(self) -> BridgeState:
        """The present state of the bridge."""
        bridge, local, remote = self._bridge, self._local, self._remote
        outward, inward = self._outward, self._inward
        errors = [
            ("this broker", local.error or inward.problem),
            ("the remote broker", remote.error or outward.problem),
        ]
        return BridgeState(
            contract.MQTT,
            "",
            bridge.name,
            bridge.remote.url,
            contract.UP if local.up and remote.up else contract.CONNECTING,
            "; ".join(f"{place}: {error}" for place, error in errors if error),
            outward.refusal or inward.refusal,
            outward.in_flight + inward.in_flight,
            LinkCounters(
                sent=outward.copied,
                received=inward.copied,
                refused=outward.refused + inward.refused,
                dropped=outward.dropped + inward.dropped,
                looped=outward.looped + inward.looped,
                reconnects=local.lost + remote.lost,
            ),
            f"MQTT {remote.version}",
            len(self._echoes),
        )
