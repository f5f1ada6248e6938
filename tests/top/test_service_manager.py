"""Tests of the notifications to a service manager such as systemd."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.broker import BrokerProcess
from trellis.server.service_manager import ServiceManager

PATIENCE = 20.0


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """Yield a datagram socket that listens at an address, as a service manager does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(address)
        sock.settimeout(PATIENCE)
        yield sock


def received(sock: socket.socket) -> list[str]:
    return sock.recv(4096).decode().split("\n")


@pytest.mark.parametrize("kind", ["file", "abstract"])
def test_broker_reports_its_start_its_watchdog_and_its_stop(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = str(tmp_path / "notify") if kind == "file" else f"@trellis-{uuid.uuid4()}"
    with listening(name.replace("@", "\0", 1)) as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        monkeypatch.setenv("WATCHDOG_USEC", "300000")
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        broker = BrokerProcess()
        try:
            lines = received(manager)
            while lines == ["WATCHDOG=1"]:
                lines = received(manager)
            assert lines[0] == "READY=1"
            assert lines[1].startswith("STATUS=ready amqp=127.0.0.1:")
            assert [received(manager) for _ in range(3)] == [["WATCHDOG=1"]] * 3
            broker.process.terminate()
            while lines != ["STOPPING=1"]:
                lines = received(manager)
                assert lines in (["WATCHDOG=1"], ["STOPPING=1"])
            assert broker.process.wait(PATIENCE) == 0
        finally:
            broker.kill()


def test_notifications_without_a_service_manager_do_nothing() -> None:
    environment: dict[str, str] = {}
    manager = ServiceManager(environment)
    manager.notify("READY=1")
    assert manager.watchdog == 0.0
    manager.close()


def test_notifications_to_a_service_manager_that_is_gone_do_nothing(tmp_path: Path) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    manager.notify("READY=1")
    manager.close()


def test_notifications_that_no_one_reads_are_dropped(tmp_path: Path) -> None:
    with listening(str(tmp_path / "notify")) as silent:
        manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        for _ in range(10_000):
            manager.notify("WATCHDOG=1")
        assert received(silent) == ["WATCHDOG=1"]
        manager.close()


def test_variables_of_the_service_manager_are_not_inherited_by_child_processes() -> None:
    environment = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1", "A": "b"}
    manager = ServiceManager(environment)
    assert environment == {"A": "b"}
    assert manager.watchdog == 0.0, "the watchdog is for another process"
    manager.close()
    manager = ServiceManager({"WATCHDOG_USEC": "1500000", "WATCHDOG_PID": str(os.getpid())})
    assert manager.watchdog == 1.5
    manager.close()
