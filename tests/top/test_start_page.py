"""The commands of docs/start.md, run in their order, and clients that connect as the page shows."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from tests.broker import BrokerProcess, run_command

ROOT: Final = Path(__file__).parents[2]
#: The page, with this machine in place of the machine of the examples.
PAGE: Final = (ROOT / "docs" / "start.md").read_text().replace("192.168.1.10", "127.0.0.1")
COMMANDS: Final = [
    shlex.split(line) for line in re.findall(r"^    (?:\.run/bin/)?(.+)$", PAGE, re.MULTILINE)
]
#: Seconds for which a client waits at most.
PATIENCE: Final = 10


def block(kind: str) -> str:
    """Return the only fenced block of this kind in docs/start.md."""
    (content,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(content)


def commands(*words: str) -> list[list[str]]:
    """Return the commands of docs/start.md that begin with these words."""
    matching = [command for command in COMMANDS if command[: len(words)] == [*words]]
    assert matching, words
    return matching


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory with the files of the page and the certificates that its commands make."""
    (tmp_path / "broker.toml").write_text(block("toml").replace("0.0.0.0", "127.0.0.1"))
    (tmp_path / "devices.csv").write_text(block("csv"))
    (tmp_path / "ann.txt").write_text("secret of ann\n")
    assert shutil.which("openssl"), "openssl is missing"
    for command in commands("openssl"):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return tmp_path


@pytest.fixture
def broker(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    assert commands("trellis", "serve") == [["trellis", "serve", "--config", "broker.toml"]]
    monkeypatch.chdir(directory)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ports = ("--amqps-port", "0", "--mqtts-port", "0")
    running = BrokerProcess("--config", "broker.toml", *ports)
    yield running
    running.kill()


def trellis(directory: Path, http: int, *words: str) -> str:
    """Run a command for the broker with this HTTP port; return its output."""
    done = run_command(*words, directory=directory, HTTP_PORT=http)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


def test_the_commands_of_the_page(directory: Path, broker: BrokerProcess) -> None:
    http = broker.addresses["http"].port
    for group in ("check-config", "users", "permissions"):
        assert commands("trellis", group)
    for command in commands("trellis"):
        if command[1] != "serve":
            trellis(directory, http, *command[1:])

    # An AMQP client, with the program of the page.
    program = block("python").replace("PASSWORD", repr("secret of ann"))
    program = program.replace("5671", str(broker.addresses["amqps"].port))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

    # An MQTT client: its message reaches the queue, and another topic is refused.
    (published,) = commands("mosquitto_pub")
    given = dict(zip(published[1::2], published[2::2], strict=True))
    with_client(directory, broker, given)
    words = ("peek", "temperatures", "--user", "ann", "--password-file", "ann.txt", "--json")
    rows = trellis(directory, http, *words)
    messages = [(row["routing_key"], row["payload"]) for row in json.loads(rows)]
    assert messages == [("plant.pump-7.temp", "21.5")]


def with_client(directory: Path, broker: BrokerProcess, given: dict[str, str]) -> None:
    """Publish to the topic of the page's command, and to the topic of another device.

    `given` has the flags of the command. The broker must refuse the other topic.
    """
    client = Client(CallbackAPIVersion.VERSION2)
    client.tls_set(str(directory / given["--cafile"]))
    client.username_pw_set(given["-u"], given["-P"])
    client.connect(given["-h"], broker.addresses["mqtts"].port)
    client.loop_start()
    try:
        for topic in ("plant/pump-8/temp", given["-t"]):
            client.publish(topic, given["-m"], int(given["-q"])).wait_for_publish(PATIENCE)
    finally:
        client.disconnect()
        client.loop_stop()
