"""amqtt's own plugins, and unruly ones, decide who may come in and which topics they may touch."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import argon2
import pamqp.commands as spec
import pamqp.frame
import pytest
from amqtt.broker import Broker as AmqttBroker
from amqtt.contexts import Action
from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
from pwdlib.hashers.argon2 import Argon2Hasher

import trellis.amqtt_plugins as subject
from broker.access import Credentials, Identity
from broker.bounds import Bounds
from broker.core import Broker
from broker.route import FATES
from broker.store.memory import MemoryStore
from protocols.amqp.front import AmqpFront
from protocols.amqp.handshake import GREETING, AmqpOptions
from protocols.connection import Connection, Peer
from protocols.mqtt.front import MqttFront
from trellis import amqtt_loading
from trellis.amqtt_plugins import PluginAuthenticator, TopicRules
from trellis.app import App
from trellis.authenticate import Account, Accounts
from trellis.node import Node
from trellis.settings import Settings, SettingsError, load

ANONYMOUS = "amqtt.plugins.authentication.AnonymousAuthPlugin"
FILE = "amqtt.plugins.authentication.FileAuthPlugin"
TABOO = "amqtt.plugins.topic_checking.TopicTabooPlugin"
ACL = "amqtt.plugins.topic_checking.TopicAccessControlListPlugin"
AFAR = Peer("192.0.2.7", 1, False)
ACCEPTED, UNAVAILABLE, BAD_CREDENTIALS, NOT_AUTHORISED = 0, 3, 4, 5

pytestmark = pytest.mark.filterwarnings("ignore:The 'acl' option is deprecated:DeprecationWarning")


# -- plugins of our own


def here(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


class Says(BaseAuthPlugin):  # type: ignore[misc]  # amqtt ships no types
    """Says what it is told to say."""

    async def authenticate(self, *, session: Any) -> Any:
        return self.config.answer

    @dataclass
    class Config:
        answer: Any = None


class SaysToo(Says):
    pass


class SaysAsWell(Says):
    pass


class Broken(BaseAuthPlugin):  # type: ignore[misc]
    async def authenticate(self, *, session: Any) -> bool:
        raise LookupError(f"no such password: {session.password}")


class Waits(BaseAuthPlugin):  # type: ignore[misc]
    """Waits for ever, as for a database that does not answer."""

    ended = 0

    async def authenticate(self, *, session: Any) -> bool:
        try:
            await asyncio.Event().wait()
        finally:
            Waits.ended += 1
        return True


class Hangs(BaseAuthPlugin):  # type: ignore[misc]
    """Holds its thread until it is let go."""

    let_go = threading.Event()

    async def authenticate(self, *, session: Any) -> bool:
        Hangs.let_go.wait(10)
        return True


class Roles(BaseAuthPlugin, BaseTopicPlugin):  # type: ignore[misc]
    """Finds a client's role at login, and asks for it at each topic. Writes down what it was asked."""

    seen: list[tuple[Any, ...]] = []  # noqa: RUF012

    async def authenticate(self, *, session: Any) -> bool:
        await asyncio.sleep(0)
        session.attributes["role"] = session.password
        return True

    async def topic_filtering(self, *, session: Any = None, topic: Any = None, action: Any = None) -> bool:
        Roles.seen.append((session.username, session.client_id, session.attributes["role"], topic, action))
        return bool(topic.startswith(session.attributes["role"]))


class TopicSays(BaseTopicPlugin):  # type: ignore[misc]
    async def topic_filtering(self, *, session: Any = None, topic: Any = None, action: Any = None) -> Any:
        return self.config.answer

    @dataclass
    class Config:
        answer: Any = None


class TopicWaits(BaseTopicPlugin):  # type: ignore[misc]
    async def topic_filtering(self, *, session: Any = None, topic: Any = None, action: Any = None) -> bool:
        await asyncio.sleep(0)
        return True


class TopicBroken(BaseTopicPlugin):  # type: ignore[misc]
    async def topic_filtering(self, *, session: Any = None, topic: Any = None, action: Any = None) -> bool:
        raise LookupError(session.password)


