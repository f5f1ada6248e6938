"""Tests of docs/monitoring.md: its commands work, its metrics exist, its alerts are in the
rules.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.test_monitoring_files import RULES
from tests.test_packaging import read_yaml
from tests.top.api_client import users
from tests.top.commands import Commands
from tests.top.conftest import Start
from tests.top.running import Running

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "monitoring.md").read_text()
#: Addresses that the page gives to curl.
ADDRESSES: Final = re.findall(r"curl -s '?http://127\.0\.0\.1:15692(/[^\s'`]*)", PAGE)


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(**users())


async def test_the_addresses_of_the_page_answer(broker: Running) -> None:
    assert len(ADDRESSES) >= 5 and "/readyz" in ADDRESSES
    for address in ADDRESSES:
        status, body = await broker.get("metrics", address)
        assert status == 200 and body, address


async def test_the_commands_of_the_page_work(
    broker: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands(broker, capsys, monkeypatch)
    blocks = re.findall(r"^    \.run/bin/trellis (.+)$", PAGE, re.MULTILINE)
    assert blocks == ["health"]
    port = str(broker.port("metrics"))
    code, out, _ = await commands.run_alone("health", "--metrics-port", port)
    assert (code, out) == (0, f"ready: http://127.0.0.1:{port}/readyz\n")


def test_the_metrics_of_the_page_exist() -> None:
    listed = (ROOT / "docs" / "metrics.md").read_text()
    named = set(re.findall(r"`((?:trellis|rabbitmq)_\w+)`", PAGE))
    assert len(named) > 10
    assert [name for name in sorted(named) if f"| `{name}` |" not in listed] == []


def test_the_command_of_the_page_makes_urls_of_the_paths_of_the_cures(tmp_path: Path) -> None:
    # The rules contain paths, not URLs, because the project names no address of its documentation.
    assert "urls" not in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (command,) = re.findall(r"^    (sed -i .+)$", PAGE, re.MULTILINE)
    *words, file = shlex.split(command)
    assert ROOT / file == RULES
    copy = tmp_path / "rules.yml"
    copy.write_bytes(RULES.read_bytes())
    subprocess.run([*words, str(copy)], check=True)
    before, after = (
        [
            rule["annotations"]["runbook"]
            for group in read_yaml(path)["groups"]
            for rule in group["rules"]
        ]
        for path in (RULES, copy)
    )
    assert after == [f"https://wiki.example.org/trellis/{path}" for path in before]


def test_the_page_lists_the_alerts_with_their_severity_and_cure() -> None:
    rules = [rule for group in read_yaml(RULES)["groups"] for rule in group["rules"]]
    rows = re.findall(
        r"^\| (Trellis\w+) \| (\w+) \| [^|]+ \| \[[^]]+\]\(([^)]+)\) \|$", PAGE, re.MULTILINE
    )
    assert rows == [
        (
            rule["alert"],
            rule["labels"]["severity"],
            rule["annotations"]["runbook"].removeprefix("docs/"),
        )
        for rule in rules
    ]
