"""A shovel: takes messages from a queue of an AMQP broker, publishes them at another broker."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from typing import Any

import msgspec
from pika.exceptions import AMQPError

from trellis.bridge import contract
from trellis.bridge.amqp_end import AmqpEnd, ChannelClosed, LinkLost, parameters_of
from trellis.bridge.contract import BridgeState, LinkCounters, LocalAmqp, Shovel
from trellis.bridge.shovel_definition import shown_uri
from trellis.bridge.shovel_message import (
    HEADER_OVERHEAD,
    MessageEditor,
    PropertyBytes,
    SourceMessage,
)


class ShovelLink:
    """A running shovel, or a link of a federated exchange.

    A message is acknowledged at the source when the destination has confirmed it. At most
    `prefetch` messages are unacknowledged.
    """

    def __init__(self, shovel: Shovel, local: LocalAmqp) -> None:
        self._shovel = shovel
        self._local = local
        self._editor = MessageEditor(shovel, local.node)
        self._counters = LinkCounters()
        self._state = contract.CONNECTING
        self._error = "not connected yet"
        self._refusal = ""
        self._task: asyncio.Task[None] | None = None
        self._source = self._target = AmqpEnd()
        #: Messages that wait for their turn, because of `rate`.
        self._held: deque[SourceMessage] = deque()
        #: Delivery tags at the source, by the number of the publication at the destination.
        self._published: dict[int, int] = {}
        self._number = 0
        #: True if the destination has returned a message of the present connection. The destination
        #: confirms the message nevertheless.
        self._returned = False
        #: Number of messages that the shovel may still accept from the source (_to_take), and that
        #: it has still to move (_to_move); None means no limit.
        self._to_take: int | None = None
        self._to_move: int | None = None
        self._finished = asyncio.Event()
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to connect."""
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Close the connections; unacknowledged messages return to their queue."""
        if self._task is not None:
            self._task.cancel()
        self._close()

    @property
    def state(self) -> BridgeState:
        """The present state of the shovel."""
        shovel = self._shovel
        return BridgeState(
            shovel.kind,
            shovel.vhost,
            shovel.name,
            f"{shown_uri(shovel.source.uris)} -> {shown_uri(shovel.target.uris)}",
            self._state,
            self._error,
            self._refusal,
            len(self._held) + len(self._published),
            self._counters,
        )

    # -- connections

    async def _run(self) -> None:
        """Connect both ends and move messages; after a lost connection, connect again.

        The URIs of each end are used in turn. Return when the shovel has moved all messages that
        `src-delete-after` asks for.
        """
        shovel = self._shovel
        for source, target in zip(
            itertools.cycle(shovel.source.uris), itertools.cycle(shovel.target.uris), strict=False
        ):
            try:
                await self._move(source, target)
            except (LinkLost, OSError, AMQPError) as error:
                self._error = str(error)
            except Exception as error:  # noqa: BLE001 - an unknown error must not end the link
                self._error = f"{type(error).__name__}: {error}"
            if self._state == contract.UP:
                self._counters.reconnects += 1
            self._close()
            if self._finished.is_set():
                self._state, self._error = contract.ENDED, ""
                return
            self._state = contract.CONNECTING
            await asyncio.sleep(shovel.reconnect_delay)

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._source.close()
        self._target.close()
        self._held.clear()
        self._published.clear()

    async def _move(self, source_uri: str, target_uri: str) -> None:
        """Connect to both brokers, and move messages until a connection is lost.

        Raises LinkLost, OSError.
        """
        shovel, local = self._shovel, self._local
        label = f"{shovel.kind} {shovel.name}"
        source, target = self._source, self._target = AmqpEnd(), AmqpEnd()
        self._number, self._returned = 0, False
        await target.open(parameters_of(target_uri, local, shovel.vhost, label))
        if shovel.target.queue:
            await target.declare_queue(
                shovel.target.queue, msgspec.json.decode(shovel.target.arguments)
            )
        target.channel.add_on_return_callback(lambda *_: self._on_return())
        await target.call(target.channel.confirm_delivery, self._on_confirm)
        given = parameters_of(source_uri, local, shovel.vhost, label)
        await source.open(given)
        self._editor.source_connected(source.cluster_name, str(given.virtual_host))
        queue = await self._prepare_source()
        if self._finished.is_set():
            return
        await source.call(source.channel.basic_qos, prefetch_count=shovel.prefetch)
        cancelled = f"the broker cancelled the consumer: was the queue '{queue}' deleted?"
        source.channel.add_on_cancel_callback(lambda _: self._source.lose(cancelled))
        await self._consume(queue)
        if shovel.kind == contract.FEDERATION:
            # Only the consumer changes the bindings: another broker with the same name may have a
            # link to this queue.
            await source.bind_exactly(queue, shovel.source.exchange, shovel.source.keys)
        self._state, self._error = contract.UP, ""
        finished = asyncio.create_task(self._finished.wait())
        try:
            await asyncio.wait(
                (source.lost, target.lost, finished), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            finished.cancel()
        for end, place in ((source, "source"), (target, "destination")):
            if end.lost.done():
                error = end.lost.result()
                if end is target and self._editor.adapts_to(error):
                    self._refusal = (
                        f"{error}; the shovel removes user_id from its messages, because its user "
                        "at the destination lacks the tag impersonator"
                    )
                raise LinkLost(f"{place}: {error}")

    async def _prepare_source(self) -> str:
        """Declare and bind the queue of the source; return its name. Raises LinkLost.

        The queue of a federation link is bound later, when the link consumes from the queue.
        """
        definition, end = self._shovel.source, self._source
        arguments = msgspec.json.decode(definition.arguments)
        if not definition.exchange:
            length = await end.declare_queue(definition.queue, arguments)
            self._limit(length)
            return definition.queue
        await end.declare_exchange(definition.exchange, definition.exchange_kind)
        if definition.queue:
            name = definition.queue
            await end.declare_queue(name, arguments)
        else:
            frame = await end.call(
                end.channel.queue_declare, "", exclusive=True, arguments=arguments
            )
            name = frame.method.queue
            for key in definition.keys:
                await end.call(end.channel.queue_bind, name, definition.exchange, key)
        self._limit(None)
        return name

    async def _consume(self, queue: str) -> None:
        """Begin to consume from the queue of the source. Raises LinkLost.

        The link of a federated exchange consumes exclusively. The queue's name has the name of this
        broker. So two brokers with one name would otherwise share the queue, and each of them would
        get only some of the messages.
        """
        source, federation = self._source, self._shovel.kind == contract.FEDERATION
        try:
            await source.call(
                source.channel.basic_consume,
                queue,
                self._on_delivery,
                exclusive=federation,
                arguments=msgspec.json.decode(self._shovel.source.consumer_arguments),
            )
        except ChannelClosed as error:
            if not federation or error.code != 403:
                raise
            raise LinkLost(
                f"source: {error}; if another broker with the name '{self._local.node}' has a link "
                "to this exchange, give each broker its own node.name"
            ) from None

    def _limit(self, length: int | None) -> None:
        """Set how many messages to take over this connection: all that the shovel must still move.

        If no message is left to move, end the shovel. The first call sets the total for all
        connections: the shovel's `delete_after`, or `length` if `delete_after` is 0. `length` is
        the number of messages in the queue; None if the source of the shovel is an exchange.
        """
        if self._to_move is None:
            wanted = self._shovel.delete_after
            self._to_move = length if wanted == 0 else wanted
        self._to_take = self._to_move
        if self._to_move == 0:
            self._finished.set()

    # -- messages

    def _on_delivery(
        self, _channel: object, method: Any, properties: PropertyBytes, body: bytes
    ) -> None:
        if self._to_take is not None:
            if self._to_take == 0:
                return  # The message returns to its queue when the connection is closed.
            self._to_take -= 1
        self._held.append(
            SourceMessage(
                method.delivery_tag, method.exchange, method.routing_key, properties.data, body
            )
        )
        self._publish_held()

    def _publish_held(self) -> None:
        """Publish the messages that wait, as fast as `rate` allows."""
        rate = self._shovel.rate
        while self._held and self._timer is None:
            now = time.monotonic()
            if rate and self._next_at > now:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self._next_at - now, self._on_timer)
                return
            self._next_at = max(now, self._next_at) + (1 / rate if rate else 0)
            self._publish(self._held.popleft())

    def _on_timer(self) -> None:
        self._timer = None
        self._publish_held()

    def _publish(self, message: SourceMessage) -> None:
        target, channel = self._shovel.target, self._target.channel
        properties = self._editor.edit(message.properties)
        if properties is None:
            self._counters.looped += 1
            self._settle(message.tag)
            return
        if len(properties) + HEADER_OVERHEAD > self._target.frame_max:
            self._refuse(
                message.tag,
                f"the properties and headers of the message have {len(properties)} bytes, but the "
                f"destination accepts frames of {self._target.frame_max} bytes at most",
            )
            return
        if target.queue:
            exchange, key = "", target.queue
        else:
            exchange = message.exchange if target.exchange is None else target.exchange
            key = message.key if target.key is None else target.key
        # A message for a queue comes back if the queue was deleted, instead of being dropped.
        mandatory = bool(target.queue)
        try:
            channel.basic_publish(exchange, key, message.body, PropertyBytes(properties), mandatory)
        except AMQPError:
            return  # The channel is closed.
        self._number += 1
        self._published[self._number] = message.tag

    def _on_return(self) -> None:
        """Connect again, because the queue of the destination does not exist any more.

        The returned message stays at its source. After the next connection, the queue is declared.
        """
        self._returned = True
        self._target.lose(f"the queue '{self._shovel.target.queue}' was deleted")

    def _on_confirm(self, frame: Any) -> None:
        if self._returned:
            return  # One of the further confirmations is for the returned message.
        method = frame.method
        if method.NAME == "Basic.Nack":
            # The message stays at its source; the next attempt is after `reconnect-delay`.
            self._target.lose("the broker refused a message (basic.nack)")
            return
        tag = method.delivery_tag
        done = [one for one in self._published if one <= tag] if method.multiple else [tag]
        for number in done:
            delivery = self._published.pop(number, None)
            if delivery is not None:
                self._counters.sent += 1
                self._settle(delivery)

    def _refuse(self, tag: int, reason: str) -> None:
        self._counters.refused += 1
        self._refusal = reason
        self._settle(tag)

    def _settle(self, tag: int) -> None:
        """Acknowledge the message with the delivery tag `tag` at the source, and count it."""
        if self._source.channel.is_open:
            self._source.channel.basic_ack(tag)
        if self._to_move is not None:
            self._to_move -= 1
            if self._to_move == 0:
                self._finished.set()
