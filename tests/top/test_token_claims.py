"""Tests of what claims grant: scopes, aliases, tags, virtual hosts, roles and topic rules."""

from __future__ import annotations

import json
import string
import time
from pathlib import Path
from typing import Any

import mqtt5
import pamqp.commands as spec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import KeySet

from broker.access.identity import READ_ALL, READ_NONE, READ_SOME, Identity
from broker.access.roles import RoleGrant
from broker.access.rules import DENY_ALL
from protocols.amqp.connection.handshake import GREETING
from tests.clients import marshal, start_ok
from tests.top.api_client import users
from tests.top.commands import Commands
from tests.top.conftest import Start
from tests.top.providers import rsa_key, signed
from tests.top.running import Running
from tests.wire.mqtt5.client import read
from trellis.auth.tokens.claims import ClaimMapping, claim
from trellis.auth.tokens.identity import TokenIdentity
from trellis.auth.tokens.refusal import TokenRefused
from trellis.auth.tokens.scopes import Glob
from trellis.settings.tokens import Jwt

KEY = rsa_key("one")
LETTERS = st.text(string.ascii_letters + "*%/é#. ", max_size=12)


def user_of(claims: dict[str, Any], **settings: Any) -> TokenIdentity:
    """Return the user of accepted claims."""
    mapping = ClaimMapping(Jwt(**settings))
    claims = {"sub": "ann"} | claims
    return TokenIdentity("ann", mapping.grants("ann", claims), 0)


def within(identity: TokenIdentity, vhost: str = "/", client_id: str = "c") -> Identity:
    narrowed = identity.for_vhost(vhost, client_id)
    assert narrowed is not None and identity.for_vhost(vhost, client_id) is narrowed
    return narrowed


# -- patterns of scopes


@given(st.lists(LETTERS.map(lambda text: text.replace("*", "").replace("%", "")), min_size=1))
def test_a_pattern_matches_its_pieces_with_any_text_between(pieces: list[str]) -> None:
    pattern = Glob("*".join(pieces))
    assert pattern.matches("".join(pieces)) or len(pieces) == 1
    assert pattern.matches("x*".join(pieces)) == (len(pieces) > 1 or "x*".join(pieces) == pieces[0])
    assert pattern.matches_all == (len(pieces) > 1 and not any(pieces))


def test_a_hostile_pattern_takes_linear_time() -> None:
    assert not Glob("*a" * 5_000 + "b").matches("a" * 60_000)
    assert Glob("a*b*").matches("axxb") and not Glob("a*a").matches("a")


# -- claims


def test_a_claim_may_be_nested_and_an_exact_name_wins() -> None:
    claims = {"a": {"b": [1]}, "a.b": "exact", "https://x/y": 2, "t": "text"}
    assert claim(claims, "a.b") == "exact"
    assert claim({"a": {"b": [1]}}, "a.b") == [1]
    assert claim(claims, "https://x/y") == 2
    assert claim(claims, "t.b") is None
    assert claim(claims, "missing") is None


def test_scopes_come_from_several_claims_and_aliases() -> None:
    user = user_of(
        {
            "scope": "openid t.read:*/q staff",
            "realm_access": {"roles": ["staff", 7, "other", "configure:*/*"]},
        },
        prefix="t.",
        scopes="scope realm_access.roles",
        aliases=("staff=tag:monitoring write:%2F/amq.topic/staff.*",),
        grants=("read:*/${sub}-*",),
    )
    assert user.tags == ["monitoring", "monitoring"]
    texts = [scope.text for scope in user.grants.scopes]
    assert texts == [
        "read:*/ann-*",
        "read:*/q",
        "write:%2F/amq.topic/staff.*",
        "write:%2F/amq.topic/staff.*",
    ]
    assert within(user).may_route("amq.topic", "staff.x", b"staff/x")


