"""Runs `trellis` commands in this process against a broker of the test."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any, TextIO

import pytest

from tests.top.running import Running
from trellis import cli

#: The error of a command that asks for confirmation, and has no terminal to ask on.
UNASKED = (
    "trellis: nothing was changed: the command asks for confirmation, and the standard input is "
    "not a terminal; give --yes\n"
)


class Commands:
    """Runs `trellis` commands against one broker.

    `stdin` is the input of the next command, if `terminal` is None.
    """

    def __init__(
        self, broker: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._broker = broker
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        self.stdin = b""
        #: The terminal that the next command asks on; None if its input is no terminal.
        self.terminal: TextIO | None = None

    async def run(self, *words: str, user: str = "admin") -> tuple[int, str, str]:
        """Run a command with the login of a user; return its exit code, stdout and stderr."""
        url = f"http://127.0.0.1:{self._broker.port('http')}"
        stdin = self.terminal or io.TextIOWrapper(io.BytesIO(self.stdin))
        self._monkeypatch.setattr("sys.stdin", stdin)
        self._capsys.readouterr()
        login = ["--url", url, "--user", user, "--password", "known"]
        code = await asyncio.to_thread(cli.main, [*words, *login])
        out, err = self._capsys.readouterr()
        return code, out, err

    async def run_alone(self, *words: str) -> tuple[int, str, str]:
        """Run a command that asks no broker; return its exit code, stdout and stderr."""
        self._capsys.readouterr()
        code = await asyncio.to_thread(cli.main, list(words))
        out, err = self._capsys.readouterr()
        return code, out, err

    async def out(self, *words: str) -> str:
        """Run a command, check that it succeeds, and return its stdout."""
        code, out, err = await self.run(*words)
        assert (code, err) == (0, ""), (words, err)
        return out

    async def json(self, *words: str) -> Any:
        """Run a command with the option `--json`, check that it succeeds, and decode its stdout."""
        return json.loads(await self.out(*words, "--json"))

    async def fails(self, *words: str, code: int = 1) -> str:
        """Run a command, check that it ends with exit code `code`, and return its stderr."""
        got, _, err = await self.run(*words)
        assert got == code, (words, err)
        return err