class Lives(BaseTopicPlugin):  # type: ignore[misc]
    """Writes down its life."""

    life: list[str] = []  # noqa: RUF012

    async def on_broker_pre_start(self) -> None:
        assert asyncio.get_running_loop() is self.context.loop
        Lives.life.append("start")

    async def on_broker_pre_shutdown(self) -> None:
        Lives.life.append("shutdown")

    async def close(self) -> None:
        Lives.life.append("close")


# -- octets


def text(value: str | bytes) -> bytes:
    octets = value.encode() if isinstance(value, str) else value
    return len(octets).to_bytes(2, "big") + octets


def packet(first: int, body: bytes) -> bytes:
    assert len(body) < 128
    return bytes([first, len(body)]) + body


def connect(user: str | None, password: str | bytes | None, client_id: str) -> bytes:
    flags = 2 | (128 if user is not None else 0) | (64 if password is not None else 0)
    return packet(0x10, text("MQTT") + bytes([4, flags, 0, 0]) + text(client_id)
                  + b"".join(text(part) for part in (user, password) if part is not None))


def publish(topic: str, body: bytes = b"x") -> bytes:
    return packet(0x30, text(topic) + body)


def subscribe(*filters: str) -> bytes:
    return packet(0x82, b"\x00\x01" + b"".join(text(topic_filter) + b"\x00" for topic_filter in filters))


class House:
    """Plugins in front of accounts, a real core behind two real front ends."""

    def __init__(self, plugins: dict[str, dict[str, object]], accounts: Accounts, **bounds: Any) -> None:
        self.authenticator = PluginAuthenticator(plugins, accounts, **bounds)
        ids = itertools.count()
        self.broker = Broker(MemoryStore(), self.authenticator, lambda: f"id-{next(ids)}", Bounds())
        self.mqtt = MqttFront(self.broker)
        self.amqp = AmqpFront(self.broker, AmqpOptions())

    def close(self) -> None:
        Hangs.let_go.set()
        self.authenticator.close()

    async def join(self, user: str | None = None, password: str | bytes | None = None, client_id: str = "c",
                   peer: Peer | None = None) -> Client:
        """An MQTT client that has heard the verdict."""
        client = Client(self, self.mqtt.connect(peer or Peer()))
        client.greeting = await client.ask(connect(user, password, client_id))
        return client

    async def quiet(self) -> None:
        """No login waits for a plugin any more."""
        for _ in iter(lambda: self.authenticator.waiting, 0):
            await asyncio.sleep(0)

    async def code(self, *who: Any, **more: Any) -> int:
        """The return code of CONNACK."""
        return (await self.join(*who, **more)).greeting[3]

    async def join_amqp(self, user: str, password: str, peer: Peer | None = None) -> Client:
        """An AMQP client on channel 1, or the greeting that says why not."""
        client = Client(self, self.amqp.connect(peer or Peer()))
        properties: Any = {"capabilities": {"authentication_failure_close": True}}
        await client.ask(GREETING)
        client.greeting = await client.ask(marshal(0, spec.Connection.StartOk(properties, response=f"\0{user}\0{password}")))
        if isinstance(client.frames(client.greeting)[0], spec.Connection.Tune):
            await client.ask(marshal(0, spec.Connection.TuneOk(2047, 131_072, 0)) + marshal(0, spec.Connection.Open())
                             + marshal(1, spec.Channel.Open()))
        return client

    def fates(self) -> dict[str, int]:
        totals = [sum(counts) for counts in zip(*(gate.totals()[0] for gate in self.broker.vhosts["/"].gates), strict=True)]
        return {name: count for name, count in zip(FATES, totals, strict=True) if count}


class Client:
    def __init__(self, house: House, connection: Connection) -> None:
        self.house = house
        self.connection = connection
        self.greeting = b""

    async def ask(self, octets: bytes) -> bytes:
        """Write, wait for a verdict if one is wanted, read."""
        woken = asyncio.Event()
        self.connection.wake = woken.set
        self.connection.receive_data(octets)
        while self.connection.stalled:
            await asyncio.wait_for(woken.wait(), 5)
            woken.clear()
        self.house.broker.agenda.turn()
        return self.connection.data_to_send()

    def frames(self, octets: bytes) -> list[Any]:
        found = []
        while octets:
            size, _, frame = pamqp.frame.unmarshal(octets)
            found.append(frame)
            octets = octets[size:]
        return found

    async def send(self, *methods: Any) -> list[Any]:
        """AMQP methods on channel 1, and what comes back."""
        return self.frames(await self.ask(b"".join(marshal(1, method) for method in methods)))

    async def publish(self, exchange: str, key: str) -> list[Any]:
        body = pamqp.header.ContentHeader(body_size=1, properties=spec.Basic.Properties())
        return await self.send(spec.Basic.Publish(exchange=exchange, routing_key=key), body, pamqp.body.ContentBody(b"x"))


