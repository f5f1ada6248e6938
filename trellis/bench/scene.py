"""The connections, queues, subscriptions and bindings of a workload, removed after its run."""

from __future__ import annotations

import os
import resource
import time
from types import TracebackType
from typing import Final

from trellis.bench import amqp
from trellis.bench.amqp_readers import AmqpPublisher, BenchAmqpConsumer
from trellis.bench.check import Checker, Competing, CompetingCounts, Ordered, TrafficPlan
from trellis.bench.client import FRAME_MAX, AmqpClient, MqttClient
from trellis.bench.encoding import BenchEncoding, BenchNames, is_predictable, numbers_of, sizes
from trellis.bench.errors import BenchError, Unreachable, WrongAnswer
from trellis.bench.generator import Flow, Generator
from trellis.bench.line import BenchConnection, PublishFeed
from trellis.bench.mqtt_readers import MqttPublisher, MqttSubscriber
from trellis.bench.reader import BenchReader
from trellis.bench.target import BrokerTarget
from trellis.bench.workloads import ALL, COMPETING, TOPICS, Workload
from trellis.progress import ProgressLine

#: Largest number of bindings of one queue. Some brokers take long to delete a queue with many
#: bindings.
_BINDINGS_OF_A_QUEUE: Final = 1_000
#: File descriptors that the load generator needs besides the descriptors of the workload's
#: connections.
_OTHER_FILES: Final = 50
#: Seconds that deleting a queue may take.
_DELETE_TIMEOUT: Final = 120.0