@pytest.mark.parametrize(
    ("scope", "claims", "expected"),
    [
        ("read:*/x/dev.${sub}.*", {"sub": "pump-7"}, "read:*/x/dev.pump-7.*"),
        ("read:*/x/dev.${n}.*", {"n": 7}, "read:*/x/dev.7.*"),
        ("read:*/x/dev.${a.b}", {"a": {"b": "c"}}, "read:*/x/dev.c"),
        ("read:${v}/q", {"v": "a/b*"}, "read:a%2Fb%2A/q"),
        ("read:*/x/dev.${sub}.*", {"sub": "#"}, None),
        ("read:*/x/dev.${sub}.*", {"sub": "*"}, None),
        ("read:*/x/dev.${sub}.*", {"sub": "a.b"}, None),
        ("read:*/x/dev.${sub}.*", {"sub": "a/b"}, None),
        ("read:*/x/dev.${sub}.*", {"sub": ""}, None),
        ("read:*/x/${missing}", {}, None),
        ("read:*/x/${flag}", {"flag": True}, None),
        ("read:*/x/${list}", {"list": ["a"]}, None),
        ("read:*/x/${sub}", {"sub": "\ud800"}, None),
    ],
)
def test_a_placeholder_is_one_word_taken_literally(
    scope: str, claims: dict[str, Any], expected: str | None
) -> None:
    scopes = user_of(claims, grants=(scope,)).grants.scopes
    assert [one.text for one in scopes] == ([expected] if expected else [])


@given(LETTERS)
def test_no_value_of_a_claim_permits_the_topics_of_another_user(value: str) -> None:
    user = user_of({"sub": value}, grants=("read:*/x/dev.${sub}.*",))
    identity = user.for_vhost("/")
    for key in ("dev.victim.a", "dev.#", "dev.*.a", "dev.victim.#"):
        assert identity is None or identity.read_scope("x", key, key, False) == READ_NONE
    rules = within(user_of({"sub": value}, topic_rules=("allow all dev/${sub}/#",)))
    assert not rules.may_publish(b"dev/victim/a")
    assert rules.read_scope("amq.topic", "dev.#", "dev/#", True) != READ_ALL


# -- topic rules


@pytest.mark.parametrize(
    "acl",
    [
        ["allow publish up/{client_id}/#", "allow subscribe down/#"],
        [
            {"permission": "allow", "action": "publish", "topic": "up/${clientid}/#"},
            {"permission": "allow", "action": "subscribe", "topic": "down/#"},
        ],
        {"pub": ["up/%c/#"], "sub": "down/#"},
    ],
)
def test_topic_rules_are_texts_or_have_the_form_of_emqx(acl: Any) -> None:
    user = user_of({"acl": acl}, rules="acl")
    c, d = within(user, client_id="c"), within(user, client_id="d")
    assert c.may_publish(b"up/c/1") and not d.may_publish(b"up/c/1")
    assert not c.may_publish(b"down/1")
    assert c.read_scope("amq.topic", "down.x", "down/x", True) == READ_ALL
    assert c.allows("write", "exchange", "amq.topic", "/")
    for operation, name in (("configure", "q"), ("read", "q"), ("write", "amq.fanout")):
        assert not c.allows(operation, "queue", name, "/")
    assert user.for_vhost("other") is None


def test_rules_and_scopes_must_both_permit() -> None:
    user = user_of(
        {"scope": "write:*/*/a.* read:*/*/a.*", "acl": ["deny all a/secret/#", "allow all #"]},
        rules="acl",
    )
    here = within(user)
    assert here.may_route("x", "a.b", b"a/b")
    assert not here.may_route("x", "a.secret.b", b"a/secret/b")
    assert not here.may_route("x", "b", b"b")
    assert here.read_scope("x", "a.*", "a/+", True) in (READ_SOME, READ_ALL)
    assert here.read_scope("x", "b", "b", True) == READ_NONE
    assert not here.may_publish_everything("x") and not here.may_read_everything()
    assert not here.allows("configure", "queue", "q", "/")
    assert here.may_read(b"a/b") and not here.may_read(b"a/secret/b")
    # In another virtual host, the rules do not apply, and the scopes do.
    assert within(user, "other").may_route("x", "a.secret.b", b"a/secret/b")


