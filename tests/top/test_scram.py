"""Tests of the MQTT 5 authentication method SCRAM-SHA-256, with the client of scramp."""

from __future__ import annotations

import asyncio
import base64
import errno
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mqtt5
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp import ScramClient, ScramMechanism

from tests.top.conftest import Start
from tests.top.running import KNOWN, Running, Socket
from tests.wire.mqtt5.client import read
from trellis.auth.passwords import check_hash, scram_hash, show_hash, verify
from trellis.auth.private_files import SCRAM_SECRET_BYTES, SCRAM_SECRET_FILE, scram_secret
from trellis.auth.scram import MAX_MESSAGE, METHOD
from trellis.settings import SettingsError, load

PASSWORD = "pencil"
#: The hash of `pencil` with the salt and the iterations of the example in RFC 7677, section 3.
EXAMPLE = (
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:"
    "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
)
USERS: list[dict[str, Any]] = [
    KNOWN,
    {"name": "ann", "password_hash": EXAMPLE},
    {"name": "bob", "password_hash": scram_hash(b"secret")},
    {"name": "here", "password_hash": EXAMPLE, "loopback_only": True},
]


class Scram:
    """An MQTT 5 client that logs in by SCRAM-SHA-256."""

    def __init__(self, socket: Socket, user: str = "ann", password: str = PASSWORD) -> None:
        self.socket = socket
        self.peer = ScramClient([METHOD], user, password)

    async def packet(self) -> Any:
        (packet,) = read(await self.socket.read())
        return packet

    async def connect(self, name: str | None = None, first: bytes | None = None) -> Any:
        """Send CONNECT with the first message; return the answer."""
        data = self.peer.get_client_first().encode() if first is None else first
        await self.socket.send(
            mqtt5.ConnectPacket(
                "", username=name, authentication_method=METHOD, authentication_data=data
            ).write()
        )
        return await self.packet()

    async def auth(self, data: bytes, code: int = 0x18) -> Any:
        """Send AUTH with data and a reason code; return the answer."""
        await self.socket.send(
            mqtt5.AuthPacket(
                reason_code=mqtt5.AuthReasonCode(code),
                authentication_method=METHOD,
                authentication_data=data,
            ).write()
        )
        return await self.packet()

    async def prove(self, challenge: Any) -> Any:
        """Answer the challenge of the broker with the proof; return the broker's answer."""
        assert challenge.reason_code == 0x18
        self.peer.set_server_first(challenge.authentication_data.decode())
        return await self.auth(self.peer.get_client_final().encode())


@pytest.fixture
def log_in(start: Start) -> Callable[..., Any]:
    """Return a function that starts a broker and logs a client in.

    The function returns (broker, client, the broker's last answer).
    """

    async def run(
        user: str = "ann", password: str = PASSWORD, name: str | None = None
    ) -> tuple[Running, Scram, Any]:
        running = await start(users=USERS)
        client = Scram(await running.socket("mqtt"), user, password)
        return running, client, await client.prove(await client.connect(name))

    return run


async def test_both_sides_prove_that_they_know_the_password(log_in: Callable[..., Any]) -> None:
    running, client, connack = await log_in()
    assert connack.reason_code == 0 and connack.authentication_method == METHOD
    client.peer.set_server_final(connack.authentication_data.decode())
    (connection,) = running.node.mqtt.connections
    assert connection.describe()["user"] == "ann"


@pytest.mark.parametrize(
    ("user", "password", "name", "note"),
    [
        ("ann", "wrong", None, "the password is wrong (SCRAM proof)"),
        ("nemo", PASSWORD, None, "no user is named 'nemo'"),
        ("known", "known", None, "`trellis hash-password --scram`"),
        ("ann", PASSWORD, "bob", "the CONNECT packet names the user 'bob'"),
    ],
)
async def test_a_refused_client_does_not_learn_why(
    log_in: Callable[..., Any], user: str, password: str, name: str | None, note: str
) -> None:
    running, _, connack = await log_in(user, password, name)
    assert (connack.reason_code, connack.authentication_data) == (0x86, None)
    (refusal,) = running.node.refusals.recent
    assert refusal.fields["user"] == user and note in refusal.fields["note"]
    assert len(running.node.accounts.login_throttle.users) == 1


async def salts_of(running: Running, *users: str) -> list[str]:
    """Return the salt in the challenge to each user."""
    salts = []
    for user in users:
        client = Scram(await running.socket("mqtt"), user)
        challenge = (await client.connect()).authentication_data.decode()
        fields = dict(part.split("=", 1) for part in challenge.split(","))
        assert fields["i"] == "15000" and len(base64.b64decode(fields["s"])) == 16
        salts.append(fields["s"])
    return salts


