"""The connection: packets out of chunks, and what each means to the session and the core."""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be
from mypy_extensions import i64

from broker.access import Credentials, Verdict
from broker.errors import BrokerError
from broker.gate import Gate
from broker.message import ALWAYS, AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, PERSISTENCE, PLAIN, Address, Message
from broker.route import DENIED, NOBODY, TOO_LARGE, Relay, Route
from broker.store.contract import Ticket
from broker.vhost import VirtualHost
from matching.grammar import swap
from protocols.connection import BUDGET, COLD, HELD_MAX, Connection, Peer
from protocols.mqtt.answers import Answers
from protocols.mqtt.packets import (
    ACCEPTED,
    BAD_CREDENTIALS,
    CONNECT,
    DISCONNECT,
    IDENTIFIER_REJECTED,
    NOT_AUTHORISED,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBSCRIBE,
    UNACCEPTABLE_VERSION,
    UNAVAILABLE,
    UNSUBSCRIBE,
    MalformedPacket,
    Reader,
    connack,
)
from protocols.mqtt.service import MqttService
from protocols.mqtt.session import Session
from protocols.mqtt.subscribing import subscribe, unsubscribe
from protocols.mqtt.topics import EXCHANGE, checked

_PUBLISH_0: Final[i64] = PUBLISH << 4
_PUBLISH_1: Final[i64] = PUBLISH << 4 | AT_LEAST_ONCE << 1
_PUBACK: Final[i64] = PUBACK << 4


