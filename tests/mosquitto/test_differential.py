"""Comparison of Mosquitto and Trellis: users, rights and clients, topic by topic."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests import foreign
from tests.addresses import free_port
from tests.mosquitto.hashes import mosquitto_hash
from tests.top.running import PATIENCE, Mqtt0, Running, Socket
from trellis.mosquitto.importing import MosquittoImport
from trellis.parent_process import end_with_parent
from trellis.settings import load

pytestmark = [pytest.mark.long, pytest.mark.asyncio]

MOSQUITTO = foreign.require("mosquitto-broker")
USERS = ("u", "v", "a", None)
TOPICS = [
    *(
        "/".join(words)
        for size in (1, 2)
        for words in itertools.product(("a", "u", "c"), repeat=size)
    ),
    *("a/u/c", "a/x/y", "$x/a", "$x", "/a", "a//b", "a/u/c/d"),
    *("$SYS/mine", "$CONTROL/a"),
]
FILTERS = (
    "#",
    "+/a",
    "a/#",
    "a/u/c",
    "$x/#",
    "$SYS/broker/connection/#",
    "$SYS/mine",
    "c",
    "+/+/#",
)
#: A user with access to every topic, by which the tests observe the actions of other clients.
WATCHER = "watcher"
WATCHED = ("#", "$x/#", "$SYS/mine")


@asynccontextmanager
async def mosquitto(conf: Path, port: int) -> AsyncIterator[int]:
    """Run Mosquitto with a configuration, and yield its port."""
    log = (conf.parent / "log").open("wb")
    process = await asyncio.create_subprocess_exec(
        MOSQUITTO, "-c", str(conf), preexec_fn=end_with_parent, stdout=log, stderr=log
    )
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    (await Socket.connect(port)).close()
                    break
                except ConnectionRefusedError:
                    assert process.returncode is None, (conf.parent / "log").read_text()
                    await asyncio.sleep(0)
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        log.close()


@asynccontextmanager
async def trellis(conf: Path) -> AsyncIterator[int]:
    """Run Trellis with the import of a configuration, and yield its port."""
    imported = MosquittoImport(conf)
    definitions = conf.parent / "definitions.json"
    definitions.write_bytes(msgspec.json.encode(imported.definitions))
    file = conf.parent / "broker.toml"
    file.write_text(imported.settings_text(definitions))
    flags = {f"{name}.enabled": "false" for name in ("amqp", "http", "metrics")}
    settings = load(
        [file], {}, {**flags, "mqtt.port": "0", "data.dir": ":memory:", "shutdown.grace": "0.05"}
    )
    running = Running(settings)
    await running.start()
    try:
        yield running.port("mqtt")
    finally:
        await running.stop()


class Observed(Mqtt0):
    """An MQTT client that keeps the bodies that it receives; each body names a topic."""

    def __init__(self, sock: Socket) -> None:
        super().__init__(sock)
        self.received: list[str] = []

    async def until(self, first: int) -> bytes:
        """Read packets until one has this first byte, and return the data of this packet.

        Add the bodies of the publications that arrive before this packet to `received`.
        """
        while True:
            kind, data = await self.packet()
            if kind & 0xF0 == 0x30:
                size = int.from_bytes(data[:2], "big")
                self.received.append(data[2 + size :].decode())
            elif kind == first:
                return data

    async def publish(self, topic: str, body: str) -> None:
        name = topic.encode()
        data = len(name).to_bytes(2, "big") + name + b"\0\1" + body.encode()
        assert len(data) < 128
        await self.socket.send(bytes([0x32, len(data)]) + data)
        await self.until(0x40)

    async def ask(self, topic_filter: str) -> int:
        """Subscribe with QoS 0 and return the code of the SUBACK."""
        name = topic_filter.encode()
        data = b"\0\1" + len(name).to_bytes(2, "big") + name + b"\0"
        await self.socket.send(bytes([0x82, len(data)]) + data)
        return (await self.until(0x90))[2]

    async def collect(self) -> set[str]:
        """Return the bodies that arrived since the last call."""
        await self.socket.send(b"\xc0\x00")
        await self.until(0xD0)
        received, self.received = set(self.received), []
        return received


async def client(port: int, user: str | None, client_id: str) -> tuple[int, Observed]:
    observed = Observed(await Socket.connect(port))
    return await observed.connect(client_id, user=f"{user}/{user}" if user else ""), observed


async def observe(
    port: int, users: list[str | None], clients: list[str], filters: list[str]
) -> dict[tuple[Any, ...], Any]:
    """Let each user connect with each client identifier, publish, and subscribe to each filter.

    The broker has the port `port`; the user None connects without a user name.
    Return a dict of the results. A key is (action, user, client identifier), with the filter as a
    fourth part if the action is "read". The value for "connect" is True if the connect succeeded.
    For "publish" and "read", the value is the set of the topics with which the action succeeded.
    """
    seen: dict[tuple[Any, ...], Any] = {}
    code, watcher = await client(port, WATCHER, "watching")
    assert code == 0
    for topic_filter in WATCHED:
        assert await watcher.ask(topic_filter) == 0
    for words in ("u/v", "who/who"):
        refused = Mqtt0(await Socket.connect(port))
        seen["connect", words] = await refused.connect("c9", user=words) == 0
    for user, client_id in itertools.product(users, clients):
        code, one = await client(port, user, client_id)
        seen["connect", user, client_id] = code == 0
        if code:
            continue
        for topic in TOPICS:
            await one.publish(topic, topic)
        await one.leave()
        seen["publish", user, client_id] = await watcher.collect()
        for topic_filter in filters:
            code, reader = await client(port, user, client_id)
            assert code == 0
            granted = await reader.ask(topic_filter) == 0
            for topic in TOPICS:
                await watcher.publish(topic, topic)
            received = await reader.collect()
            assert granted or not received
            seen["read", user, client_id, topic_filter] = received
            await reader.leave()
        await watcher.collect()
    await watcher.leave()
    return seen


def passwords(file: Path) -> None:
    """Write a password file in which each user's password is the user's name."""
    names = [user for user in (*USERS, WATCHER) if user]
    file.write_text(
        "".join(
            f"{name}:{mosquitto_hash(name.encode(), b's' * 12, 101 * (at % 2))}\n"
            for at, name in enumerate(names)
        )
    )


def acl_text(chance: random.Random, variables: bool) -> str:
    """Return a random ACL file; with `variables`, each `pattern` line contains `%c`."""
    lines = []
    for user in USERS[-1:] + USERS[:-1]:
        lines += [f"user {user}"] if user else []
        for _ in range(chance.randrange(4)):
            lines.append(f"topic {right(chance)} {words(chance, ('a', 'u', 'c', '+'))}")
    for _ in range(chance.randrange(5)):
        pattern = words(chance, ("a", "u", "+", "%u", "%c" if variables else "c"))
        if not variables or "%c" in pattern:
            lines.append(f"pattern {right(chance)} {pattern}")
    lines += [f"user {WATCHER}", *(f"topic readwrite {one}" for one in WATCHED)]
    return "\n".join(lines) + "\n"


def right(chance: random.Random) -> str:
    return chance.choice(["read", "write", "readwrite", "deny"])


def words(chance: random.Random, known: tuple[str, ...]) -> str:
    chosen = [chance.choice(known) for _ in range(chance.randrange(1, 4))]
    chosen += ["#"] if chance.random() < 0.4 else []
    head = chance.choice(["", "", "", "", "$x/", "$SYS/"])
    return chance.choice(["#", head + "/".join(chosen), head + "/".join(chosen)])


async def compared(
    conf: Path, port: int, users: list[str | None], clients: list[str], filters: list[str]
) -> list[tuple[tuple[Any, ...], Any, Any]]:
    """Observe Mosquitto with the configuration `conf`, and Trellis with the import of `conf`.

    Return (key, result in Mosquitto, result in Trellis) of each action; `observe` explains the key.
    `port` is Mosquitto's port.
    """
    async with mosquitto(conf, port):
        theirs = await observe(port, users, clients, filters)
    async with trellis(conf) as own_port:
        ours = await observe(own_port, users, clients, filters)
    assert theirs.keys() == ours.keys()
    return [(key, theirs[key], ours[key]) for key in theirs]


@pytest.mark.parametrize("seed", range(30))
async def test_an_acl_file_gives_the_same_rights(tmp_path: Path, seed: int) -> None:
    chance, port = random.Random(seed), free_port()
    variables = seed % 2 == 0
    conf = tmp_path / "mosquitto.conf"
    (tmp_path / "acl").write_text(acl_text(chance, variables))
    passwords(tmp_path / "passwords")
    anonymous = chance.choice(["true", "false"])
    conf.write_text(
        f"user root\nset_tcp_nodelay true\nlistener {port} 127.0.0.1\nallow_anonymous {anonymous}\n"
        f"password_file {tmp_path}/passwords\nacl_file {tmp_path}/acl\n"
    )
    # In Mosquitto, no pattern applies to a client identifier with a wildcard. In Trellis, patterns
    # without the client identifier apply to it. So this identifier is tested only if each pattern
    # names the client identifier (`variables`).
    clients = ["c", "x/y", "d+"] if variables else ["c", "x/y"]
    for key, theirs, ours in await compared(conf, port, list(USERS), clients, list(FILTERS)):
        if variables and "x/y" in key:
            # In Trellis, a rule with the client identifier does not apply to an identifier with a
            # slash.
            assert key[0] == "connect" or ours <= theirs, key
        else:
            assert ours == theirs, key


#: Path of the dynamic security plugin, beside the program or where Debian installs it.
PLUGIN = next(
    path
    for folder in (Path(MOSQUITTO).parents[1] / "lib", Path("/usr/lib"))
    for path in folder.glob("**/mosquitto_dynamic_security.so")
)
ACL_TYPES = ("publishClientSend", "publishClientReceive", "subscribePattern", "subscribeLiteral")


def document(chance: random.Random) -> dict[str, Any]:
    """Return a random dynamic-security.json."""

    def acls() -> list[dict[str, Any]]:
        entries = {}
        for _ in range(chance.randrange(1, 6)):
            kind = chance.choice(ACL_TYPES)
            topic = words(chance, ("a", "u", "c", "+"))
            if kind == "subscribeLiteral" and set("+#") & set(topic):
                topic = chance.choice(TOPICS)
            entries[kind, topic] = {
                "acltype": kind,
                "topic": topic,
                "priority": chance.randrange(3),
                "allow": chance.random() < 0.6,
            }
        return list(entries.values())

    def members(key: str, names: list[str]) -> list[dict[str, Any]]:
        chosen = chance.sample(names, chance.randrange(len(names) + 1))
        return [{key: name, "priority": chance.randrange(-1, 3)} for name in chosen]

    roles = ["r1", "r2", "r3"]
    everything = [
        {"acltype": kind, "topic": topic, "priority": 0, "allow": True}
        for kind in ACL_TYPES[:3]
        for topic in WATCHED
    ]
    users = [user for user in USERS if user]
    clients = []
    for user in [*users, WATCHER]:
        _, _, iterations, salt, password = mosquitto_hash(user.encode(), b"t" * 12, 101).split("$")
        clients.append(
            {
                "username": user,
                "iterations": int(iterations),
                "salt": salt,
                "password": password,
                "roles": [{"rolename": "everything"}]
                if user == WATCHER
                else members("rolename", roles),
            }
        )
    return {
        "defaultACLAccess": {
            kind: chance.random() < 0.4
            for kind in ("publishClientSend", "publishClientReceive", "subscribe", "unsubscribe")
        },
        "roles": [
            {"rolename": "everything", "acls": everything},
            *({"rolename": role, "acls": acls()} for role in roles),
        ],
        "groups": [
            {
                "groupname": name,
                "roles": members("rolename", roles),
                "clients": members("username", users),
            }
            for name in ("g1", "g2")
        ],
        "clients": clients,
        "anonymousGroup": "g1",
    }


@pytest.mark.parametrize("seed", range(15))
async def test_dynamic_security_gives_the_same_rights(tmp_path: Path, seed: int) -> None:
    chance, port = random.Random(seed), free_port()
    conf = tmp_path / "mosquitto.conf"
    (tmp_path / "dynamic.json").write_bytes(msgspec.json.encode(document(chance)))
    conf.write_text(
        f"user root\nset_tcp_nodelay true\nlistener {port} 127.0.0.1\nallow_anonymous true\n"
        f"plugin {PLUGIN}\nplugin_opt_config_file {tmp_path}/dynamic.json\n"
    )
    # In Mosquitto 2.0, a subscribePattern that begins with a wildcard matches filters that begin
    # with $; in 2.1 and in the import it does not. So these filters are not compared.
    filters = [one for one in (*TOPICS, *FILTERS) if not one.startswith("$")]
    seen = await compared(conf, port, list(USERS), ["c"], filters)
    single: dict[Any, set[str]] = {}
    for key, theirs, ours in seen:
        if key[0] != "read" or not set("+#") & set(key[3]):
            assert ours == theirs, key
        if key[0] == "read":
            single.setdefault(key[1], set())
            if not set("+#") & set(key[3]):
                single[key[1]] |= theirs
    for key, _, ours in seen:
        # Mosquitto grants a whole filter or refuses it; Trellis delivers its permitted topics.
        if key[0] == "read":
            assert ours <= single[key[1]], key
