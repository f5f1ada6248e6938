"""docs/monitoring.md: its commands work, its metrics exist, its alerts are those of the rules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.test_monitoring_files import RULES
from tests.test_packaging import read_yaml
from tests.top.commands import Commands
from tests.top.conftest import Start
from tests.top.running import Running
from tests.top.test_api import users

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
