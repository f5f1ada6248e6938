"""Answers basic.get with the first message that fits into the client's frames.

A content header is one frame. A message whose properties do not fit into a frame of this client
stays in the queue, for clients with a larger frame_max, and the client gets the next message.
"""

from __future__ import annotations

from typing import Final

import pamqp.commands as spec
from mypy_extensions import i64

from broker.agenda import BulkTask
from broker.queues.consumer import Delivery
from broker.queues.queue import Queue
from broker.queues.statistics import FETCHED, FETCHED_AUTO, REDELIVERED
from protocols.amqp.channel.connection_interface import ConnectionInterface
from protocols.amqp.channel.consumer import AmqpConsumer, ConsumerOwner
from protocols.amqp.codec.contents import Frames, content_for
from protocols.amqp.codec.frames import got
from protocols.amqp.errors import AmqpError
from protocols.end_reasons import INTERNAL_ERROR, INTERNAL_ERROR_TEXT
from protocols.window import Window

#: A basic.get fails after passing over this number of messages whose properties do not fit into a
#: frame of the client.
PASSED_MAX: Final = 100
#: Class and method id of basic.get.
_GET: Final[i64] = 60 << 16 | 70


class Fetch(BulkTask):
    """The handling of one basic.get, which may have to wait.

    The basic.get waits, and its connection is stalled, while the queue discards expired messages,
    requeues very many deliveries of another client, or waits until its delivery mark is durable
    (broker/queues/delivery_window.py).

    `consumer` represents the client, and is not subscribed to the queue. `owner` is the
    ChannelReceiver of the channel. If the channel closes while the basic.get waits, all messages
    stay in the queue.
    """

    def __init__(
        self,
        connection: ConnectionInterface,
        owner: ConsumerOwner,
        consumer: AmqpConsumer,
        queue: Queue,
        unacked: Window,
        frames: Frames,
        number: i64,
    ) -> None:
        super().__init__(connection.agenda)
        self._connection = connection
        self._owner = owner
        self._consumer = consumer
        self._queue = queue
        self._unacked = unacked
        self._frames = frames
        #: Number of the channel on which the basic.get arrived.
        self._number: i64 = number
        self._answered = False
        #: True if the queue will run this task when its delivery mark is durable.
        self._waits_for_mark = False

    def start(self) -> None:
        """Reply to the basic.get at once, or stall the connection until the reply can be sent.

        Raises AmqpError if too many messages do not fit into the client's frames.
        """
        if not self._answer():
            self._connection.stall()
            if not self._waits_for_mark:
                self.schedule()

    def has_work(self) -> bool:
        return not (self._answered or self._waits_for_mark or self._connection.finished)

    def on_failure(self) -> None:
        self._answered = True
        self._connection.close(INTERNAL_ERROR, INTERNAL_ERROR_TEXT)

    def do_slice(self) -> None:
        connection = self._connection
        self._waits_for_mark = False
        if connection.finished:
            return
        try:
            if not self._owner.closed and not self._answer():
                return
        except AmqpError as error:
            connection.close_channel(self._number, error, _GET)
        self._answered = True
        connection.resume_input()

    def _answer(self) -> bool:
        """Send get-ok with a content, or get-empty; return False if the reply must wait.

        Raises AmqpError if too many messages do not fit into the client's frames.
        """
        queue = self._queue
        while queue.replacement is not None:
            queue = self._queue = queue.replacement
        passed: list[Delivery] = []
        content = b""
        delivery = queue.take(self._consumer)
        while delivery is not None:
            content = content_for(delivery.message, self._frames)
            if content:
                break
            passed.append(delivery)
            if len(passed) == PASSED_MAX:
                break
            delivery = queue.take(self._consumer)
        waits = delivery is None and (queue.head_expired or queue.held or queue.waits_for_mark)
        for too_large in reversed(passed):
            queue.put_back(too_large)
        self._connection.extra_cost += len(passed)
        if waits:
            if queue.waits_for_mark and not queue.held:
                self._waits_for_mark = True
                queue.wait_for_mark(self)
            return False
        if delivery is None:
            self._connection.front.tally.get_empty += 1
            self._connection.send(self._number, spec.Basic.GetEmpty())
        elif content:
            self._send(delivery, content)
        else:
            raise AmqpError(
                406,
                f"the first {PASSED_MAX} messages of queue '{queue.name}' in vhost '{queue.vhost}' "
                f"have properties that do not fit into frame_max {self._frames.frame_max}: "
                "connect with a larger frame_max",
            )
        self._connection.touch()
        return True

    def _send(self, delivery: Delivery, content: bytes) -> None:
        """Send get-ok with the content of a message.

        If the client must acknowledge the message, store the delivery under its delivery tag.
        """
        queue, tally = self._queue, self._connection.front.tally
        number: i64
        if self._consumer.no_ack:
            tally.get_auto += 1
            self._owner.fetched_auto += 1
            queue.note(FETCHED_AUTO)
            number = self._unacked.skip()
            queue.auto_acknowledge(delivery.message)
        else:
            tally.get_manual += 1
            self._owner.fetched += 1
            queue.note(FETCHED)
            queue.unacked += 1
            self._consumer.pool = None
            number = self._unacked.add(delivery)
        if delivery.attempts > 0:
            tally.redelivered += 1
            self._owner.redelivered += 1
            queue.note(REDELIVERED)
        route = delivery.message.address
        if route.traced:
            self._consumer.report(delivery.message, delivery.attempts)
        address = route.short_strings
        self._connection.out.write(
            got(self._number, number, delivery.attempts > 0, address, queue.depth)
        )
        self._connection.write_content(content)
