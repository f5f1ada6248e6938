"""The life of a connection, from the greeting to its end: what the connection itself says and is
told.

handshake.py has the table of states; this file lives it.
"""

from __future__ import annotations

from typing import Any, Final

import pamqp.commands as spec
from librt.strings import read_i32_be
from mypy_extensions import i64

from broker.access.identity import Credentials, Identity, Verdict
from broker.agenda import Task
from broker.routing.publish_context import PublishContext
from broker.vhost.vhost import VirtualHost
from protocols.amqp.channel.channel import Channel
from protocols.amqp.channel.connection_interface import AmqpClient
from protocols.amqp.codec.frames import (
    FRAME_END,
    HEARTBEAT_FRAME,
    METHOD,
    OVERHEAD,
    close_channel,
    close_connection,
    encode,
)
from protocols.amqp.connection.handshake import (
    CLOSING_MS,
    FRAME_LEAST,
    REFUSAL_MS,
    STEPS,
    credentials,
    negotiate,
    tune,
)
from protocols.amqp.errors import AmqpError
from protocols.amqp.options import AmqpOptions
from protocols.connection import HELD_MAX, TOO_FAST, ConnectionRegistry, Peer

#: Exclusive queues that go in one turn.
CLEARED: Final = 100


class ExclusiveQueueRemoval(Task):
    """Deletes the exclusive queues of a connection that ended, some a turn."""

    def __init__(self, vhost: VirtualHost, owner: AmqpClient, names: list[str]) -> None:
        self._vhost = vhost
        self._owner = owner
        self._names = names

    def run(self) -> None:
        vhost = self._vhost
        for name in self._names[-CLEARED:]:
            queue = vhost.queues.get(name)  # A policy may have put another in its place.
            if queue is not None and queue.exclusive_to is self._owner:
                vhost.delete_queue(queue)
        del self._names[-CLEARED:]
        if self._names:
            vhost.agenda.later(self)


