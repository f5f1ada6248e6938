"""Fixtures for the tests of commands: no settings of this machine, and a server to query."""

import os
import threading
from collections.abc import Iterator
from http.server import HTTPServer
from pathlib import Path

import pytest

from tests.cli.fixed_answers import Answers

pytest.register_assert_rewrite("tests.cli.command_line")


@pytest.fixture(autouse=True)
def _isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the settings file and the TRELLIS_ variables of this machine from the tests.

    Also set `http_proxy` to a port where nothing listens: commands must not use a proxy.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trellis.settings.loading.SEARCHED", (Path("broker.toml"),))
    for name in [name for name in os.environ if name.startswith("TRELLIS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a running server with fixed answers."""
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()