def test_rules_that_permit_nothing_are_not_the_same_as_no_rules() -> None:
    nothing: list[Any] = [[], {}, ["allow all x/${missing}"]]
    for acl in nothing:
        user = user_of({"acl": acl, "scope": "read:*/* write:*/*"}, rules="acl")
        assert list(user.grants.rules) == [DENY_ALL]
        assert not within(user).may_route("amq.topic", "a", b"a")
    assert user_of({}, rules="acl").grants.rules == []


def test_a_deny_rule_with_a_missing_claim_denies_all_values() -> None:
    rules = ("deny all team/${team}/#", "allow all #")
    here = within(user_of({}, topic_rules=rules))
    assert not here.may_publish(b"team/red/x") and here.may_publish(b"other")


@pytest.mark.parametrize(
    "acl",
    [
        7,
        ["fly to/#"],
        [7],
        [{"permission": "maybe", "action": "publish", "topic": "a"}],
        [{"permission": "allow"}],
        {"push": ["a"]},
        {"pub": 7},
        ["reserve client x"],
        ["allow all a/#/b"],
        ["allow all a/{user}"],
        ["allow all a"] * 201,
    ],
)
def test_a_wrong_list_of_rules_refuses_the_token(acl: Any) -> None:
    with pytest.raises(TokenRefused) as caught:
        user_of({"acl": acl}, rules="acl")
    assert caught.value.part == "acl"


def test_a_setting_of_rules_applies_before_the_rules_of_the_token() -> None:
    user = user_of({"acl": ["allow all #"]}, rules="acl", topic_rules=("deny all internal/#",))
    assert not within(user).may_publish(b"internal/x") and within(user).may_publish(b"x")


@pytest.mark.parametrize("vhosts", [None, [], "", ["a" * 256], 7])
def test_a_token_without_a_valid_virtual_host_is_refused(vhosts: Any) -> None:
    with pytest.raises(TokenRefused, match="virtual host"):
        user_of({"vh": vhosts}, vhost="vh")


# -- a broker


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(KeySet([KEY]).as_dict(private=False)))
    return file


async def start_with(start: Start, keys: Path, **settings: Any) -> Running:
    return await start(jwt={"keys": str(keys), **settings})


async def connect(running: Running, client_id: str, token: str) -> tuple[Any, Any]:
    """Log an MQTT 5 client in with the method JWT; return its socket and the answer."""
    socket = await running.socket("mqtt")
    await socket.send(
        mqtt5.ConnectPacket(
            client_id, authentication_method="JWT", authentication_data=token.encode()
        ).write()
    )
    (answer,) = read(await socket.read())
    return socket, answer


async def test_a_token_names_the_virtual_host_and_the_role(start: Start, keys: Path) -> None:
    running = await start_with(start, keys, vhost="tenant", role="groups")
    broker = running.node.broker
    broker.create_vhost("red")
    topic = "^amq\\.topic$"
    broker.users.define_role(
        "devices", {"red": RoleGrant(("", topic, topic), ["allow all dev/{username}/#"])}
    )
    token = signed(KEY, tenant="red", groups=["unknown", "devices"], scope="")
    socket, answer = await connect(running, "d1", token)
    assert answer.reason_code == 0
    (connection,) = running.node.mqtt.connections
    assert connection.describe()["vhost"] == "red"
    await socket.send(mqtt5.SubscribePacket(1, [mqtt5.TopicFilter("dev/ann/#")]).write())
    (suback,) = read(await socket.read())
    assert list(suback.reason_codes) == [2]
    # A change of the role takes effect at once.
    broker.users.define_role(
        "devices", {"red": RoleGrant(("", topic, topic), ["allow all other/#"])}
    )
    (farewell,) = read(await socket.read())
    assert farewell.reason_code == 0x87
    _, refused = await connect(running, "d2", signed(KEY, tenant="blue", groups=["devices"]))
    assert refused.reason_code == 0x87


