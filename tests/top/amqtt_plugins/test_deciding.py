"""Tests that amqtt's plugins, including misbehaving plugins, decide logins and access to topics."""

from __future__ import annotations

import asyncio
import itertools
import logging
from types import SimpleNamespace
from typing import Any

import pamqp.commands as spec
import pytest
from amqtt.broker import Broker as AmqttBroker
from amqtt.contexts import Action

import trellis.auth.amqtt_plugins as subject
from broker.access.identity import Credentials, Identity
from protocols.peer import Peer
from tests.top.amqtt_plugins.house import (
    ACCEPTED,
    AFAR,
    BAD_CREDENTIALS,
    NOT_AUTHORISED,
    UNAVAILABLE,
    Build,
    House,
    connect,
    packet,
    publish,
    subscribe,
)
from tests.top.amqtt_plugins.plugins import (
    ACL,
    ANONYMOUS,
    FILE,
    TABOO,
    Broken,
    Hangs,
    Roles,
    Says,
    SaysAsWell,
    SaysToo,
    TopicBroken,
    TopicSays,
    TopicWaits,
    Waits,
    here,
)
from trellis.auth import amqtt_loading
from trellis.auth.amqtt_plugins import PluginTopicRules

pytestmark = pytest.mark.filterwarnings("ignore:The 'acl' option is deprecated:DeprecationWarning")


# -- clients that may log in


async def test_a_password_file_of_amqtt_decides_about_clients_of_both_protocols(
    build: Build, passwords: str
) -> None:
    house = build({FILE: {"password-file": passwords}})
    assert await house.code("bob", "bobs") == ACCEPTED
    assert await house.code("bob", "wrong") == BAD_CREDENTIALS
    assert await house.code("bob", None) == BAD_CREDENTIALS
    assert await house.code("bob", b"\xff") == BAD_CREDENTIALS
    frames = {
        password: [client.greeting, client.frames(client.greeting)[0]]
        for password in ("bobs", "wrong")
        for client in [await house.join_amqp("bob", password)]
    }
    assert isinstance(frames["bobs"][1], spec.Connection.Tune)
    assert frames["wrong"][1].reply_code == 403
    assert house.authenticator.submitted == 6
    assert house.authenticator.waiting == 0


async def test_a_plugin_that_says_no_to_a_name_keeps_it_from_the_accounts(
    build: Build, passwords: str
) -> None:
    assert (
        await build({FILE: {"password_file": passwords}}).code("guest", "guest") == BAD_CREDENTIALS
    )


async def test_accounts_decide_if_no_plugin_does(build: Build, passwords: str) -> None:
    # The plugin leaves logins without a user name to the accounts.
    house = build({FILE: {"password_file": passwords}})
    assert await house.code() == ACCEPTED
    assert await house.code(peer=AFAR) == NOT_AUTHORISED
    house = build({here(Says): {}})
    assert await house.code("guest", "guest") == ACCEPTED
    assert await house.code("guest", "wrong") == BAD_CREDENTIALS
    assert await house.code("guest", "guest", peer=AFAR) == BAD_CREDENTIALS


async def test_anonymous_plugin_admits_all_clients_from_any_address(build: Build) -> None:
    house = build({ANONYMOUS: {}})
    assert await house.code(peer=AFAR) == ACCEPTED
    assert await house.code("guest", "wrong", client_id="d", peer=AFAR) == ACCEPTED
    house = build({ANONYMOUS: {"allow-anonymous": False}})
    assert await house.code() == NOT_AUTHORISED
    assert await house.code("anybody", "anything") == ACCEPTED


@pytest.mark.parametrize("answers", list(itertools.product((True, False, None), repeat=3)), ids=str)
async def test_answers_are_combined_as_amqtt_does_but_silence_is_left_to_the_accounts(
    build: Build, answers: tuple[bool | None, ...]
) -> None:
    async def answers_by_plugin(**_: object) -> dict[object, bool | None]:
        return dict(enumerate(answers))

    amqtt = SimpleNamespace(
        plugins_manager=SimpleNamespace(map_plugin_auth=answers_by_plugin), logger=logging
    )
    theirs = await AmqttBroker._authenticate(amqtt, None, None)
    house = build(
        {
            here(kind): {"answer": answer}
            for kind, answer in zip((Says, SaysToo, SaysAsWell), answers, strict=True)
        }
    )
    ours = await house.code("guest", "guest") == ACCEPTED
    assert ours == (True if answers == (None, None, None) else theirs)


