"""AMQP clients: publishers with confirms and with transactions, consumers, movers, operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pamqp.body
import pamqp.commands as spec
import pamqp.frame

from protocols.amqp.connection.handshake import GREETING
from tests.clients import marshal, publication
from tests.store.simulation.clients import Client, named

if TYPE_CHECKING:
    from tests.store.simulation.schedule import Simulation

LOGIN = (
    GREETING
    + marshal(0, spec.Connection.StartOk(response="\0guest\0guest"))
    + marshal(0, spec.Connection.TuneOk(2047, 131_072, 0))
    + marshal(0, spec.Connection.Open())
    + marshal(1, spec.Channel.Open())
)


class Amqp(Client):
    """An AMQP client on channel 1. After the login, it sends the bytes `set_up`."""

    set_up = b""

    def connect(self) -> None:
        self.connection = self.world.life.raw_amqp()
        self._rest = b""
        self._frame: Any = None
        self.tell(LOGIN + self.set_up)

    def hear(self, data: bytes) -> None:
        data = self._rest + data
        while data:
            size, _, frame = pamqp.frame.unmarshal(data)
            data = data[size:]
            if isinstance(frame, pamqp.body.ContentBody):
                self.got(self._frame, frame.value)
            elif isinstance(frame, spec.Connection.Close | spec.Channel.Close):
                self.refused(frame)
                return
            else:
                if isinstance(frame, spec.Basic.Deliver | spec.Basic.GetOk):
                    self._frame = frame
                self.on_method(frame)

    def on_method(self, frame: Any) -> None:
        """Handle a method frame from the broker."""

    def got(self, frame: Any, body: bytes) -> None:
        """Handle a delivered or fetched message."""

    def refused(self, frame: Any) -> None:
        """Fail the simulation, because the broker closed the channel or the connection."""
        raise AssertionError(f"{self.name} was told {frame.reply_code} {frame.reply_text}")


class Publisher(Amqp):
    """A publisher with confirms."""

    set_up = marshal(1, spec.Confirm.Select())

    def connect(self) -> None:
        super().connect()
        self._published = 0
        self._waiting: dict[int, str] = {}

    def act(self) -> None:
        for _ in range(self.random.choice((1, 1, 2, 5))):
            exchange, key, targets = self.world.place(self.random.choice(self.world.places))
            message = self.world.new_message(self.name)
            self.world.ledger.sent(message, targets)
            self._published += 1
            self._waiting[self._published] = message
            properties: dict[str, Any] = (
                {"expiration": "700"} if key == "brief" and self.random.random() < 0.3 else {}
            )
            if exchange == "fan":
                properties["priority"] = self.random.randrange(3)
            self.tell(
                publication(exchange, key, self.world.body(message), delivery_mode=2, **properties)
            )

    def on_method(self, frame: Any) -> None:
        if isinstance(frame, spec.Basic.Ack | spec.Basic.Nack):
            numbers = (
                [one for one in self._waiting if one <= frame.delivery_tag]
                if frame.multiple
                else [frame.delivery_tag]
            )
            for number in numbers:
                message = self._waiting.pop(number)
                if isinstance(frame, spec.Basic.Ack):
                    self.world.ledger.confirmed(message)
                else:
                    self.world.ledger.refused(message)

    def finish(self) -> bool:
        return super().finish() and not self._waiting


class TxPublisher(Amqp):
    """A publisher that publishes to several queues in one transaction."""

    set_up = marshal(1, spec.Tx.Select())

    def connect(self) -> None:
        super().connect()
        #: Message of the open transaction -> families (see ledger.py) to which it was routed when
        #: it was published.
        self._pending: dict[str, dict[str, int]] = {}
        #: Message of the transaction that is being committed -> its families.
        self._committing: dict[str, dict[str, int]] = {}

    def act(self) -> None:
        if self._committing:
            return
        if len(self._pending) < self.random.randrange(5):
            exchange, key, targets = self.world.place(self.random.choice(("plain", "fan", "topic")))
            message = self.world.new_message(self.name)
            self._pending[message] = targets
            self.tell(publication(exchange, key, self.world.body(message), delivery_mode=2))
        elif self._pending and self.random.random() < 0.8:
            self._committing, self._pending = self._pending, {}
            self.world.ledger.transaction(self._committing)
            self.tell(marshal(1, spec.Tx.Commit()))
        elif self._pending:
            self._pending = {}
            self.tell(marshal(1, spec.Tx.Rollback()))

    def on_method(self, frame: Any) -> None:
        if isinstance(frame, spec.Tx.CommitOk):
            for message in self._committing:
                self.world.ledger.confirmed(message)
            self._committing = {}

    def finish(self) -> bool:
        return super().finish() and not self._committing


class Worker(Amqp):
    """A consumer that acknowledges, rejects and requeues. In the end it acknowledges everything."""

    def __init__(self, world: Simulation, name: str, queue: str) -> None:
        super().__init__(world, name)
        self.queue = queue
        self._held: dict[int, str] = {}

    def connect(self) -> None:
        self._held.clear()
        self.set_up = marshal(
            1, spec.Basic.Qos(prefetch_count=self.random.choice((0, 1, 3, 10)))
        ) + marshal(1, spec.Basic.Consume(queue=self.queue, consumer_tag="t"))
        super().connect()

    def cut_off(self) -> None:
        self._held.clear()

    def got(self, frame: Any, body: bytes) -> None:
        message = named(body)
        self.world.ledger.delivered(self.queue, message, frame.redelivered)
        self._held[frame.delivery_tag] = message

    def act(self) -> None:
        held = list(self._held)
        if not held:
            return
        tag, choice = self.random.choice(held), self.random.random()
        if choice < 0.55:
            self._ack(tag)
        elif choice < 0.7:
            for one in held[: held.index(tag) + 1]:
                self._ack(one)
        elif choice < 0.9:
            del self._held[tag]
            self.tell(marshal(1, spec.Basic.Nack(tag, requeue=True)))
        elif f"{self.queue}.dead" in self.world.ledger.holding(self.queue).queues:
            del self._held[tag]
            self.tell(marshal(1, spec.Basic.Reject(tag, requeue=False)))

    def _ack(self, tag: int) -> None:
        message = self._held.pop(tag)
        self.tell(marshal(1, spec.Basic.Ack(tag)))
        self.world.ledger.settle(self.queue, message, self.world.life.position)

    def finish(self) -> bool:
        if not super().finish() or not self._held:
            return self.ready and not self.pipe
        for tag in list(self._held):
            self._ack(tag)
        return False


class Mover(Amqp):
    """A client that moves messages between queues.

    For each message, one transaction acknowledges it in one queue and publishes it to another.
    """

    set_up = (
        marshal(1, spec.Basic.Qos(prefetch_count=3))
        + marshal(1, spec.Tx.Select())
        + marshal(1, spec.Basic.Consume(queue="plain", consumer_tag="t"))
    )

    def connect(self) -> None:
        super().connect()
        self._held: dict[int, bytes] = {}
        self._committing = False

    def got(self, frame: Any, body: bytes) -> None:
        self.world.ledger.delivered("plain", named(body), frame.redelivered)
        self._held[frame.delivery_tag] = body

    def on_method(self, frame: Any) -> None:
        if isinstance(frame, spec.Tx.CommitOk):
            self._committing = False

    def act(self) -> None:
        if self._committing or not self._held:
            return
        methods = b""
        for tag, body in list(self._held.items())[: self.random.randrange(1, 4)]:
            del self._held[tag]
            if self.random.random() < 0.8:
                methods += publication("", "moved", body, delivery_mode=2) + marshal(
                    1, spec.Basic.Ack(tag)
                )
            else:
                methods += marshal(1, spec.Basic.Nack(tag, requeue=self.random.random() < 0.5))
        self._committing = True
        self.tell(methods + marshal(1, spec.Tx.Commit()))

    def finish(self) -> bool:
        if not super().finish():
            return False
        if self._held and not self._committing:
            self.vanish()
        return not self._committing


class Operator(Amqp):
    """An operator that declares, binds and deletes, one request after the other."""

    def connect(self) -> None:
        super().connect()
        self._on_confirm: Callable[[], None] | None = None

    def ask(self, thing: str, method: Any, change: Callable[[], None]) -> None:
        """Send a request about the object `thing`, and apply `change` to the modelled definitions.

        When the broker confirms the request, the model counts the change as durable.
        """
        self.world.tell(f"{self.name}: {type(method).__qualname__} {thing}")
        self.tell(marshal(1, method))
        self._on_confirm = self.world.definitions.change(thing, change)

    def on_method(self, frame: Any) -> None:
        if (
            type(frame).__name__ in ("DeclareOk", "DeleteOk", "BindOk", "UnbindOk")
            and self._on_confirm is not None
        ):
            self._on_confirm()
            self._on_confirm = None

    def act(self) -> None:
        if self._on_confirm is None:
            self.world.definitions.something(self)

    def finish(self) -> bool:
        return super().finish() and self._on_confirm is None
