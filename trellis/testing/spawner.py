"""The process that starts brokers for tests: `python -m trellis.testing.spawner`.

The process loads the broker once, and forks for each broker, so that a broker serves within 0.1 s.
It reads one request per line of standard input, and answers each with one line, both in JSON:

    {"start": [FLAG, ...], "log": PATH}   {"pid": PID, "addresses": {LISTENER: "HOST:PORT"}}
    {"end": PID, "signal": NUMBER}        {"code": EXIT_CODE}
                                          {"error": TEXT}

All brokers end with the spawner, and the spawner ends when its standard input is closed, so a test
run that is killed leaves no broker.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

#: prctl: the signal that a process gets when its parent ends (Linux).
PR_SET_PDEATHSIG: Final = 1


def main() -> int:
    """Answer the requests on standard input until its end; then end all brokers."""
    import trellis.app
    import trellis.cli.serve  # noqa: F401

    gc.freeze()
    children: set[int] = set()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        while line := sys.stdin.readline():
            request = json.loads(line)
            try:
                if "start" in request:
                    answer = _start(request["start"], request["log"], children)
                else:
                    answer = _end(request["end"], request["signal"], children)
            except OSError as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return 0


def _start(flags: list[str], log: str, children: set[int]) -> dict[str, Any]:
    """Fork a broker, and wait until it is ready or has ended. Return the answer to the request."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(readable)
        _serve(flags, log, writable)
    os.close(writable)
    with os.fdopen(readable) as output:
        ready = output.readline().split()
    if ready[:1] != ["ready"]:
        _, status = os.waitpid(pid, 0)
        written = Path(log).read_text(errors="replace").strip().splitlines()
        reason = written[-1] if written else "it wrote nothing"
        code = os.waitstatus_to_exitcode(status)
        return {"error": f"the broker did not start (exit code {code}): {reason}"}
    children.add(pid)
    return {"pid": pid, "addresses": dict(word.split("=", 1) for word in ready[1:])}


def _serve(flags: list[str], log: str, writable: int) -> None:
    """Run a broker in this process, a child of the spawner; never return."""
    code = 1
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (writable, 1), (errors, 2)):
            os.dup2(source, target)
        from trellis.cli import main as command

        code = command(["serve", *flags])
        sys.stderr.flush()
    finally:
        os._exit(code)


def _end(pid: int, number: int, children: set[int]) -> dict[str, Any]:
    """Send a signal to a broker, wait until it ends, and return the answer: its exit code."""
    if pid not in children:
        return {"error": f"process {pid} is not a broker that this spawner has started"}
    os.kill(pid, number)
    _, status = os.waitpid(pid, 0)
    children.discard(pid)
    return {"code": os.waitstatus_to_exitcode(status)}


if __name__ == "__main__":
    sys.exit(main())
