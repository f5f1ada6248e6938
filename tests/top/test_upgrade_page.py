"""The commands of docs/upgrade.md, run in their order: the restored broker has all messages."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pika
import pytest

from tests.broker import BrokerProcess, run_command

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "upgrade.md").read_text()
COMMANDS: Final = [
    shlex.split(line) for line in re.findall(r"^ +\.run/bin/trellis (.+)$", PAGE, re.MULTILINE)
]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Start a broker with three confirmed messages; its data directory is `data`."""
    running = BrokerProcess("--data-dir", str(tmp_path / "data"))
    with pika.BlockingConnection(pika.URLParameters(running.amqp_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True)
        for number in range(3):
            properties = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("", "orders", str(number).encode(), properties)
    yield running
    running.kill()


def test_the_commands_of_the_page(broker: BrokerProcess, tmp_path: Path) -> None:
    served = [words for words in COMMANDS if words[0] == "serve"]
    assert served == [["serve", "--data-dir", "restored"]]
    serving = COMMANDS.index(served[0])
    assert (serving, len(COMMANDS)) == (6, 9)
    for words in COMMANDS[:serving]:
        run(broker, tmp_path, *words)
    assert '"orders"' in (tmp_path / "definitions.json").read_text()
    broker.stop()

    shutil.copytree(tmp_path / "backup", tmp_path / "restored")
    restored = BrokerProcess("--data-dir", str(tmp_path / "restored"))
    try:
        with pika.BlockingConnection(pika.URLParameters(restored.amqp_url)) as connection:
            channel = connection.channel()
            got = [channel.basic_get("orders", auto_ack=True)[2] for _ in range(3)]
        assert got == [b"0", b"1", b"2"]
        for words in COMMANDS[serving + 1 :]:
            run(restored, tmp_path, *words)
    finally:
        restored.kill()


def run(broker: BrokerProcess, directory: Path, *words: str) -> None:
    """Run a command of the page in `directory` for a broker with the data directory `data`."""
    done = run_command(
        *words,
        directory=directory,
        HTTP_PORT=broker.addresses["http"].port,
        METRICS_PORT=broker.addresses["metrics"].port,
        DATA_DIR=directory / "data",
    )
    assert (done.returncode, done.stderr) == (0, ""), (words, done.stdout)