def marshal(channel: int, frame: Any) -> bytes:
    return pamqp.frame.marshal(frame, channel)


Build = Callable[..., House]


@pytest.fixture(scope="module")
def accounts() -> Iterator[Accounts]:
    """`guest` from loopback, `ann` who may write to amq.topic only, and nobody in particular from loopback."""
    cheap = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    found = [Account(Identity("guest"), cheap.hash("guest"), True),
             Account(Identity("ann", write="amq\\.topic"), cheap.hash("ann's"), False)]
    accounts = Accounts(found, Identity("anonymous"), False, 1, 8, 300)
    yield accounts
    accounts.close()


@pytest.fixture
async def build(accounts: Accounts) -> AsyncIterator[Build]:
    """Makes houses that are closed after the test."""
    houses: list[House] = []

    def make(plugins: dict[str, dict[str, object]], **bounds: Any) -> House:
        houses.append(House(plugins, accounts, **bounds))
        return houses[-1]

    Hangs.let_go.clear()
    Roles.seen.clear()
    Lives.life.clear()
    yield make
    for house in houses:
        house.close()


@pytest.fixture
def passwords(tmp_path: Path) -> str:
    """A password file of amqtt's: bob has a password."""
    path = tmp_path / "passwords"
    path.write_text(f"# comment\nbob:{Argon2Hasher(time_cost=1, memory_cost=8, parallelism=1).hash('bobs')}\n")
    return str(path)


# -- who may come in


async def test_a_password_file_of_amqtt_decides_about_clients_of_both_protocols(build: Build, passwords: str) -> None:
    house = build({FILE: {"password-file": passwords}})
    assert await house.code("bob", "bobs") == ACCEPTED
    assert await house.code("bob", "wrong") == BAD_CREDENTIALS
    assert await house.code("bob", None) == BAD_CREDENTIALS
    assert await house.code("bob", b"\xff") == BAD_CREDENTIALS
    frames = {password: [client.greeting, client.frames(client.greeting)[0]]
              for password in ("bobs", "wrong") for client in [await house.join_amqp("bob", password)]}
    assert isinstance(frames["bobs"][1], spec.Connection.Tune)
    assert frames["wrong"][1].reply_code == 403
    assert house.authenticator.asked == 6
    assert house.authenticator.waiting == 0


async def test_a_plugin_that_says_no_to_a_name_keeps_it_from_the_accounts(build: Build, passwords: str) -> None:
    assert await build({FILE: {"password_file": passwords}}).code("guest", "guest") == BAD_CREDENTIALS


async def test_where_no_plugin_has_an_opinion_the_accounts_decide(build: Build, passwords: str) -> None:
    house = build({FILE: {"password_file": passwords}})  # It has none of those who give no name.
    assert await house.code() == ACCEPTED
    assert await house.code(peer=AFAR) == NOT_AUTHORISED
    house = build({here(Says): {}})
    assert await house.code("guest", "guest") == ACCEPTED
    assert await house.code("guest", "wrong") == BAD_CREDENTIALS
    assert await house.code("guest", "guest", peer=AFAR) == BAD_CREDENTIALS


async def test_the_anonymous_plugin_lets_everybody_in_wherever_they_are(build: Build) -> None:
    house = build({ANONYMOUS: {}})
    assert await house.code(peer=AFAR) == ACCEPTED
    assert await house.code("guest", "wrong", peer=AFAR) == ACCEPTED
    house = build({ANONYMOUS: {"allow-anonymous": False}})
    assert await house.code() == NOT_AUTHORISED
    assert await house.code("anybody", "anything") == ACCEPTED