async def test_the_deletion_of_a_role_applies_to_the_clients_whose_tokens_name_it(
    start: Start, keys: Path
) -> None:
    running = await start_with(start, keys, role="groups")
    users = running.node.broker.users
    users.define_role("devices", {"/": RoleGrant((".*", ".*", ".*"), [])})
    socket, answer = await connect(running, "d1", signed(KEY, groups=["devices"], scope=""))
    assert answer.reason_code == 0
    assert users.remove_role("devices")
    (farewell,) = read(await socket.read())
    assert farewell.reason_code == 0x87


async def test_a_connection_ends_at_the_end_of_its_token_with_the_right_reason(
    start: Start, keys: Path
) -> None:
    running = await start_with(start, keys)
    socket, answer = await connect(running, "c", signed(KEY, exp=int(time.time()) - 8))
    assert answer.reason_code == 0
    (farewell,) = read(await socket.read())
    assert (type(farewell).__name__, farewell.reason_code) == ("DisconnectPacket", 0xA0)
    assert await socket.read() == b""


async def test_another_user_may_not_take_the_session_by_reauthentication(
    start: Start, keys: Path
) -> None:
    running = await start_with(start, keys)
    socket, _ = await connect(running, "c", signed(KEY))
    await socket.send(
        mqtt5.AuthPacket(
            reason_code=mqtt5.AuthReasonCode.RE_AUTHENTICATE,
            authentication_method="JWT",
            authentication_data=signed(KEY, sub="bob").encode(),
        ).write()
    )
    (farewell,) = read(await socket.read())
    assert farewell.reason_code == 0x87
    (refusal,) = running.node.refusals.recent
    assert "as another user" in refusal.fields["note"]


async def test_the_log_names_the_user_and_the_reason_but_not_the_token(
    start: Start, keys: Path
) -> None:
    running = await start_with(start, keys)
    bad = signed(KEY, aud="billing")
    client = await running.socket("amqp")
    await client.send(GREETING)
    await client.read()
    await client.send(start_ok(bad, ""))
    assert b"ACCESS_REFUSED" in await client.read() or await client.read() == b""
    (refusal,) = running.node.refusals.recent
    assert refusal.fields["user"] == "(a token)"
    note = refusal.fields["note"]
    assert "the audience (claim aud) is 'billing', must be 'trellis'" in note
    assert "names the user 'ann'" in note and bad[:40] not in str(refusal.fields)


async def test_less_rights_in_a_new_secret_apply_to_topic_rules(start: Start, keys: Path) -> None:
    running = await start_with(start, keys, rules="acl")
    client = await running.amqp("x", signed(KEY))
    await client.queue("q", "amq.topic", "a.#")
    await client.socket.send(
        marshal(0, spec.Connection.UpdateSecret(signed(KEY, acl=["allow all b/#"]), "less"))
    )
    await client.expect(spec.Connection.UpdateSecretOk)
    await client.socket.send(
        marshal(1, spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key="a.b"))
    )
    assert (await client.expect(spec.Channel.Close)).reply_code == 403


async def test_trellis_why_names_the_claim(
    start: Start, keys: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start(**users(), jwt={"keys": str(keys)})
    _, refused = await connect(running, "c", signed(KEY, exp=1_000))
    assert refused.reason_code == 0x87
    code, out, _ = await Commands(running, capsys, monkeypatch).run("why", "client", "c")
    assert code == 1
    assert "invalid token: the token expired at 1970-01-01T00:16:40Z (claim exp)" in out