async def test_the_challenge_does_not_show_which_users_exist(start: Start) -> None:
    running = await start(users=USERS)
    salts = await salts_of(running, "nemo", "nemo", "ghost", "bob")
    assert salts[0] == salts[1] and len(set(salts)) == 3


async def test_the_challenge_of_an_unknown_user_is_the_same_after_a_restart(
    start: Start, tmp_path: Path
) -> None:
    salts = []
    for name in ("a", "a", "b"):
        running = await start(users=USERS, data={"dir": str(tmp_path / name)})
        salts += await salts_of(running, "nemo")
        await running.stop()
    assert salts[0] == salts[1] != salts[2]
    file = tmp_path / "a" / SCRAM_SECRET_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(file.read_bytes()) == SCRAM_SECRET_BYTES
    # Without a data directory, each process has a secret of its own.
    first, second = [await salts_of(await start(users=USERS), "nemo") for _ in range(2)]
    assert first != second


def test_a_damaged_secret_is_reported_and_an_unwritable_one_is_kept_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / SCRAM_SECRET_FILE
    file.write_bytes(b"short")
    with pytest.raises(SettingsError, match="has 5 bytes instead of 32; restore the file from a "):
        scram_secret(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(SettingsError, match=r"cannot be read \(Is a directory\)"):
        scram_secret(tmp_path)
    file.rmdir()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        secret = scram_secret(tmp_path)
    assert len(secret) == SCRAM_SECRET_BYTES and not file.exists()
    (record,) = caplog.records
    assert record.getMessage().startswith("scram_secret_unwritten ")
    # The disk has space again: the next start writes the file.
    assert scram_secret(tmp_path) == file.read_bytes() != secret


async def test_a_user_name_may_begin_with_the_virtual_host(start: Start) -> None:
    running = await start(users=[{**USERS[1], "vhosts": ["red"]}])
    running.node.broker.create_vhost("red")
    client = Scram(await running.socket("mqtt"))
    assert (await client.prove(await client.connect("red:ann"))).reason_code == 0
    (connection,) = running.node.mqtt.connections
    assert connection.describe()["vhost"] == "red"


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff",
        b"n,,",
        b"n,,n=ann",
        b"n,,n=ann,r=",
        b"n,,n=ann,r=x,r=y",
        b"n,,n=an=n,r=x",
        b"n,,m=ext,n=ann,r=x",
        b"n,a=bob,n=ann,r=x",
        b"p=tls-unique,,n=ann,r=x",
        b"x,,n=ann,r=x",
        b"n,,n=ann,r=" + b"x" * MAX_MESSAGE,
    ],
)
async def test_a_malformed_first_message_is_refused(start: Start, first: bytes) -> None:
    running = await start(users=USERS)
    client = Scram(await running.socket("mqtt"))
    answer = await client.connect(first=first)
    assert (type(answer).__name__, answer.reason_code) == ("ConnAckPacket", 0x87)
    await running.mqtt("another")


async def test_a_replayed_proof_is_refused(start: Start) -> None:
    running = await start(users=USERS)
    client = Scram(await running.socket("mqtt"))
    first = client.peer.get_client_first().encode()
    challenge = await client.connect(first=first)
    client.peer.set_server_first(challenge.authentication_data.decode())
    final = client.peer.get_client_final().encode()
    assert (await client.auth(final)).reason_code == 0
    thief = Scram(await running.socket("mqtt"))
    await thief.connect(first=first)
    assert (await thief.auth(final)).reason_code == 0x86


async def test_a_client_can_authenticate_again_but_not_as_another_user(
    log_in: Callable[..., Any],
) -> None:
    _, client, _ = await log_in()
    again = Scram(client.socket)
    challenge = await again.auth(again.peer.get_client_first().encode(), 0x19)
    success = await again.prove(challenge)
    assert (type(success).__name__, success.reason_code) == ("AuthPacket", 0)
    again.peer.set_server_final(success.authentication_data.decode())
    other = Scram(client.socket, "bob", "secret")
    challenge = await other.auth(other.peer.get_client_first().encode(), 0x19)
    farewell = await other.prove(challenge)
    assert (type(farewell).__name__, farewell.reason_code) == ("DisconnectPacket", 0x87)
    assert await client.socket.read() == b""


