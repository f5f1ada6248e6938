"""Tests of remembered passwords: the password of a client that reconnects is not hashed again."""

from __future__ import annotations

from typing import Final

import pytest

from tests.password_hashes import CHEAP
from tests.top.clocks import in_jumping_loop, jump
from tests.top.running import KNOWN, Amqp0, Running, Socket, settings
from tests.wire.mqtt.client import ACCEPTED, connect
from trellis.auth.remembered_passwords import RememberedPasswords

#: Number of devices, each with a user of its own; every fifth of them speaks AMQP.
DEVICES: Final = 50
#: REMEMBER is the number of seconds for which a password is remembered; LESS and MORE are a little
#: less and a little more.
REMEMBER: Final = 300
LESS: Final = REMEMBER - 20
MORE: Final = REMEMBER + 1


def users(count: int, password_hash: object = KNOWN["password_hash"]) -> list[dict[str, object]]:
    return [{"name": f"d{n}", "password_hash": password_hash} for n in range(count)]


async def device(running: Running, number: int, password: str = "known") -> Socket:
    """Connect a device, and return its socket."""
    user = f"d{number}"
    if number % 5 == 4:
        client = Amqp0(await running.socket("amqp"))
        await client.log_in(user, password, 0)
        return client.socket
    socket = await running.socket("mqtt")
    await socket.send(connect(user, keep_alive=0, user=user, password=password.encode()))
    assert await socket.exactly(4) == ACCEPTED
    return socket


async def disconnect(running: Running, devices: list[Socket]) -> None:
    """Close the sockets of all devices, and wait until the broker has closed their links."""
    for socket in devices:
        socket.close()
    await running.until(lambda: not running.links)


def test_devices_that_were_connected_for_long_reconnect_without_a_hash() -> None:
    async def steps(running: Running) -> None:
        accounts = running.node.accounts
        devices = [await device(running, n) for n in range(DEVICES)]
        assert accounts.passwords_hashed == DEVICES
        await jump(20 * REMEMBER)
        for _ in range(2):
            await disconnect(running, devices)
            await jump(LESS)
            devices = [await device(running, n) for n in range(DEVICES)]
            assert accounts.passwords_hashed == DEVICES
        await disconnect(running, devices)
        await jump(MORE)
        (await device(running, 0)).close()
        assert accounts.passwords_hashed == DEVICES + 1

    in_jumping_loop(steps, users=users(DEVICES))


def test_the_time_begins_when_the_last_of_several_connections_ends() -> None:
    async def steps(running: Running) -> None:
        accounts = running.node.accounts
        amqp = [await device(running, 4) for _ in range(2)]
        amqp.pop().close()
        await running.until(lambda: len(running.links) == 1)
        await jump(MORE)
        amqp.append(await device(running, 4))
        assert accounts.passwords_hashed == 1
        await disconnect(running, amqp)
        await jump(MORE)
        await disconnect(running, [await device(running, 4)])
        assert accounts.passwords_hashed == 2

    in_jumping_loop(steps, users=users(5))


def test_a_login_that_opens_no_connection_is_not_counted_as_one() -> None:
    async def steps(running: Running) -> None:
        accounts = running.node.accounts
        first = await device(running, 0)
        # The user has no connection left: the password is right, and the client is refused.
        refused = await running.socket("mqtt")
        await refused.send(connect("other", user="d0", password=b"known"))
        assert await refused.exactly(4) == b"\x20\x02\x00\x03"
        assert accounts.passwords_hashed == 1
        await disconnect(running, [first, refused])
        await jump(MORE)
        await disconnect(running, [await device(running, 0)])
        assert accounts.passwords_hashed == 2

    in_jumping_loop(steps, users=users(1), limits={"user_connections": 1})


def test_a_changed_password_and_a_deleted_user_are_forgotten_at_once() -> None:
    async def steps(running: Running) -> None:
        accounts = running.node.accounts
        first = await device(running, 0)
        changed = CHEAP.hash("other")
        await running.reload(settings(users=users(1, changed)))
        for password, answer, hashed in (
            (b"known", b"\x20\x02\x00\x04", 2),
            (b"other", ACCEPTED, 3),
            (b"other", ACCEPTED, 3),
        ):
            client = await running.socket("mqtt")
            await client.send(connect("c", user="d0", password=password))
            assert await client.exactly(4) == answer
            assert accounts.passwords_hashed == hashed
            client.close()
        await running.reload(settings(users=[KNOWN]))
        client = await running.socket("mqtt")
        await client.send(connect("c", user="d0", password=b"other"))
        assert await client.exactly(4) == b"\x20\x02\x00\x04"
        await disconnect(running, [first, client])

    in_jumping_loop(steps, users=users(1))


def test_with_0_no_password_is_remembered() -> None:
    async def steps(running: Running) -> None:
        clients = [await device(running, 4) for _ in range(3)]
        assert running.node.accounts.passwords_hashed == 3
        assert not running.node.accounts._remembered.by_digest
        await disconnect(running, clients)

    in_jumping_loop(steps, users=users(5), auth={"remember": 0})


async def test_the_passwords_that_were_verified_first_are_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trellis.auth.remembered_passwords.MAX_REMEMBERED", 2)
    them = RememberedPasswords(REMEMBER)
    them.add(b"a")
    record = them.find(b"a")
    assert record is not None
    record.on_connection_opened()
    them.add(b"b")
    them.add(b"a")
    them.add(b"c")
    assert list(them.by_digest) == [b"a", b"c"]
    assert them.find(b"a") is record and not record.expired
    them.add(b"d")
    them.add(b"e")
    record.on_connection_closed()
    assert list(them.by_digest) == [b"d", b"e"]
