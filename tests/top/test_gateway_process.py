"""Tests of the life of the process that serves the HTTP API: its start, its end, and its loss."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.top.api_client import ADMIN, api
from tests.top.conftest import Start
from tests.top.gateway_client import gateway_of
from tests.top.running import Running
from trellis.http import contract


@pytest.fixture
def fast_gateways() -> None:
    """Replace the fixture that forks gateways: these tests start gateways as real brokers do."""


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(users=[ADMIN])


async def test_the_process_starts_at_the_first_request_and_ends_with_the_broker(
    broker: Running,
) -> None:
    gateway = gateway_of(broker)
    assert gateway.pid == 0
    assert (await api(broker, "GET", "whoami"))[0] == 200
    pid = gateway.pid
    assert pid
    await broker.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_process_that_is_killed_is_started_again_at_the_next_request(
    broker: Running, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = gateway_of(broker)
    assert (await api(broker, "GET", "whoami"))[0] == 200
    first = gateway.pid
    os.kill(first, signal.SIGKILL)
    await broker.until(lambda: gateway.pid == 0)
    assert (await api(broker, "GET", "whoami"))[0] == 200
    assert gateway.pid not in (0, first)
    page = await broker.scrape()
    assert page.value("trellis_http_gateway_starts_total") == 2
    assert page.value("trellis_http_gateway_lost_total") == 1
    assert [
        record.getMessage() for record in caplog.records if "http_gateway_lost" in record.message
    ]


async def test_metrics_and_health_answer_while_the_process_does_not(broker: Running) -> None:
    assert (await api(broker, "GET", "whoami"))[0] == 200
    os.kill(gateway_of(broker).pid, signal.SIGSTOP)
    try:
        assert (await broker.get("metrics", "/readyz"))[0] == 200
        assert (await broker.get("metrics", "/metrics"))[0] == 200
    finally:
        os.kill(gateway_of(broker).pid, signal.SIGCONT)
    assert (await api(broker, "GET", "whoami"))[0] == 200


async def test_a_process_that_is_asked_to_end_finishes_and_gives_the_port_back(
    broker: Running,
) -> None:
    assert (await api(broker, "GET", "whoami"))[0] == 200
    gateway = gateway_of(broker)
    first = gateway.pid
    assert gateway.server is not None
    gateway.server.send(contract.Drain())
    await broker.until(lambda: gateway.pid == 0)
    assert (await api(broker, "GET", "whoami"))[0] == 200
    assert gateway.pid not in (0, first)
    assert (await broker.scrape()).value("trellis_http_gateway_lost_total") == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_the_process_gets_no_secret_by_argument_or_environment(
    broker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRELLIS_PASSWORD", "argon2")
    assert (await api(broker, "GET", "whoami"))[0] == 200
    pid = gateway_of(broker).pid
    for file in (Path(f"/proc/{pid}/cmdline"), Path(f"/proc/{pid}/environ")):
        content = await asyncio.to_thread(file.read_bytes)
        assert b"argon2" not in content
        assert b"TRELLIS_" not in content
