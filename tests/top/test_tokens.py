"""Tests of logins with JSON Web Tokens: users, permissions, refusals, and expiration."""

from __future__ import annotations

import base64
import hmac
import json
import time
from pathlib import Path
from typing import Any

import mqtt5
import pamqp.commands as spec
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey

from broker.access.identity import READ_ALL, READ_NONE, Credentials
from broker.errors import AccessRefused
from tests.clients import marshal, mqtt_publish
from tests.top.conftest import Start
from tests.top.running import Running
from tests.wire.mqtt5.client import read
from trellis.auth.tokens.authenticator import Tokens, token_of
from trellis.auth.tokens.identity import TokenGrants, TokenIdentity
from trellis.auth.tokens.scopes import Scope
from trellis.settings import SettingsError
from trellis.settings.tokens import Jwt

KEY = RSAKey.generate_key(2048, {"kid": "one"})
OTHER = RSAKey.generate_key(2048, {"kid": "two"})
CURVE = ECKey.generate_key("P-256", {"kid": "curve"})
EVERYTHING = "configure:*/* write:*/* read:*/*"


def token(
    key: Any = KEY,
    algorithm: str = "RS256",
    kid: str | None = "one",
    without: str = "",
    **claims: Any,
) -> str:
    payload = {
        "sub": "ann",
        "aud": "trellis",
        "exp": int(time.time()) + 100,
        "scope": EVERYTHING,
    } | claims
    payload.pop(without, None)
    return jwt.encode(
        {"alg": algorithm} | ({"kid": kid} if kid else {}), payload, key, algorithms=[algorithm]
    )


def confused() -> str:
    """Return a forged token: HS256, with the server's public key as the shared secret.

    A server that lets the token choose the algorithm would accept it (algorithm confusion).
    """
    body = token().split(".")[1]
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"one"}').decode().rstrip("=")
    digest = hmac.digest(KEY.as_pem(private=False), f"{head}.{body}".encode(), "sha256")
    return f"{head}.{body}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(KeySet([KEY, CURVE]).as_dict(private=False)))
    return file


# -- tokens


def test_token_names_its_user_and_permissions(keys: Path) -> None:
    who = Tokens(Jwt(keys=str(keys), prefix="t.")).identity(
        token(
            scope="t.write:%2F/amq.*/a.* t.read:*/q t.tag:monitoring other.read:*/* "
            "nonsense t.eat:*/*"
        ).encode()
    )
    assert (who.name, who.tags, who.administrator) == ("ann", ["monitoring"], False)
    here = who.for_vhost("/")
    assert here is not None and here is who.for_vhost("/")
    here.may("write", "exchange", "amq.topic", "/")
    here.may("read", "queue", "q", "/")
    for operation, name in (("write", "q"), ("read", "qq"), ("configure", "q")):
        with pytest.raises(AccessRefused, match="no scope of the token allows this access"):
            here.may(operation, "queue", name, "/")
    assert here.may_route("amq.topic", "a.b", b"a/b")
    assert not here.may_route("amq.topic", "b", b"b")
    assert who.for_vhost("elsewhere") is not None
    assert TokenIdentity("ann", TokenGrants([Scope("read:v/q")]), 0).for_vhost("/") is None


@pytest.mark.parametrize(
    ("scope", "key", "verdict"),
    [
        ("read:*/x/a.*", "a.b", READ_ALL),
        ("read:*/x/a.*", "a.*", READ_ALL),
        ("read:*/x/a.*", "b.#", READ_NONE),
        ("read:*/x/a.*", "#", READ_NONE),
        ("read:*/x/a.*", "a.#", READ_NONE),
        ("read:*/x/a*", "a.#", READ_ALL),
        ("read:*/x/a.*.c", "a.#.c", READ_NONE),
        ("read:*/x/a.#", "a.#", READ_NONE + READ_ALL),
        ("read:*/x", "#.#.a.#", READ_ALL),
        ("read:*/x", "#.#.#.#", READ_NONE),
        ("read:*/y", "a", READ_NONE),
        ("write:*/x", "a", READ_NONE),
    ],
)
def test_a_pattern_is_allowed_if_the_scope_covers_all_its_topics(
    scope: str, key: str, verdict: int
) -> None:
    who = TokenIdentity("ann", TokenGrants([Scope(scope)]), 0).for_vhost("/")
    assert who is not None
    assert who.read_scope("x", key, key, False) == verdict


