"""The Node.js process that runs the Node.js client libraries for the tests."""

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
    """Raised if a client in the Node.js process raises an error.

    `code` is the code of the JavaScript error, or None if that error has no code.
    """

    def __init__(self, message: str, code: object) -> None:
        super().__init__(message)
        self.code = code


class Node:
    """A Node.js process with clients, whose methods can be called one at a time.

    Without Node.js, the constructor skips the test.
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
        """Connect a client of `amqplib` or `mqtt`; return its name in the process."""
        client = f"{library}-{next(self._numbers)}"
        self._request(library=library, client=client, call="connect", args=[*args, PATIENCE * 1000])
        return client

    def call(self, client: str, method: str, *args: object) -> Any:
        """Call a method of a client and return its result; raise NodeError if it fails."""
        return self._request(client=client, call=method, args=args)

    def _request(self, **request: object) -> Any:
        number = next(self._numbers)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, **request}) + "\n")
        self._process.stdin.flush()
        while True:
            line = self._lines.get(timeout=PATIENCE + 5)
            assert line, f"node ended with exit code {self._process.wait()}"
            answer = json.loads(line)
            if answer["id"] == number:  # Other answers belong to calls that timed out.
                break
        if "error" in answer:
            raise NodeError(answer["error"]["message"], answer["error"]["code"])
        return answer["result"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(PATIENCE) == 0