class MqttConnection(Connection):
    """One MQTT client."""

    def __init__(self, front: MqttService, peer: Peer) -> None:
        super().__init__(front, peer)
        self.mqtt = front
        self.gate: Gate | None = None
        self.session: Session | None = None
        self.will: Message | None = None
        self.user = ""
        self.client_id = ""
        self.keep_alive: i64 = 0
        self.packet_max: i64 = HELD_MAX
        self.deadline = self.agenda.now + front.options.handshake_ms
        self._vhost: VirtualHost = front.broker.vhosts["/"]
        self._answers = Answers(self)

    # -- packets

    def consume(self, data: bytes) -> i64:
        try:
            return self._parse(data)
        except MalformedPacket as error:
            self.end(error.reason)
            return len(data)

    def _parse(self, data: bytes) -> i64:
        """Handle every complete packet; returns how many octets they took. Hot path.

        Adjacent QoS 0 packets for the same listeners are a run, relayed as one slice.
        """
        size: i64 = len(data)
        position: i64 = 0
        budget: i64 = BUDGET
        gate = self.gate
        session = self.session
        run = NOBODY
        run_start: i64 = 0
        run_count: i64 = 0
        while size - position >= 2 and budget > 0:
            first: i64 = data[position]
            length: i64 = data[position + 1]
            start: i64 = position + 2
            if length >= 128:
                length &= 127
                shift: i64 = 7
                octet: i64 = 128
                while octet >= 128 and start < size:
                    octet = data[start]
                    start += 1
                    length |= (octet & 127) << shift
                    shift += 7
                    if shift > 21 and octet >= 128:
                        octet = 0
                        length = -1
                if octet >= 128:
                    break
                if length < 0 or octet == 0:
                    self._flush(run_count, run, data, run_start, position)
                    raise MalformedPacket("remaining length")
            if length > self.packet_max:
                self._flush(run_count, run, data, run_start, position)
                self._too_large(first)
            end: i64 = start + length
            if end > size:
                if gate is None and first != CONNECT << 4:
                    raise MalformedPacket("expected CONNECT")  # We need not wait for the rest of something else.
                self.need = end - position
                break
            if gate is not None and first == _PUBLISH_0 and length >= 2:
                mark: i64 = start + 2 + (i64(read_i16_be(data, start)) & 0xFFFF)
                if mark > end:
                    self._flush(run_count, run, data, run_start, position)
                    raise MalformedPacket("topic name")
                topic = data[start + 2:mark]
                route = gate.routes.get(topic)
                if route is None:
                    self._flush(run_count, run, data, run_start, position)
                    run_count = 0
                    route = self.mqtt.topics.resolve(gate, topic)
                gate.received += 1
                plan = route.plan
                if plan.attention & ALWAYS or plan.queues:
                    if run_count > 0:
                        run.send(data[run_start:position], run_count)
                        run_count = 0
                    self._publish(gate, route, Message(route, data[mark:end], PLAIN, AT_MOST_ONCE), None)
                else:
                    route.count += 1
                    if plan.relay is not run:
                        if run_count > 0:
                            run.send(data[run_start:position], run_count)
                            run_count = 0
                        run = plan.relay
                        run_start = position
                    elif run_count == 0:
                        run_start = position
                    run_count += 1
                budget -= plan.weight
            else:
                if run_count > 0:
                    run.send(data[run_start:position], run_count)
                    run_count = 0
                if gate is not None and first == _PUBLISH_1 and length >= 4:
                    budget -= self._on_publish_1(gate, data, start, end)
                elif session is not None and first == _PUBACK and length == 2 \
                        and session.puback(i64(read_i16_be(data, start)) & 0xFFFF):
                    budget -= 1
                else:
                    budget -= self._on_packet(first, data[start:end])
                    gate = self.gate
                    session = self.session
                    if self.finished:
                        return size
                    if self.stalled:
                        return end
            position = end
        if run_count > 0:
            run.send(data[run_start:position], run_count)
        self.behind = budget <= 0
        return position

    def _flush(self, count: i64, run: Relay, data: bytes, start: i64, end: i64) -> None:
        """What came before something wrong, or new, goes out first."""
        if count > 0:
            run.send(data[start:end], count)

    def _too_large(self, first: i64) -> None:
        """A packet above the limit. Raises MalformedPacket; a publication counts."""
        if self.gate is not None and first >> 4 == PUBLISH:
            self.gate.received += 1
            self.gate.count_fate(TOO_LARGE)
        raise MalformedPacket("packet too large", "too_large")

    def _on_publish_1(self, gate: Gate, data: bytes, start: i64, end: i64) -> i64:
        """A QoS 1 publication; returns its weight. Hot path."""
        mark: i64 = start + 2 + (i64(read_i16_be(data, start)) & 0xFFFF)
        if mark + 2 > end:
            raise MalformedPacket("topic name")
        topic = data[start + 2:mark]
        packet_id: i64 = i64(read_i16_be(data, mark)) & 0xFFFF
        if packet_id == 0:
            raise MalformedPacket("packet identifier 0")  # [MQTT-2.3.1-1]
        route = gate.routes.get(topic)
        if route is None:
            route = self.mqtt.topics.resolve(gate, topic)
        gate.received += 1
        message = Message(route, data[mark + 2:end], PLAIN, AT_LEAST_ONCE)
        plan = route.plan
        ticket: Ticket | None = None
        if plan.attention & (ALWAYS | PERSISTENCE) or plan.kept_relay is not NOBODY:
            ticket = Ticket(self._answers)
            self.persists = True
            self._publish(gate, route, message, ticket)
        else:
            for queue in plan.kept:
                queue.put(message)
            route.count += 1
        self._answers.give(_PUBACK, packet_id, ticket)
        return plan.weight

    def _publish(self, gate: Gate, route: Route, message: Message, ticket: Ticket | None) -> None:
        """Publish with care; what the identity may not publish is dropped and counted [MQTT-3.3.5-2]."""
        try:
            self._vhost.publish(gate, route, message, ticket)
        except BrokerError:
            return
        if self._vhost.alarmed:
            self.block()

    # -- packets that come rarely

    def _on_packet(self, first: i64, body: bytes) -> i64:
        """Returns what it costs of the budget."""
        kind = first >> 4
        reader = Reader(body)
        session = self.session
        gate = self.gate
        if session is None or gate is None:
            if first != CONNECT << 4:
                raise MalformedPacket("expected CONNECT")  # [MQTT-3.1.0-1]
            self._on_connect(reader)
        elif kind == PUBLISH:
            return COLD + self._on_publish(session, gate, first, reader)
        elif first == PUBACK << 4:
            reader.packet_id()  # Of nothing that is in flight.
            reader.end()
        elif first == PUBREC << 4:
            packet_id = reader.packet_id()
            reader.end()
            ticket = Ticket(self._answers)
            if session.release(packet_id, ticket):
                self._answers.give(PUBREL << 4 | 2, packet_id, ticket)
        elif first == PUBREL << 4 | 2:
            packet_id = reader.packet_id()
            reader.end()
            ticket = Ticket(self._answers)
            session.let_go(packet_id, ticket)
            self._answers.give(PUBCOMP << 4, packet_id, ticket)
        elif first == PUBCOMP << 4:
            packet_id = reader.packet_id()
            reader.end()
            session.complete(packet_id)
        elif first == SUBSCRIBE << 4 | 2:
            return COLD * subscribe(self, session, gate.identity, self.mqtt.topics, reader)
        elif first == UNSUBSCRIBE << 4 | 2:
            return COLD * unsubscribe(self, session, self.mqtt.topics, reader)
        elif first == PINGREQ << 4:
            reader.end()
            self.out.write(PINGRESP)
        elif first == DISCONNECT << 4:
            reader.end()
            self.will = None  # [MQTT-3.14.4-3]
            self.end("client")
        else:
            raise MalformedPacket("packet type or flags")  # [MQTT-2.2.2-2], [MQTT-3.1.0-2]
        return COLD

    def _on_connect(self, reader: Reader) -> None:
        protocol, level = reader.binary(), reader.byte()
        if protocol != b"MQTT" or level != 4:
            if protocol not in (b"MQTT", b"MQIsdp"):
                raise MalformedPacket("protocol name")  # [MQTT-3.1.2-1]
            self._turn_away(UNACCEPTABLE_VERSION, "unacceptable_version")  # [MQTT-3.1.2-2]
            return
        flags, self.keep_alive = reader.byte(), reader.short()
        quality, has_will, has_user, has_password = flags >> 3 & 3, flags & 4, flags & 128, flags & 64
        # [MQTT-3.1.2-3], [MQTT-3.1.2-14], [MQTT-3.1.2-11], [MQTT-3.1.2-22]
        if flags & 1 or quality == 3 or not has_will and flags & 0x38 or has_password and not has_user:
            raise MalformedPacket("connect flags")
        client_id, clean = reader.text(), bool(flags & 2)
        will: Message | None = None
        if has_will:
            address = Address(EXCHANGE, swap(checked(reader.text())))
            will = Message(address, reader.binary(), PLAIN, quality).copy(quality, bool(flags & 32))
        user = reader.text() if has_user else None
        password = reader.binary() if has_password else b""
        reader.end()
        if not client_id and not clean:
            self._turn_away(IDENTIFIER_REJECTED, "identifier_rejected")  # [MQTT-3.1.3-8]
            return
        login = self.mqtt.credentials(user, password, client_id, self.peer)
        self.user = login.user or ""
        self.stall()
        self.mqtt.broker.authenticator.authenticate(login, lambda verdict: self._judge(verdict, login, client_id, clean, will))

    def _turn_away(self, code: int, reason: str) -> None:
        self.out.write(connack(False, code))
        self.end(reason)

    def _judge(self, verdict: Verdict, login: Credentials, client_id: str, clean: bool, will: Message | None) -> None:
        """The verdict on the credentials came."""
        if self.finished:
            return
        self.stalled = False
        vhost = self.mqtt.broker.vhosts.get(login.vhost)
        identity = None if verdict.identity is None else verdict.identity.within(login.vhost)
        if identity is None or vhost is None:
            self.mqtt.count_login("busy" if verdict.busy else "refused")
            self._turn_away(UNAVAILABLE if verdict.busy else BAD_CREDENTIALS if login.user is not None else NOT_AUTHORISED, "login_refused")
            self.touch()
            return
        if self.mqtt.broker.full(identity.name, vhost):
            self._turn_away(UNAVAILABLE, "too_many_connections")
            self.touch()
            return
        sessions = self.mqtt.sessions
        if sessions.full and sessions.find(vhost, client_id) is None:
            self._turn_away(UNAVAILABLE, "too_many_sessions")
            self.touch()
            return
        self.mqtt.count_login("accepted")
        self.admitted = True
        self._vhost = vhost
        self.packet_max = self.mqtt.options.max_packet
        self.gate = vhost.gates.enter(identity, self.mqtt.name)
        self.will = will
        self._take_over(client_id or f"auto-{self.mqtt.broker.new_id()}", clean)
        if not self.stalled:
            self.go_on()

    def _take_over(self, client_id: str, clean: bool) -> None:
        """Find or make the session; an older connection of the client ends [MQTT-3.1.4-2]."""
        sessions = self.mqtt.sessions
        ticket = self.ticket()
        session = sessions.find(self._vhost, client_id)
        if session is not None:
            other = session.outlet
            if isinstance(other, MqttConnection):
                other.end("taken_over")
                other.touch()
            session = sessions.find(self._vhost, client_id)
        if session is not None and clean:
            sessions.end(session, ticket)
            session = None
        present = session is not None
        if session is None:
            session = sessions.make(self._vhost, client_id, not clean, ticket)
        self.client_id = client_id
        self.session = session
        self.deadline = self.agenda.now + self.keep_alive * 1500 if self.keep_alive else 0
        self.answer_when_settled(ticket, connack(present, ACCEPTED))
        sessions.enter(session, self)

    def _on_publish(self, session: Session, gate: Gate, first: i64, reader: Reader) -> i64:
        """PUBLISH with RETAIN, DUP or QoS 2; returns its weight."""
        assurance = first >> 1 & 3
        if assurance == 3 or assurance == AT_MOST_ONCE and first & 8:
            raise MalformedPacket("QoS or DUP")  # [MQTT-3.3.1-4], [MQTT-3.3.1-2]
        topic = reader.binary()
        packet_id: i64 = reader.packet_id() if assurance else 0
        if assurance == EXACTLY_ONCE and packet_id in session.received:
            known = session.received[packet_id]
            if known is not None:
                known.waiter = self._answers  # It came over an earlier connection, perhaps.
            self._answers.give(PUBREC << 4, packet_id, known)
            return 0
        ticket = Ticket(self._answers)
        self.persists = True
        route = gate.routes.get(topic) or self.mqtt.topics.resolve(gate, topic)
        if route.plan.stale:
            gate.renew(route)
        message = Message(route, reader.rest(), PLAIN, assurance)
        gate.received += 1
        store = self._vhost.store
        store.begin()  # The message and its identifier are durable together, or it would come twice, or never.
        try:
            if assurance == EXACTLY_ONCE:
                session.hold(packet_id, ticket)
            if first & 1 and route.plan.refusal is None:
                self._vhost.retain(message, ticket)
            self._publish(gate, route, message, ticket)
        finally:
            store.commit()
        if assurance == AT_LEAST_ONCE:
            self._answers.give(_PUBACK, packet_id, ticket)
        elif assurance == EXACTLY_ONCE:
            if ticket.outstanding == 0:
                session.received[packet_id] = None
            self._answers.give(PUBREC << 4, packet_id, ticket)
        return route.plan.weight

    # -- time, and the end

    def advance(self, now: int) -> None:
        """One and a half keep-alive intervals of silence, or no CONNECT in time [MQTT-3.1.2-24]."""
        limit: i64 = self.keep_alive * 1500
        if self.session is None:
            self.end("handshake_timeout")
            self.touch()
        elif self.stalled:
            self.deadline = now + limit  # It is we who do not listen.
        elif now - self.heard_at >= limit:
            self.end("keep_alive_timeout")
            self.touch()
        else:
            self.deadline = self.heard_at + limit

    def shut_down(self) -> None:
        """A clean stop publishes no will of a session that persists."""
        if self.session is not None and self.session.persistent:
            self.will = None
        self.end("shutdown")
        self.touch()

    def released(self) -> None:
        """The will goes out unless DISCONNECT took it back [MQTT-3.1.2-8]; the session stays or ends."""
        session, self.session = self.session, None
        gate, self.gate = self.gate, None
        will, self.will = self.will, None
        self._answers.close()
        if session is not None:
            self.mqtt.sessions.leave(session)
        if gate is not None:
            if will is not None:
                self._publish_will(gate, will)
            self._vhost.gates.leave(gate)

    def go_on(self) -> None:
        super().go_on()
        if self.session is not None:
            self.session.unheard = False
            self.session.unpark()

    def _publish_will(self, gate: Gate, will: Message) -> None:
        """... if it may be published where it wants to, like any other publication."""
        if self.mqtt.topics.serves(swap(will.address.key)):
            self._vhost.publish_will(gate, will)
        else:
            gate.received += 1
            gate.count_fate(DENIED)

    def unchoke(self) -> None:
        if self.session is not None:
            self.session.unchoke()

    def describe(self) -> dict[str, object]:
        row = super().describe()
        row["user"] = self.user
        row["client"] = self.client_id
        row["keep_alive"] = int(self.keep_alive)
        return row
