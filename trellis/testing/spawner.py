"""The process that starts brokers for tests: `python -m trellis.testing.spawner`.

The process loads the broker once, and forks for each broker, so that a broker serves within 0.1 s.
It reads one request per line of standard input, and answers each with one line, both in JSON:

    {"start": [FLAG, ...], "log": PATH}   {"pid": PID, "addresses": {LISTENER: "HOST:PORT"}}
    {"end": PID, "signal": NUMBER}        {"code": EXIT_CODE}
                                          {"error": TEXT}

The broker's gateway is forked, too, when the broker asks for it (programs.py), because a new Python
process needs 0.3 s for its imports.

All brokers end with the spawner, and the spawner ends when its standard input is closed, so a test
run that is killed leaves no broker.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

import argon2

from trellis.auth import passwords

#: Makes password hashes in less than 0.1 ms, instead of 24 ms at each start and login. The hashes
#: of a test protect nothing.
CHEAP: Final = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


def main() -> int:
    """Answer the requests on standard input until its end; then end all brokers."""
    # Nearly all objects of the imports stay, so a search for garbage would only take time.
    gc.disable()
    setattr(passwords, "HASHER", CHEAP)  # noqa: B010 - it is a constant elsewhere
    # Imported here, because the modules of the broker import the hasher.
    from trellis.testing.fork_server import ForkServer

    gc.enable()
    server = ForkServer()
    try:
        server.serve()
    finally:
        server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