async def test_a_password_that_changes_during_the_login_ends_it(start: Start) -> None:
    running = await start()
    users = running.node.broker.users
    users.define("eve", EXAMPLE, ["administrator"])
    users.set_permission("/", "eve", ".*", ".*", ".*")
    for changed, code in ((False, 0), (True, 0x86)):
        client = Scram(await running.socket("mqtt"), "eve")
        challenge = await client.connect()
        if changed:
            users.define("eve", scram_hash(b"new"), [])
        assert (await client.prove(challenge)).reason_code == code


async def test_guesses_of_many_connections_are_throttled(start: Start) -> None:
    running = await start(users=USERS)
    clients = [Scram(await running.socket("mqtt"), "ann", "wrong") for _ in range(12)]
    finals = []
    for client in clients:
        challenge = await client.connect()
        client.peer.set_server_first(challenge.authentication_data.decode())
        finals.append(client.peer.get_client_final().encode())
    for client, final in zip(clients, finals, strict=True):
        await client.socket.send(
            mqtt5.AuthPacket(
                reason_code=mqtt5.AuthReasonCode.CONTINUE_AUTHENTICATION,
                authentication_method=METHOD,
                authentication_data=final,
            ).write()
        )
    assert (await clients[0].packet()).reason_code == 0x86
    throttle = running.node.accounts.login_throttle
    await running.until(lambda: throttle.throttled > 0)
    assert throttle.users.count("ann", asyncio.get_running_loop().time()) >= 4


async def test_the_password_itself_still_logs_in(start: Start) -> None:
    running = await start(users=USERS)
    await running.amqp("ann", PASSWORD)
    await running.mqtt("c", user=f"ann/{PASSWORD}")


async def test_another_method_is_not_known(start: Start) -> None:
    running = await start(users=USERS)
    socket = await running.socket("mqtt")
    await socket.send(
        mqtt5.ConnectPacket(
            "", authentication_method="SCRAM-SHA-1", authentication_data=b"n,,n=ann,r=x"
        ).write()
    )
    (connack,) = read(await socket.read())
    assert connack.reason_code == 0x8C


# -- hashes


@settings(max_examples=20, deadline=None)
@given(st.text(min_size=1, max_size=20))
def test_a_hash_accepts_its_password(password: str) -> None:
    data = password.encode("utf-8", "surrogatepass")
    stored_hash = scram_hash(data)
    assert (
        verify(stored_hash, data)
        and not verify(stored_hash, data + b"x")
        and not verify(stored_hash, b"")
    )


def test_a_hash_is_the_one_that_clients_compute() -> None:
    assert verify(EXAMPLE, b"pencil")
    # SASLprep (RFC 4013): the client normalizes the password.
    stored_hash = scram_hash("I\u00adX\u2168".encode())
    mechanism = ScramMechanism(METHOD)
    iterations, salt = (
        int(stored_hash.split("$")[1].split(":")[0]),
        stored_hash.split(":")[1].split("$")[0],
    )
    salt_bytes = base64.b64decode(salt)
    _, stored_key, server_key, _ = mechanism.make_auth_info("IXIX", iterations, salt_bytes)
    texts = [base64.b64encode(key).decode() for key in (stored_key, server_key)]
    assert stored_hash.endswith("$" + ":".join(texts))


def test_a_hash_is_imported_and_exported() -> None:
    assert check_hash(EXAMPLE, "scram-sha-256") == EXAMPLE == check_hash(EXAMPLE, "")
    assert show_hash(EXAMPLE) == (EXAMPLE, "scram-sha-256")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("4096", "4095"), "4095 iterations"),
        (("4096", "1000001"), "1000001 iterations"),
        (("W22ZaJ0SNY7soEsUEjb6gQ==", "AAAA"), "salt of the SCRAM hash has 3 bytes"),
        (("WG5d", "W!5d"), "not base64"),
        (("WG5d", ""), "29|keys"),
        (("$WG5d", "WG5d"), "the hash is not SCRAM-SHA-256"),
    ],
)
def test_a_wrong_hash_is_refused(change: tuple[str, str], reason: str, tmp_path: Path) -> None:
    wrong = EXAMPLE.replace(*change)
    with pytest.raises(ValueError, match=reason):
        check_hash(wrong, "")
    file = tmp_path / "broker.toml"
    file.write_text(f'[[users]]\nname = "ann"\npassword_hash = "{wrong}"\n')
    with pytest.raises(SettingsError, match="output of `trellis hash-password`"):
        load([str(file)], {}, {})