def bad(name: str) -> str:
    now = int(time.time())
    return {
        "expired": token(exp=now - 100),
        "not yet": token(nbf=now + 100),
        "no end": token(without="exp"),
        "an odd end": token(exp="soon"),
        "a far end": token(exp=1e300),
        "a farther end": token(exp=10**400),
        "an infinite end": token(exp=float("inf")),
        "another audience": token(aud="other"),
        "no audience": token(without="aud"),
        "another issuer": token(iss="other"),
        "unknown": token(without="sub"),
        "another key": token(OTHER, kid="one"),
        "an unknown key": token(OTHER, kid="two"),
        "another algorithm": token(algorithm="RS512"),
        "our public key as a secret": confused(),
        "no signature": token().rpartition(".")[0] + ".",
        "none": "eyJhbGciOiJub25lIn0.e30.",
        "a broken one": token()[:-4] + "AAAA",
        "no JSON": "eyJ.e30.AA",
        "long": "eyJ" + "a" * 20_000 + ".e30.AA",
    }[name]


@pytest.mark.parametrize(
    "name",
    [
        "expired",
        "not yet",
        "no end",
        "an odd end",
        "a far end",
        "a farther end",
        "an infinite end",
        "another audience",
        "no audience",
        "another issuer",
        "unknown",
        "another key",
        "an unknown key",
        "another algorithm",
        "our public key as a secret",
        "no signature",
        "none",
        "a broken one",
        "no JSON",
        "long",
    ],
)
def test_an_invalid_token_names_no_user(keys: Path, name: str) -> None:
    tokens = Tokens(
        Jwt(
            keys=str(keys),
            issuer="home" if "issuer" in name else "",
            algorithms=("RS256", "ES256", "HS256"),
        )
    )
    with pytest.raises(ValueError):
        tokens.identity(bad(name).encode())


def test_keys_are_pem_or_a_jwks_and_a_token_may_name_none(keys: Path, tmp_path: Path) -> None:
    tokens = Tokens(Jwt(keys=str(keys)))
    assert tokens.identity(token(CURVE, "ES256", "curve").encode()).name == "ann"
    assert tokens.identity(token(CURVE, "ES256", None).encode()).name == "ann"
    pem = tmp_path / "keys.pem"
    pem.write_bytes(OTHER.as_pem(private=False) + CURVE.as_pem(private=False))
    tokens = Tokens(Jwt(keys=str(pem)))
    assert tokens.identity(token(OTHER, kid=None).encode()).name == "ann"
    assert tokens.identity(token(CURVE, "ES256", "curve").encode()).name == "ann"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "No such file"),
        ("", "must hold 1 to 64 keys, not 0"),
        ("{}", "must hold keys in PEM"),
        ("{", "must hold keys in PEM"),
        (
            "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----",
            "a key in PEM form is not a valid RSA, EC or OKP key",
        ),
    ],
)
def test_invalid_key_file_is_reported(tmp_path: Path, content: str | None, error: str) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError, match=error):
        Tokens(Jwt(keys=str(file)))


def test_a_token_is_a_password_or_a_name_without_one() -> None:
    some = b"eyJhbGciOiJub25lIn0.e30.AA"
    assert token_of(Credentials("ann", some, "/", "", True)) == some
    assert token_of(Credentials(some.decode(), b"", "/", "", True)) == some
    assert token_of(Credentials("ann", b"secret.with.dots", "/", "", True)) == b""
    assert token_of(Credentials("ann", b"", "/", "", True)) == b""


def write(file: Path, text: str) -> None:
    file.write_text(text)


# -- logins


async def start_with(start: Start, keys: Path) -> Running:
    return await start(jwt={"keys": str(keys)})