async def test_a_plugin_that_raises_refuses_and_its_words_are_not_logged(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    house = build({here(Broken): {}, ANONYMOUS: {}})
    assert await house.code("bob", "secret") == BAD_CREDENTIALS
    [line] = [
        record.message for record in caplog.records if "amqtt_login_refused" in record.message
    ]
    assert f"plugin={here(Broken)} user=bob" in line
    assert "LookupError in plugins.py:" in line
    assert "secret" not in caplog.text


async def test_a_plugin_that_waits_for_ever_is_given_up_and_its_place_is_free_again(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    # The plugin's verdict must come within 0.5 s: long enough for the plugin to be called even on a
    # busy machine.
    house = build({here(Waits): {}}, patience=0.5)
    ended = Waits.ended
    assert await house.code("bob", "secret") == UNAVAILABLE
    await house.quiet()
    assert Waits.ended == ended + 1
    assert house.authenticator.late == 1
    assert "amqtt_login_late user=bob after=0.5s" in caplog.text
    assert "secret" not in caplog.text


async def test_a_plugin_that_holds_its_thread_holds_neither_the_loop_nor_more_logins_than_may_wait(
    build: Build,
) -> None:
    house = build({here(Hangs): {}}, queue=2, patience=0.5)
    first, second, third = [await house.code("bob", "secret", f"c{number}") for number in range(3)]
    assert (first, second, third) == (UNAVAILABLE, UNAVAILABLE, UNAVAILABLE)
    # The third login was refused at once.
    assert (house.authenticator.late, house.authenticator.waiting) == (2, 2)
    Hangs.released.set()
    await house.quiet()
    assert await house.code("bob", "secret") == ACCEPTED


async def test_a_client_that_leaves_before_the_verdict_leaves_nothing_behind(build: Build) -> None:
    house = build({here(Hangs): {}})
    connection = house.mqtt.connect(Peer())
    connection.receive_data(connect("bob", "secret", "c"))
    connection.on_closed()
    Hangs.released.set()
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


async def test_an_access_control_list_holds_for_accounts_where_no_plugin_authenticates(
    build: Build,
) -> None:
    house = build(
        {
            ACL: {
                "publish-acl": {"ann": ["ann/#"], "anonymous": ["open/+"]},
                "acl": {"ann": ["ann/#", "open/#"]},
            }
        }
    )
    assert await house.code("ann", "wrong") == BAD_CREDENTIALS
    ann, unknown = await house.join("ann", "ann's", "a"), await house.join(client_id="n")
    assert await ann.ask(subscribe("ann/1", "#", "open/#")) == packet(0x90, b"\x00\x01\x00\x80\x00")
    assert await unknown.ask(subscribe("open/1")) == packet(0x90, b"\x00\x01\x80")
    await unknown.ask(publish("open/1") + publish("ann/1") + publish("open/1/2"))
    assert await ann.ask(publish("ann/1") + publish("bob/1")) == publish("open/1") + publish(
        "ann/1"
    )
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


async def test_topic_plugins_narrow_the_rights_of_an_account_and_widen_none(build: Build) -> None:
    client = await build({TABOO: {}}).join_amqp("ann", "ann's")
    assert await client.publish("amq.topic", "public") == []
    [closed] = await client.publish("amq.direct", "public")
    assert closed.reply_code == 403


@pytest.mark.parametrize(
    "answers", list(itertools.product((True, False, None, 1, ""), repeat=2)), ids=str
)
async def test_all_topic_plugins_must_say_yes_as_in_amqtt(answers: tuple[Any, ...]) -> None:
    async def answers_by_plugin(**_: object) -> dict[object, object]:
        return dict(enumerate(answers))

    manager = SimpleNamespace(
        map_plugin_topic=answers_by_plugin, is_topic_filtering_enabled=lambda: True
    )
    theirs = await AmqttBroker._topic_filtering(
        SimpleNamespace(plugins_manager=manager), None, "a", Action.PUBLISH
    )
    plugins = [amqtt_loading.load(here(TopicSays), {"answer": answer}) for answer in answers]
    assert PluginTopicRules(plugins).allow(subject.PluginSession(), "a", Action.PUBLISH) == theirs


@pytest.mark.parametrize(
    ("kind", "problem"),
    [(TopicWaits, "without an await"), (TopicBroken, "LookupError in plugins.py:")],
)
async def test_a_topic_plugin_that_waits_or_raises_denies_and_is_reported_once(
    build: Build, caplog: pytest.LogCaptureFixture, kind: type, problem: str
) -> None:
    house = build({here(kind): {}})
    client = await house.join("ann", "ann's")
    assert await client.ask(subscribe("a", "b")) == packet(0x90, b"\x00\x01\x80\x80")
    await client.ask(publish("a") + publish("b"))
    assert house.fates() == {"denied": 2}
    [line] = [record.message for record in caplog.records if "amqtt_topic_denied" in record.message]
    assert f"plugin={here(kind)}" in line
    assert problem in line
    assert "ann's" not in caplog.text


async def test_a_plugin_is_asked_once_for_each_route_and_again_when_bindings_change(
    build: Build,
) -> None:
    house = build({here(Roles): {}})
    client = await house.join("bob", "a", "b1")
    question = ("bob", "b1", "a", "a/1", Action.PUBLISH)
    await client.ask(publish("a/1") * 3)
    assert Roles.seen == [question]
    assert await client.ask(subscribe("a/#")) == packet(0x90, b"\x00\x01\x00")
    await client.ask(publish("a/1") * 3)
    assert Roles.seen == [question, ("bob", "b1", "a", "a/#", Action.SUBSCRIBE), question]


async def test_a_client_that_comes_back_finds_its_gate_unless_a_plugin_would_see_another(
    build: Build,
) -> None:
    house = build({here(Roles): {}})

    async def contexts(password: str) -> int:
        client = await house.join("bob", password, "b1")
        await client.ask(publish("a/1"))
        client.connection.on_closed()
        # One of the publish contexts is the broker's own.
        return len(list(house.broker.vhosts["/"].contexts)) - 1

    assert [await contexts(role) for role in ("a", "a", "b")] == [1, 1, 2]
    assert house.fates() == {"unroutable": 2, "denied": 1}


async def test_without_topic_plugins_a_user_has_one_gate_however_many_clients(build: Build) -> None:
    house = build({ANONYMOUS: {}})
    for number in range(4):
        await house.join("bob", f"any {number}", f"b{number}")
    [_, context] = house.broker.vhosts["/"].contexts
    assert (context.users, context.identity.name) == (4, "bob")


async def test_identities_that_are_remembered_are_bounded(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "MAX_IDENTITIES", 3)
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
    house.authenticator.authenticate(
        credentials, lambda verdict: heard.set_result(verdict.identity)
    )
    return await heard