class Lifecycle(AmqpClient):
    """One AMQP client, but for its frames."""

    def __init__(self, front: ConnectionRegistry, peer: Peer, options: AmqpOptions) -> None:
        super().__init__(front, peer)
        self.options = options
        self._identity: Identity | None = None
        self.vhost: VirtualHost | None = None
        self.context: PublishContext | None = None
        self.channels: dict[int, Channel] = {}
        self.frame_max: i64 = HELD_MAX
        self.channel_max: i64 = 0
        self.heartbeat: i64 = 0
        self.user = ""
        self.mechanism = ""
        #: What the client calls this connection.
        self.title = ""
        self.deadline = self.agenda.now + options.handshake_ms
        self.state = "greeting"
        self.ending: set[int] = set()
        #: The peer's frames are lost to us: nothing that comes now can be told apart.
        self.deaf = False
        #: The channel, and the class and method, that an error now would be about.
        self.about_channel: i64 = 0
        self.about: i64 = 0

    # -- the handshake

    def on_connection_method(self, name: str, method: Any) -> None:
        if name == "Connection.Close":
            self.send(0, spec.Connection.CloseOk())
            self.answers_last = True
            self.on_closed("client")
        elif name == "Connection.UpdateSecret" and self.state == "running":
            self._update_secret(method)
        elif name not in ("Connection.Blocked", "Connection.Unblocked") or self.state != "running":
            state = STEPS.get((self.state, name))
            if state is None:
                raise AmqpError(504, f"{name} in connection state '{self.state}'")
            self.state = state
            if name == "Connection.StartOk":
                self._log_in(method)
            elif name == "Connection.TuneOk":
                self._tune(method)
            else:
                self._open(method)

    def _log_in(self, method: Any) -> None:
        properties: Any = method.client_properties or {}
        capabilities = properties.get("capabilities")
        self.capabilities = capabilities if isinstance(capabilities, dict) else {}
        self.product = str(properties.get("product", ""))
        self.version = str(properties.get("version", ""))
        self.title = str(properties.get("connection_name", ""))
        self.mechanism = str(method.mechanism)
        response: Any = method.response  # Octets, whatever pamqp declares.
        login = credentials(method.mechanism, response, self.peer)
        self.user = login.user or ""
        self._ask(login, lambda verdict: self._judge(verdict, method.mechanism))

    def _ask(self, login: Credentials, judge: Any) -> None:
        """Stop reading until the verdict comes; it may come at once."""
        self.stall()
        self.front.broker.authenticator.authenticate(login, judge)

    def _judge(self, verdict: Verdict, mechanism: str) -> None:
        if self.finished or self.state != "verdict":
            return  # The broker stops, or the client is gone.
        if verdict.identity is None:
            self.front.count_login("busy" if verdict.busy else "refused")
            text = f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
            if self.capabilities.get("authentication_failure_close") is True:
                self.close_with(AmqpError(403, text), 10 << 16 | 11, "login_refused")
            else:
                self.state = "closing"
                self.reason = "login_refused"
                self.deadline = self.agenda.now + REFUSAL_MS
            self.resume_input()
            return
        self.front.count_login("accepted")
        self.admitted = True
        self.state = "tune"
        self._identity = verdict.identity
        self.remember(verdict.identity)
        self.user = verdict.identity.name  # A token names another one than the client does.
        self.frame_max = self.options.frame_max
        self.send(0, tune(self.options))
        self.resume_input()

    def _tune(self, method: spec.Connection.TuneOk) -> None:
        options = self.options
        self.frame_max = negotiate(method.frame_max, options.frame_max, "frame_max", FRAME_LEAST)
        self.channel_max = negotiate(method.channel_max, options.channel_max, "channel_max", 1)
        self.heartbeat = method.heartbeat

    def _open(self, method: spec.Connection.Open) -> None:
        name = method.virtual_host
        vhost = self.front.broker.vhosts.get(name)
        identity = None if self._identity is None else self._identity.for_vhost(name)
        self.state = "open"
        if vhost is None or vhost.closing:
            raise AmqpError(530, f"vhost {name} not found")
        if identity is None:
            raise AmqpError(530, f"access to vhost '{name}' refused for user '{self.user}'")
        full = self.front.broker.connection_refusal(identity.name, vhost)
        if full:
            raise AmqpError(530, full)
        self.state = "running"
        self.vhost = vhost
        self.context = vhost.contexts.enter(identity, self.front.name)
        self.deadline = self.agenda.now + self.heartbeat * 500 if self.heartbeat else 0
        self.send(0, spec.Connection.OpenOk())

    def _update_secret(self, method: Any) -> None:
        """The client renews its credentials; the new ones must be good."""
        password: Any = method.new_secret  # Octets, whatever pamqp declares.
        self._ask(
            Credentials(self.user, password, "/", self.peer.address, self.peer.local),
            self._judge_secret,
        )

    def _judge_secret(self, verdict: Verdict) -> None:
        if self.finished or self.state != "running":
            return
        known, identity = self._identity, verdict.identity
        if identity is None or known is None or identity.name != known.name:
            self.fail(AmqpError(530, "New secret was refused by one of the backends"))
        else:
            self._identity = identity
            self.remember(identity)
            self.send(0, spec.Connection.UpdateSecretOk())
            self.review()
        self.resume_input()

    def send(self, number: i64, method: Any) -> None:
        self.out.write(encode(number, method))

    def block(self) -> None:
        if not self.stalled and self.capabilities.get("connection.blocked") is True:
            self.send(0, spec.Connection.Blocked(self.front.broker.alarms.reason))
        super().block()

    def unblock(self) -> None:
        if not self.finished and self.capabilities.get("connection.blocked") is True:
            self.send(0, spec.Connection.Unblocked())
        super().unblock()

    # -- other rights than before

    def review(self) -> None:
        known, vhost, context = self._identity, self.vhost, self.context
        if self.finished or self.state == "closing" or known is None:
            return
        renewed = self._identity = self.front.broker.authenticator.renew(known)
        if renewed is None:
            self._expel(
                "the token has expired"
                if known.expires
                else f"user '{self.user}' is deleted, or may not log in any more"
            )
            return
        if vhost is None or context is None:
            return  # It is asked when it opens one.
        identity = renewed.for_vhost(vhost.name)
        if vhost.closing:
            self._expel(f"vhost '{vhost.name}' is deleted")
        elif identity is None:
            self._expel(f"access to vhost '{vhost.name}' refused for user '{self.user}'")
        elif identity is not context.identity:
            fresh = self.context = vhost.contexts.enter(identity, self.front.name)
            vhost.contexts.leave(context)
            for number, channel in list(self.channels.items()):
                if not channel.review(fresh):
                    self.end_channel(number)
                    self.ending.add(number)
                    self.out.write(
                        close_channel(
                            number,
                            AmqpError(
                                403, f"user '{self.user}' may not read any more what it reads"
                            ),
                            0,
                        )
                    )
                    self.touch()

    def close(self, reason: str, text: str = "") -> None:
        if self.state == "greeting":
            self.abort(reason)
            self.touch()
        elif self.state != "closing" and not self.finished:
            self.close_with(
                AmqpError(
                    506 if reason == TOO_FAST else 320,
                    text or f"broker forced connection closure with reason '{reason}'",
                ),
                0,
                reason,
            )

    def _expel(self, reason: str) -> None:
        self.close_with(AmqpError(320, reason), 0, "expelled")

    @property
    def published(self) -> int:
        return 0 if self.context is None else int(self.context.received)

    @property
    def owner(self) -> tuple[str, str]:
        return (self.user, self.vhost.name) if self.vhost is not None else ("", "")

    # -- time, and the end

    def fail(self, error: AmqpError) -> None:
        """Tell the client, and wait for its close-ok."""
        for channel in self.channels.values():
            channel.confirm()
        self.close_with(error, self.about, "protocol_error")

    def close_with(self, error: AmqpError, about: i64, reason: str) -> None:
        """Say connection.close, and let go of everything."""
        self.out.write(close_connection(error, about))
        self.state = "closing"
        self.reason = reason
        self._let_go()
        self.deadline = self.agenda.now + CLOSING_MS
        if self.stalled:
            self.resume_input()  # There may be a close among what was kept.
        self.touch()

    def await_close_ok(self, data: bytes, at: i64) -> i64:
        """Everything but close-ok is ignored; what cannot be parsed is not worth waiting for."""
        size: i64 = len(data)
        position: i64 = at
        while size - position >= OVERHEAD and not self.deaf:
            length: i64 = i64(read_i32_be(data, position + 3))
            end: i64 = position + length + OVERHEAD
            if (
                length < 0
                or length > self.frame_max - OVERHEAD
                or end <= size
                and data[end - 1] != FRAME_END
            ):
                self.deaf = True
                break
            if end > size:
                self.need = end - position
                return position
            if data[position] == METHOD and data[position + 7 : position + 11] in (
                b"\x00\x0a\x00\x33",
                b"\x00\x0a\x00\x32",
            ):
                if data[position + 10] == 50:
                    self.send(0, spec.Connection.CloseOk())
                self.on_closed(self.reason)
                return size
            position = end
        return size if self.deaf else position

    def advance(self, now: int) -> None:
        """Heartbeats: two out per interval; two intervals of silence end the connection (section
        4.2.7).
        """
        if self.state != "running":
            self.abort("handshake_timeout")
            self.touch()
            return
        interval: i64 = self.heartbeat * 1000
        if self.stalled:
            self.heard_at = now  # It is we who do not listen.
        if now - self.heard_at > 2 * interval:
            self.abort("heartbeat_timeout")
        else:
            self.out.write(HEARTBEAT_FRAME)
            self.deadline = now + interval // 2
        self.touch()

    def _release(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        """Channels end, exclusive queues go, the gate is left."""
        for number in list(self.channels):
            self.end_channel(number)
        self.ending.clear()
        vhost, context = self.vhost, self.context
        if vhost is not None and context is not None:
            ExclusiveQueueRemoval(vhost, self, [queue.name for queue in self.exclusive]).run()
            self.exclusive.clear()
            vhost.contexts.leave(context)
            self.context = None

    def resume_deliveries(self) -> None:
        for channel in self.channels.values():
            channel.unchoke()

    def describe(self) -> dict[str, object]:
        row = super().describe()
        row["user"] = self.user
        row["vhost"] = "" if self.vhost is None else self.vhost.name
        row["state"] = self.state
        row["channels"] = len(self.channels)
        row["client"] = self.title or f"{self.product} {self.version}".strip()
        return row

    def end_channel(self, number: i64) -> None:
        channel = self.channels.pop(number, None)
        if channel is not None:
            channel.close()
