"""Tests that a name is accepted or refused alike over AMQP, MQTT, HTTP and definitions.

Names that an older version stored are repaired.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_from_bytes

import pytest

from broker.store.catalog import Catalog
from broker.store.entries import Defined
from tests.clients import World
from tests.top.conftest import Start
from tests.top.running import KNOWN, Running, settings
from trellis import cli
from trellis.settings.values import check_journal, check_object_name

ADMIN: Final = KNOWN | {"name": "admin", "administrator": True}
#: The hash of the password `known`.
HASH: Final = KNOWN["password_hash"]
CORNERS: Final = (
    b"plain",
    "Müller/Straße 7 \N{SNOWMAN}".encode(),
    b"%2F",
    b"..",
    b"a\nb\x01\x7f",
    b"x" * 255,
    b"\xc3\xa4" * 127,
    b"x" * 256,
    b"\xc3\xa4" * 128,
    b"\0",
    b"a\0b",
    b"\xff",
    b"bad\xff",
    b"\xc3",
    b"\xed\xa0\x80",  # A surrogate, which UTF-8 must not encode.
    b"\xed\xb3\xbf",
    b"\xf5\x80\x80\x80",
)


def valid(name: bytes) -> bool:
    """True if the name is valid. This code is independent of the broker's code for this rule."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return False
    return 1 <= len(name) <= 255 and "\0" not in text


def names() -> Iterator[bytes]:
    """Yield the corner cases, then random names: bytes, and text with a few bytes changed."""
    yield from CORNERS
    chance = random.Random(19)
    for _ in range(40):
        yield chance.randbytes(chance.choice((1, 2, 5, 40)))
        text = "".join(chr(chance.choice((0x61, 0xE4, 0x2603, 0x1F512))) for _ in range(5)).encode()
        yield text[: chance.randrange(1, len(text) + 1)]


# -- the ways in: each function returns True if the name was accepted


async def _ask(running: Running, method: str, path: str, body: bytes) -> tuple[int, Any]:
    token = base64.b64encode(b"admin:known").decode()
    head = (
        f"{method} /api/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {token}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    status, _, answer = await running.ask("http", head.encode() + body)
    return status, json.loads(answer) if answer else None


PATHS: Final = {
    "queues/%2F/{}": b"{}",
    "exchanges/%2F/{}": b"{}",
    "vhosts/{}": b"",
    "users/{}": json.dumps({"password_hash": HASH, "tags": ""}).encode(),
    "policies/%2F/{}": b'{"pattern": "^$", "definition": {"max-length": 1}}',
}


def _document(name: str) -> dict[str, list[dict[str, Any]]]:
    """Return definitions that use the name once in each section."""
    return {
        "vhosts": [{"name": name}],
        "users": [{"name": name, "password_hash": HASH, "tags": []}],
        "policies": [
            {"vhost": "/", "name": name, "pattern": "^$", "definition": {"max-length": 1}}
        ],
        "exchanges": [{"vhost": "/", "name": name, "type": "direct", "durable": True}],
        "queues": [{"vhost": "/", "name": name, "durable": True, "arguments": {}}],
    }


def _short(data: bytes) -> bytes:
    return bytes([len(data)]) + data


def _amqp(method: int, name: bytes, rest: bytes) -> bool:
    """Declare an object whose name has these bytes; return True if the broker accepts the name.

    `method` has the class and method ids, `rest` the encoded arguments after the name.
    """
    client = World().amqp()
    payload = struct.pack(">IH", method, 0) + _short(name) + rest
    client.connection.receive_data(struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce")
    return [one.name for one in client.read()] in (["Queue.DeclareOk"], ["Exchange.DeclareOk"])


def _mqtt(name: bytes) -> bool:
    """Connect with this client identifier; return True if the broker accepts it."""
    world = World()
    connection = world.raw_mqtt()
    body = b"\0\4MQTT\4\2\0\0" + struct.pack(">H", len(name)) + name
    connection.receive_data(b"\x10" + _length(len(body)) + body)
    return world.answer(connection) == b"\x20\x02\x00\x00"


def _length(size: int) -> bytes:
    return bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])


def _setting(check: Callable[[str], None], text: str) -> bool:
    try:
        check(text)
    except ValueError:
        return False
    return True


async def test_every_door_gives_the_same_verdict(start: Start) -> None:
    running = await start(users=[ADMIN])
    for name in names():
        expected = valid(name)
        text = os.fsdecode(name)
        verdicts: dict[str, bool] = {}
        for path, body in PATHS.items():
            where = path.format(quote_from_bytes(name, safe=""))
            verdicts[path] = (await _ask(running, "PUT", where, body))[0] in (201, 204)
        status, answer = await _ask(
            running, "POST", "definitions", json.dumps(_document(text)).encode()
        )
        for section in _document(text):
            verdicts[f"definitions: {section}"] = (
                status == 200 and answer["taken"].get(section, 0) == 1
            )
        if len(name) <= 255:
            verdicts["queue.declare"] = _amqp(50 << 16 | 10, name, b"\0" + bytes(4))
            verdicts["exchange.declare"] = _amqp(
                40 << 16 | 10, name, _short(b"direct") + b"\0" + bytes(4)
            )
            verdicts["client identifier"] = _mqtt(name)
        verdicts["users"] = _setting(check_object_name, text)
        verdicts["stream.journals"] = _setting(check_journal, f"{text}=journal") and _setting(
            check_journal, "/=" + text
        )
        if b"=" in name:
            del verdicts["stream.journals"]
        assert verdicts == dict.fromkeys(verdicts, expected), name
    for path in ("vhosts", "queues", "exchanges", "users", "policies", "definitions"):
        assert (await _ask(running, "GET", path, b""))[0] == 200