@pytest.mark.parametrize("answers", list(itertools.product((True, False, None), repeat=3)), ids=str)
async def test_answers_are_combined_as_amqtt_does_but_silence_is_left_to_the_accounts(
        build: Build, answers: tuple[bool | None, ...]) -> None:
    async def said(**_: object) -> dict[object, bool | None]:
        return dict(enumerate(answers))

    amqtt = SimpleNamespace(plugins_manager=SimpleNamespace(map_plugin_auth=said), logger=logging)
    theirs = await AmqttBroker._authenticate(amqtt, None, None)
    house = build({here(kind): {"answer": answer} for kind, answer in zip((Says, SaysToo, SaysAsWell), answers, strict=True)})
    ours = await house.code("guest", "guest") == ACCEPTED
    assert ours == (True if answers == (None, None, None) else theirs)


async def test_a_plugin_that_raises_refuses_and_its_words_are_not_logged(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    house = build({here(Broken): {}, ANONYMOUS: {}})
    assert await house.code("bob", "secret") == BAD_CREDENTIALS
    [line] = [record.message for record in caplog.records if "amqtt_login_refused" in record.message]
    assert f"plugin={here(Broken)} user=bob" in line
    assert "LookupError in test_amqtt_plugins.py:" in line
    assert "secret" not in caplog.text


async def test_a_plugin_that_waits_for_ever_is_given_up_and_its_place_is_free_again(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    house = build({here(Waits): {}}, patience=0.02)
    ended = Waits.ended
    assert await house.code("bob", "secret") == UNAVAILABLE
    await house.quiet()
    assert Waits.ended == ended + 1
    assert house.authenticator.late == 1
    assert "amqtt_login_late user=bob after=0.02s" in caplog.text
    assert "secret" not in caplog.text


async def test_a_plugin_that_holds_its_thread_holds_neither_the_loop_nor_more_logins_than_may_wait(build: Build) -> None:
    house = build({here(Hangs): {}}, queue=2, patience=0.5)
    first, second, third = [await house.code("bob", "secret", f"c{number}") for number in range(3)]
    assert (first, second, third) == (UNAVAILABLE, UNAVAILABLE, UNAVAILABLE)
    assert (house.authenticator.late, house.authenticator.waiting) == (2, 2)  # The third was turned away at once.
    Hangs.let_go.set()
    await house.quiet()
    assert await house.code("bob", "secret") == ACCEPTED


async def test_a_client_that_leaves_before_the_verdict_leaves_nothing_behind(build: Build) -> None:
    house = build({here(Hangs): {}})
    connection = house.mqtt.connect(Peer())
    connection.receive_data(connect("bob", "secret", "c"))
    connection.connection_lost()
    Hangs.let_go.set()
    await house.quiet()
    assert not house.mqtt.sessions.find(house.broker.vhosts["/"], "c")


# -- which topics


async def test_a_taboo_topic_can_be_published_to_by_admin_alone(build: Build) -> None:
    house = build({TABOO: {}, ANONYMOUS: {}})
    reader = await house.join("bob", "", "reader")
    assert await reader.ask(subscribe("data/#", "prohibited")) == packet(0x90, b"\x00\x01\x00\x80")
    bob, admin = await house.join("bob", "", "b"), await house.join("admin", "", "a")
    await bob.ask(publish("data/classified") + publish("data/public"))
    assert await reader.ask(b"") == publish("data/public")
    await admin.ask(publish("data/classified"))
    assert await reader.ask(b"") == publish("data/classified")
    assert house.fates() == {"routed": 2, "denied": 1}


async def test_an_access_control_list_holds_for_accounts_where_no_plugin_authenticates(build: Build) -> None:
    house = build({ACL: {"publish-acl": {"ann": ["ann/#"], "anonymous": ["open/+"]}, "acl": {"ann": ["ann/#", "open/#"]}}})
    assert await house.code("ann", "wrong") == BAD_CREDENTIALS
    ann, nobody = await house.join("ann", "ann's", "a"), await house.join(client_id="n")
    assert await ann.ask(subscribe("ann/1", "#", "open/#")) == packet(0x90, b"\x00\x01\x00\x80\x00")
    assert await nobody.ask(subscribe("open/1")) == packet(0x90, b"\x00\x01\x80")
    await nobody.ask(publish("open/1") + publish("ann/1") + publish("open/1/2"))
    assert await ann.ask(publish("ann/1") + publish("bob/1")) == publish("open/1") + publish("ann/1")
    assert house.fates() == {"routed": 2, "denied": 3}


async def test_a_topic_plugin_is_asked_about_amqp_keys_as_mqtt_topics(build: Build) -> None:
    house = build({TABOO: {}})
    client = await house.join_amqp("guest", "guest")
    [closed] = await client.publish("amq.topic", "data.classified")
    assert (closed.reply_code, closed.name) == (403, "Channel.Close")
    await client.send(spec.Channel.CloseOk(), spec.Channel.Open())
    assert await client.publish("amq.topic", "data/classified") == []
    assert await client.publish("amq.direct", "prohibited") == []
    [closed] = await client.publish("amq.topic", "prohibited")
    assert "'prohibited'" in closed.reply_text
    assert "'guest'" in closed.reply_text


async def test_topic_plugins_narrow_what_an_account_may_and_widen_nothing(build: Build) -> None:
    client = await build({TABOO: {}}).join_amqp("ann", "ann's")
    assert await client.publish("amq.topic", "public") == []
    [closed] = await client.publish("amq.direct", "public")
    assert closed.reply_code == 403


@pytest.mark.parametrize("answers", list(itertools.product((True, False, None, 1, ""), repeat=2)), ids=str)
async def test_all_topic_plugins_must_say_yes_as_in_amqtt(answers: tuple[Any, ...]) -> None:
    async def said(**_: object) -> dict[object, object]:
        return dict(enumerate(answers))

    manager = SimpleNamespace(map_plugin_topic=said, is_topic_filtering_enabled=lambda: True)
    theirs = await AmqttBroker._topic_filtering(SimpleNamespace(plugins_manager=manager), None, "a", Action.PUBLISH)
    plugins = [amqtt_loading.load(here(TopicSays), {"answer": answer}) for answer in answers]
    assert TopicRules(plugins).allow(subject.PluginSession(), "a", Action.PUBLISH) == theirs


@pytest.mark.parametrize(("kind", "problem"), [(TopicWaits, "waits"), (TopicBroken, "LookupError in test_amqtt_plugins.py:")])
async def test_a_topic_plugin_that_waits_or_raises_denies_and_is_reported_once(
        build: Build, caplog: pytest.LogCaptureFixture, kind: type, problem: str) -> None:
    house = build({here(kind): {}})
    client = await house.join("ann", "ann's")
    assert await client.ask(subscribe("a", "b")) == packet(0x90, b"\x00\x01\x80\x80")
    await client.ask(publish("a") + publish("b"))
    assert house.fates() == {"denied": 2}
    [line] = [record.message for record in caplog.records if "amqtt_topic_denied" in record.message]
    assert f"plugin={here(kind)}" in line
    assert problem in line
    assert "ann's" not in caplog.text


async def test_a_plugin_is_asked_once_for_each_route_and_again_when_bindings_change(build: Build) -> None:
    house = build({here(Roles): {}})
    client = await house.join("bob", "a", "b1")
    question = ("bob", "b1", "a", "a/1", Action.PUBLISH)
    await client.ask(publish("a/1") * 3)
    assert Roles.seen == [question]
    assert await client.ask(subscribe("a/#")) == packet(0x90, b"\x00\x01\x00")
    await client.ask(publish("a/1") * 3)
    assert Roles.seen == [question, ("bob", "b1", "a", "a/#", Action.SUBSCRIBE), question]


async def test_a_client_that_comes_back_finds_its_gate_unless_a_plugin_would_see_another(build: Build) -> None:
    house = build({here(Roles): {}})

    async def gates(password: str) -> int:
        client = await house.join("bob", password, "b1")
        await client.ask(publish("a/1"))
        client.connection.connection_lost()
        return len(list(house.broker.vhosts["/"].gates)) - 1  # One is the broker's own.

    assert [await gates(role) for role in ("a", "a", "b")] == [1, 1, 2]
    assert house.fates() == {"unroutable": 2, "denied": 1}


async def test_without_topic_plugins_a_user_has_one_gate_however_many_clients(build: Build) -> None:
    house = build({ANONYMOUS: {}})
    for number in range(4):
        await house.join("bob", f"any {number}", f"b{number}")
    [_, gate] = house.broker.vhosts["/"].gates
    assert (gate.users, gate.identity.name) == (4, "bob")


async def test_identities_that_are_remembered_are_bounded(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "IDENTITIES", 3)
    house = build({TABOO: {}, ANONYMOUS: {}})
    for number in (0, 1, 2, 0, 3, 4):
        await house.join("bob", "", f"b{number}")
    assert [client for _, client in house.authenticator._identities] == ["b0", "b3", "b4"]


async def test_a_key_that_is_no_text_is_denied(build: Build) -> None:
    house = build({TABOO: {}})
    identity = await verdict(house, "guest", b"guest")
    assert identity is not None
    assert identity.may_publish("ä".encode())
    assert not identity.may_publish(b"\xff")


async def verdict(house: House, user: str, password: bytes) -> Identity | None:
    heard: asyncio.Future[Identity | None] = asyncio.get_running_loop().create_future()
    credentials = Credentials(user, password, "/", "127.0.0.1", True)
    house.authenticator.authenticate(credentials, lambda verdict: heard.set_result(verdict.identity))
    return await heard


# -- loading


class Picky(BaseTopicPlugin):  # type: ignore[misc]
    @dataclass
    class Config:
        needed: int
        some_words: list[str] = field(default_factory=list)


class Receives(BaseTopicPlugin):  # type: ignore[misc]
    @dataclass
    class Config:
        receive_claim: str


class NoTable(BaseTopicPlugin):  # type: ignore[misc]
    class Config:
        pass


class Checks(BaseTopicPlugin):  # type: ignore[misc]
    @dataclass
    class Config:
        def __post_init__(self) -> None:
            raise ValueError("two lines\nof text")


class Unborn(BaseTopicPlugin):  # type: ignore[misc]
    def __init__(self, context: Any) -> None:
        raise OSError("no database")


class NoStart(BaseTopicPlugin):  # type: ignore[misc]
    async def on_broker_pre_start(self) -> None:
        raise OSError("no schema")


class NotAsync(BaseAuthPlugin):  # type: ignore[misc]
    def authenticate(self, *, session: Any) -> bool:
        return True


def _key(kind: type | str, option: str = "") -> str:
    path = kind if isinstance(kind, str) else here(kind)
    return f'amqtt.plugins."{path}"' + (f".{option}" if option else "")


@pytest.mark.parametrize(("path", "options", "problem"), [
    ("Plugin", {}, f"{_key('Plugin')}: must be the path of a class, written module.Class"),
    ("no_such.Plugin", {}, f"{_key('no_such.Plugin')}: cannot be imported: ModuleNotFoundError: No module named 'no_such'"),
    ("amqtt.errors.PluginEror", {}, f"{_key('amqtt.errors.PluginEror')}: there is no PluginEror in amqtt.errors"),
    (FILE[:-1], {}, f"{_key(FILE[:-1])}: there is no FileAuthPlugi in amqtt.plugins.authentication; the nearest is FileAuthPlugin"),
    ("json.JSONDecoder", {}, f"{_key('json.JSONDecoder')}: is neither an authentication nor a topic plugin; others do nothing here"),
    ("amqtt.plugins.logging_amqtt.EventLoggerPlugin", {},
     f"{_key('amqtt.plugins.logging_amqtt.EventLoggerPlugin')}: is neither an authentication nor a topic plugin; others do nothing here"),
    (FILE, {"pasword-file": "x"}, f"{_key(FILE, 'pasword-file')}: unknown option; the nearest is password_file"),
    (TABOO, {"taboo": []}, f"{_key(TABOO, 'taboo')}: unknown option; this plugin has none"),
    (FILE, {"password-file": "x", "password_file": "y"}, f"{_key(FILE, 'password_file')}: is given twice, with - and with _"),
    (FILE, {"password_file": 7}, f"{_key(FILE, 'password_file')}: must be str | Path | None"),
    (ANONYMOUS, {"allow_anonymous": "yes"}, f"{_key(ANONYMOUS, 'allow_anonymous')}: must be bool"),
    (ACL, {"acl": ["ann"]}, f"{_key(ACL, 'acl')}: must be dict[str, list[str]]"),
    (ACL, {"receive-acl": {}},
     f"{_key(ACL, 'receive-acl')}: is not supported: plugins are asked at publish and subscribe, not at each delivery"),
    (here(Picky), {}, f"{_key(Picky, 'needed')}: must be given"),
    (here(NoTable), {}, f"{_key(NoTable)}: its Config is not a dataclass"),
    (here(Checks), {}, f"{_key(Checks)}: its options are refused: ValueError: two lines of text"),
    (FILE, {"password_file": "/no/such/file"},
     f"{_key(FILE)}: cannot be made: PasswordFileError: Password file '/no/such/file' not found"),
    (here(Unborn), {}, f"{_key(Unborn)}: cannot be made: OSError: no database"),
    (here(NoStart), {}, f"{_key(NoStart)}: cannot start: OSError: no schema"),
    (here(NotAsync), {}, f"{_key(NotAsync)}: its authenticate is not an async function"),
])
async def test_what_cannot_be_loaded_is_told_in_one_line(
        accounts: Accounts, path: str, options: dict[str, object], problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        PluginAuthenticator({path: options}, accounts)
    assert str(caught.value) == problem


async def test_options_that_a_plugin_demands_for_deliveries_are_told_to_be_unused(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    build({here(Receives): {"receive-claim": "r"}})
    assert f"amqtt_option_unused plugin={here(Receives)} option=receive_claim" in caplog.text


async def test_plugins_that_do_not_load_in_time_are_told(accounts: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amqtt_loading, "LOADING", 0.01)
    hold = threading.Event()
    monkeypatch.setattr(amqtt_loading, "load", lambda path, options: hold.wait(5))
    with pytest.raises(SettingsError, match=r"amqtt\.plugins: not loaded within 0\.01 s"):
        PluginAuthenticator({"a.B": {}}, accounts)
    hold.set()


async def test_without_amqtt_the_error_names_the_extra(accounts: Accounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "trellis.amqtt_plugins")
    monkeypatch.setitem(sys.modules, "amqtt.contexts", None)
    settings = Settings(amqtt=type(Settings().amqtt)(plugins={ANONYMOUS: {}}))
    with pytest.raises(SettingsError, match=r"^amqtt\.plugins: amqtt cannot be imported \(.*\); pip install 'trellis-broker\[amqtt\]'$"):
        Node(settings, accounts, None, print)


async def test_plugins_are_started_and_closed_on_their_own_loop(build: Build) -> None:
    house = build({here(Lives): {}})
    assert Lives.life == ["start"]
    house.authenticator.close()
    assert Lives.life == ["start", "shutdown", "close"]
    house.authenticator.close()  # Closing what is closed is nothing.


# -- all of it


@pytest.fixture
def settings(tmp_path: Path, passwords: str) -> Settings:
    path = tmp_path / "broker.toml"
    path.write_text(f"""
data.dir = ":memory:"
amqp.port = 0
mqtt.port = 0
metrics.enabled = false
http.enabled = false

[amqtt.plugins."{FILE}"]
password-file = "{passwords}"

[amqtt.plugins."{ACL}"]
publish-acl = {{ bob = ["bob/#"] }}
acl = {{ bob = ["#"] }}
""")
    return load([path], {})


async def test_a_settings_file_with_plugins_is_served(settings: Settings) -> None:
    app = App(settings)
    serving = asyncio.create_task(app.serve())
    started = asyncio.create_task(app.started.wait())
    await asyncio.wait([serving, started], timeout=5, return_when=asyncio.FIRST_COMPLETED)
    assert not serving.done(), serving.result()
    host, _, port = app.addresses["mqtt"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(connect("bob", "bobs", "b1") + subscribe("#") + publish("ann/1") + publish("bob/1"))
    heard = packet(0x20, bytes([0, ACCEPTED])) + packet(0x90, b"\x00\x01\x00") + publish("bob/1")
    assert await reader.readexactly(len(heard)) == heard
    writer.close()
    app.stop()
    await serving
    assert app.node is not None
    assert isinstance(app.node.broker.authenticator, PluginAuthenticator)
    app.node.broker.authenticator.close()
