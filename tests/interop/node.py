"""The process that the client libraries of Node run in."""

from __future__ import annotations

import itertools
import json
import queue
import subprocess
import threading
from pathlib import Path
from typing import Any, Final

from tests.foreign import require
from tests.interop.client import PATIENCE

_SCRIPT: Final = Path(__file__).parents[1] / "node" / "serve.js"


class NodeError(Exception):
    """A client in Node raised an error. `code` is the error's own, None if it has none."""

    def __init__(self, message: str, code: object) -> None:
        super().__init__(message)
        self.code = code


class Node:
    """Calls methods of clients that live there, one call at a time.

    Skips the test where Node is missing.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._process = subprocess.Popen(
            [require("node"), str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def connect(self, library: str, *args: object) -> str:
        """Make a client of `amqplib` or `mqtt`; returns what it is called there."""
        client = f"{library}-{next(self._numbers)}"
        self._ask(library=library, client=client, call="connect", args=[*args, PATIENCE * 1000])
        return client

    def call(self, client: str, method: str, *args: object) -> Any:
        """The method's result. Raises NodeError."""
        return self._ask(client=client, call=method, args=args)

    def _ask(self, **request: object) -> Any:
        number = next(self._numbers)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, **request}) + "\n")
        self._process.stdin.flush()
        while True:
            line = self._lines.get(timeout=PATIENCE + 5)
            assert line, f"node ended with exit code {self._process.wait()}"
            answer = json.loads(line)
            if answer["id"] == number:  # another one belongs to a call that was given up
                break
        if "error" in answer:
            raise NodeError(answer["error"]["message"], answer["error"]["code"])
        return answer["result"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(PATIENCE) == 0