def test_empty_names_are_refused_where_none_can_be_generated() -> None:
    assert not _amqp(40 << 16 | 10, b"", _short(b"direct") + b"\0" + bytes(4))
    assert not _setting(check_object_name, "")


async def test_definitions_with_empty_names_are_refused(start: Start) -> None:
    running = await start(users=[ADMIN])
    status, answer = await _ask(running, "POST", "definitions", json.dumps(_document("")).encode())
    # The exchange with the empty name is the default exchange, which exists.
    assert (status, answer["taken"]) == (200, {"exchanges": 1})
    assert len(answer["refused"]) == 4
    assert "" not in running.node.broker.vhosts["/"].queues


@pytest.mark.parametrize(
    "words",
    [("vhosts", "add", "b\udcff"), ("users", "add", "b\udcff"), ("users", "tags", "b\udcff")],
)
async def test_the_command_line_refuses_with_one_line(
    start: Start,
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    running = await start(users=[ADMIN])
    (tmp_path / "word").write_text("secret\n")
    login = ["--url", f"http://127.0.0.1:{running.port('http')}", "--user", "admin"]
    new = ["--new-password-file", str(tmp_path / "word")] if words[:2] == ("users", "add") else []
    capsys.readouterr()
    code = await asyncio.to_thread(
        cli.main, [*words[:2], *login, "--password", "known", *new, *words[2:]]
    )
    error = capsys.readouterr().err
    assert code == 1
    assert error.count("\n") == 1 and "not valid UTF-8" in error and r"b\xff" in error


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_path_with_other_bytes_is_answered(start: Start, method: str) -> None:
    running = await start(users=[ADMIN])
    status, answer = await _ask(running, method, "queues/%2F/%FF", b"")
    assert (status, answer["error"]) == (400, "bad_request")
    assert answer["reason"] == r"the part '\xff' of the path is not valid UTF-8"


# -- what older versions wrote


def _older(path: Path) -> None:
    """Write a catalog with names that an older version accepted over HTTP."""
    catalog = Catalog(str(path))
    plain: dict[str, object] = {"auto_delete": False, "arguments": {}}
    exchange = plain | {"type": "direct", "internal": False}
    objects = [
        Defined("/", "queue", "bad\udcff", plain),
        Defined("/", "queue", "bad\\xff", plain),
        Defined("/", "exchange", "ex\udc80", exchange),
        Defined("/", "user", "ann\udcff", {"password_hash": HASH, "tags": []}),
        Defined("/", "permission", "ann\udcff", {"configure": "", "write": "", "read": ".*"}),
        Defined("/", "policy", "p\udcff", {"pattern": "^none$", "definition": {"max-length": 1}}),
        Defined("/", "queue", "good", plain),
        Defined("/", "queue", "nul\0", plain),
        Defined(
            "/",
            "binding",
            "3:1:x",
            {
                "source": 3,
                "destination": 1,
                "key": "any\udcff",
                "assurance": 2,
                "grammar": "amqp",
                "arguments": {},
            },
        ),
    ]
    catalog.write(list(enumerate(objects, start=1)), 0)
    catalog.close()


async def test_old_names_do_not_stop_a_start_and_repair_renames_them(
    start: Start,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    home = str(tmp_path)
    _older(tmp_path / "catalog.sqlite")
    assert cli.main(["store", "verify", "--data-dir", home]) == 1
    output = capsys.readouterr().out
    assert output.count("is not valid UTF-8") == 5 and "the name of queue 'bad\\xff'" in output

    running = Running(settings(users=[ADMIN], data={"dir": home}))
    await running.start()
    try:
        broker = running.node.broker
        assert {"good", "nul\0", "bad\\xff"} == set(broker.vhosts["/"].queues)
        assert not broker.users.by_name
        assert caplog.text.count("trellis store repair") == 5
        for path in ("queues", "exchanges", "users", "policies", "definitions", "trellis/queues"):
            assert (await _ask(running, "GET", path, b""))[0] == 200
    finally:
        await running.stop()
    caplog.clear()

    assert cli.main(["store", "repair", "--data-dir", home]) == 0
    assert "queue 'bad\\xff' in vhost '/' is called 'bad\\xff~2' now" in capsys.readouterr().out
    assert cli.main(["store", "verify", "--data-dir", home]) == 0

    repaired = await start(users=[ADMIN], data={"dir": home})
    vhost = repaired.node.broker.vhosts["/"]
    assert {"good", "nul\0", "bad\\xff", "bad\\xff~2"} == set(vhost.queues)
    (bound,) = vhost.exchanges["ex\\x80"].bindings.destinations()
    assert bound is vhost.queues["bad\\xff~2"]
    assert list(vhost.policies.by_name) == ["p\\xff"]
    assert repaired.node.broker.users.by_name["ann\\xff"].permissions == {"/": ("", "", ".*")}