class Scene:
    """A context manager that makes the queues, exchanges, bindings and connections of a workload.

    The exit of the context removes all of them. If `timed`, latencies are measured. A run fails
    after `patience` seconds without progress.
    """

    def __init__(
        self,
        workload: Workload,
        targets: dict[str, BrokerTarget],
        timed: bool,
        progress: ProgressLine,
        patience: float,
    ) -> None:
        self.workload = workload
        self.window, self.batch, ring = sizes(workload)
        self.script = TrafficPlan(workload.publishers, ring, workload.size, timed)
        self.generator: Generator | None = None
        self.publishers: list[BenchConnection] = []
        self.subscribers: list[BenchConnection] = []
        #: Product and version of the AMQP broker.
        self.server = ""
        #: Seconds that it took to make the bindings that match no message.
        self.bind_seconds = 0.0
        self._ring = ring
        self._targets = targets
        self._progress = progress
        self._patience = patience
        self._names = BenchNames(workload, os.urandom(3).hex())
        self._clients: list[AmqpClient | MqttClient] = []
        self._control: AmqpClient | None = None
        self._queues: list[str] = []
        self._exchanges: list[str] = []

    def __enter__(self) -> Scene:
        try:
            self._build()
        except BaseException:
            self._clear()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._clear()

    @property
    def to_all(self) -> bool:
        """True if each subscriber gets every message."""
        return self.workload.sharing == ALL

    @property
    def running(self) -> Generator:
        """The generator that drives the connections of this workload."""
        assert self.generator is not None
        return self.generator

    def check_queues(self) -> None:
        """Raise WrongAnswer unless all queues of the workload are empty."""
        for queue in self._queues:
            assert self._control is not None
            depth = self._control.depth(queue)
            if depth:
                raise WrongAnswer(f"queue {queue}", "messages are left in the queue", 0, depth)

    def _build(self) -> None:
        workload = self.workload
        _allow_files(workload)
        self._progress.say("connecting")
        if "amqp" in workload.protocols:
            self._control = AmqpClient(self._targets["amqp"], "control connection")
            self.server = self._control.server
            if not self._names.crossing:
                self._exchanges.append(self._names.exchange)
                kind = "headers" if workload.headers else "topic"
                self._control.ask(
                    amqp.exchange_declare(self._names.exchange, kind), amqp.EXCHANGE_DECLARE_OK
                )
        encoding = BenchEncoding(
            workload,
            self._names,
            self._ring,
            self._control.frame_max if self._control else FRAME_MAX,
        )
        checkers = self._checkers()
        if workload.consume == "mqtt":
            self._subscribe(checkers, encoding)
        else:
            self._consume(checkers, encoding)
        self._connect_publishers(encoding)
        self._bind_others()
        self._progress.say("running")
        acknowledged = workload.confirms if workload.publish == "amqp" else workload.qos > 0
        flow = Flow(self.batch, self.window, self.to_all, acknowledged)
        self.generator = Generator(
            self.publishers, self.subscribers, flow, self._progress.tick, self._patience
        )

    def _checkers(self) -> list[Checker]:
        workload = self.workload
        names = [f"subscriber {index}" for index in range(workload.subscribers)]
        if workload.sharing == COMPETING:
            pile = CompetingCounts(self.script)
            return [Competing(name, self.script, pile) for name in names]
        return [
            Ordered(name, self.script, *numbers_of(workload, index))
            for index, name in enumerate(names)
        ]

    def _subscribe(self, checkers: list[Checker], encoding: BenchEncoding) -> None:
        workload, names = self.workload, self._names
        topics, packet, known = (
            encoding.topics(),
            encoding.packet_size("mqtt", workload.qos),
            is_predictable(workload),
        )
        stream, lap = encoding.stream(0, 1) if known else (b"", 0)
        for index, checker in enumerate(checkers):
            client = MqttClient(self._targets["mqtt"], checker.where, workload.persistent)
            self._clients.append(client)
            if workload.sharing == ALL:
                client.subscribe(names.topic_filter, workload.qos)
            else:
                client.subscribe(names.topic(index), workload.qos)
                stream, lap = encoding.stream(*numbers_of(workload, index)) if known else (b"", 0)
            reader = MqttSubscriber(checker, topics, workload.qos, stream, lap, packet)
            self.subscribers.append(BenchConnection(client.sock, reader))

    def _consume(self, checkers: list[Checker], encoding: BenchEncoding) -> None:
        workload, names, routes = self.workload, self._names, encoding.routes()
        for index, checker in enumerate(checkers):
            client = AmqpClient(self._targets["amqp"], checker.where)
            self._clients.append(client)
            queue = names.queue if workload.sharing == COMPETING else f"{names.queue}-{index}"
            if queue not in self._queues:
                self._queues.append(queue)
                client.ask(
                    amqp.queue_declare(queue, auto_delete=True, durable=workload.persistent),
                    amqp.QUEUE_DECLARE_OK,
                )
                key = names.binding_key if workload.sharing != TOPICS else names.key(index)
                client.bind(
                    [(queue, key, names.wanted if workload.headers else amqp.NONE)], names.exchange
                )
            if workload.prefetch:
                client.ask(amqp.qos(workload.prefetch), amqp.QOS_OK)
            client.ask(amqp.consume(queue, not workload.acks), amqp.CONSUME_OK)
            self.subscribers.append(
                BenchConnection(client.sock, BenchAmqpConsumer(checker, routes, workload.acks))
            )

    def _connect_publishers(self, encoding: BenchEncoding) -> None:
        workload = self.workload
        for index in range(workload.publishers):
            where, lap = f"publisher {index}", encoding.lap(index)
            client, reader = self._publisher(where, index)
            self._clients.append(client)
            self.publishers.append(
                BenchConnection(
                    client.sock,
                    reader,
                    PublishFeed(lap, len(lap) // self._ring, self.script.published[index]),
                )
            )

    def _publisher(self, where: str, index: int) -> tuple[AmqpClient | MqttClient, BenchReader]:
        workload = self.workload
        if workload.publish == "mqtt":
            return MqttClient(self._targets["mqtt"], where), MqttPublisher(
                where, self.script, index, workload.qos
            )
        client = AmqpClient(self._targets["amqp"], where)
        if workload.confirms:
            client.ask(amqp.confirm_select(), amqp.SELECT_OK)
        return client, AmqpPublisher(where, self.script, index)

    def _bind_others(self) -> None:
        """Make the workload's bindings that match no message; set `bind_seconds`."""
        count, control, names = self.workload.bindings, self._control, self._names
        if not count or control is None:
            return
        queues = [
            f"{names.queue}-other-{index}" for index in range(-(-count // _BINDINGS_OF_A_QUEUE))
        ]
        for queue in queues:
            self._queues.append(queue)
            control.ask(amqp.queue_declare(queue), amqp.QUEUE_DECLARE_OK)
        began = time.perf_counter()
        for at, queue in zip(range(0, count, _BINDINGS_OF_A_QUEUE), queues, strict=True):
            numbers = range(at, min(at + _BINDINGS_OF_A_QUEUE, count))
            control.bind(
                [
                    (queue, "", names.other_wanted(number))
                    if self.workload.headers
                    else (queue, names.other_key(number), amqp.NONE)
                    for number in numbers
                ],
                names.exchange,
            )
            self._progress.say(f"binding {numbers.stop:,} of {count:,}")
        self.bind_seconds = time.perf_counter() - began

    def _clear(self) -> None:
        """Close all connections; then delete the declared queues and exchanges.

        Deletions use a new connection, because the old connections may be in the middle of a
        message.
        """
        self._progress.say("cleaning up")
        if self.generator is not None:
            self.generator.close()
        for client in self._clients:
            client.disconnect()
        if self._control is not None:
            self._control.disconnect()
        if self._queues or self._exchanges:
            self._delete([amqp.queue_delete(name) for name in self._queues], amqp.QUEUE_DELETE_OK)
            self._delete(
                [amqp.exchange_delete(name) for name in self._exchanges], amqp.EXCHANGE_DELETE_OK
            )

    def _delete(self, requests: list[bytes], answer: amqp.Method) -> None:
        """Send requests that delete objects, and wait for `answer` to each.

        Errors are ignored. After an error the next request uses a new connection: some brokers
        close the channel if an auto-delete queue is deleted already.
        """
        control: AmqpClient | None = None
        for request in requests:
            try:
                control = control or AmqpClient(self._targets["amqp"], "control connection")
                control.ask(request, answer, _DELETE_TIMEOUT)
            except Unreachable:
                return
            except BenchError:
                if control is not None:
                    control.close()
                    control = None
        if control is not None:
            control.disconnect()


def _allow_files(workload: Workload) -> None:
    """Raise the limit of open files to the number that this workload needs.

    Raises BenchError if the system does not permit this number.
    """
    wanted = workload.publishers + workload.subscribers + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise BenchError(
            f"{workload.name} needs {wanted} open files, but the limit is {hard}; "
            "raise it with ulimit -n"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