async def test_tokens_let_clients_in_over_every_protocol(start: Start, keys: Path) -> None:
    running = await start_with(start, keys)
    amqp = await running.amqp("anybody", token())
    by_name = await running.mqtt("b", user=f"{token(sub='bob', scope='read:*/*/b write:*/*/b')}/")
    await by_name.subscribe("b")
    await amqp.socket.send(b"")
    await by_name.socket.send(mqtt_publish("a", b"no") + mqtt_publish("b", b"yes"))
    assert await by_name.packet() == (0x30, b"\x00\x01byes")
    rows = {
        row["user"]
        for front in running.node.fronts
        for row in [one.describe() for one in front.connections]
    }
    assert rows == {"ann", "bob"}
    for scope, expected in (("read:*/*", 403), ("tag:management", 200)):
        status, _, _ = await running.ask(
            "http",
            f"GET /api/overview HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token(scope=scope)}"
            "\r\n\r\n".encode(),
        )
        assert status == expected
    assert (
        await running.get("http", "/api/overview", f"Authorization: Bearer {bad('expired')}\r\n")
    )[0] == 401
    await running.amqp()


async def test_a_connection_ends_with_its_token_unless_a_new_one_comes(
    start: Start, keys: Path
) -> None:
    running = await start_with(start, keys)
    # The token has expired, but is accepted for 2 s to 3 s more, because the leeway is 10 s. Within
    # this time, three clients must log in, also on a busy machine.
    soon = int(time.time()) - 7
    ends, stays = (
        await running.amqp("ann", token(exp=soon)),
        await running.amqp("ann", token(exp=soon)),
    )
    mqtt = await running.mqtt("c", user=f"ann/{token(exp=soon)}")
    await stays.socket.send(marshal(0, spec.Connection.UpdateSecret(token(), "renewed")))
    await stays.expect(spec.Connection.UpdateSecretOk)
    close = await ends.expect(spec.Connection.Close)
    assert (close.reply_code, close.reply_text) == (
        320,
        "CONNECTION_FORCED - the token has expired",
    )
    assert await mqtt.socket.read() == b""
    await stays.queue("q")


async def test_a_new_secret_of_another_user_is_refused_and_one_with_less_permits_less(
    start: Start, keys: Path
) -> None:
    running = await start_with(start, keys)
    client = await running.amqp("ann", token())
    await client.queue("q")
    await client.call(spec.Basic.Consume(queue="q", consumer_tag="t"), spec.Basic.ConsumeOk)
    await client.socket.send(
        marshal(0, spec.Connection.UpdateSecret(token(scope="read:*/other"), "less"))
    )
    await client.expect(spec.Connection.UpdateSecretOk)
    assert (await client.expect(spec.Channel.Close)).reply_code == 403
    await client.socket.send(marshal(0, spec.Connection.UpdateSecret(token(sub="bob"), "another")))
    assert (await client.expect(spec.Connection.Close)).reply_code == 530


async def test_mqtt_5_proves_itself_by_auth_and_again(start: Start, keys: Path) -> None:
    running = await start_with(start, keys)
    socket = await running.socket("mqtt")
    soon = int(time.time()) - 9
    await socket.send(
        mqtt5.ConnectPacket(
            "c", authentication_method="JWT", authentication_data=token(exp=soon).encode()
        ).write()
    )
    (connack,) = read(await socket.read())
    assert connack.reason_code == 0
    await socket.send(
        mqtt5.AuthPacket(
            reason_code=mqtt5.AuthReasonCode.RE_AUTHENTICATE,
            authentication_method="JWT",
            authentication_data=token().encode(),
        ).write()
    )
    (auth,) = read(await socket.read())
    assert auth.reason_code == 0
    (connection,) = running.node.mqtt.connections
    assert connection.expires > running.node.broker.agenda.now + 50_000
    await socket.send(
        mqtt5.AuthPacket(
            reason_code=mqtt5.AuthReasonCode.RE_AUTHENTICATE,
            authentication_method="JWT",
            authentication_data=bad("expired").encode(),
        ).write()
    )
    (farewell,) = read(await socket.read())
    assert farewell.reason_code == 0x87


async def test_keys_are_read_again(start: Start, keys: Path) -> None:
    running = await start_with(start, keys)
    write(keys, json.dumps(KeySet([OTHER]).as_dict(private=False)))
    await running.reload(running.chosen)
    await running.amqp("ann", token(OTHER, kid="two"))
    with pytest.raises(AssertionError):
        await running.amqp("ann", token())
    write(keys, "nonsense")
    with pytest.raises(SettingsError):
        running.node.tokens.use(Tokens(running.chosen.jwt))  # type: ignore[union-attr]
    await running.amqp("ann", token(OTHER, kid="two"))
