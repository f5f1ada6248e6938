"""The server: sockets, event loop, clocks, settings, HTTP and the command line around the broker.

The packages below (`protocols`, `broker`, `matching`) never wait and read no clock. This package
gives them a clock, transports and threads. No package below it imports asyncio.

The main packages and modules, from the top down; imports point down only:

    cli/          the command `trellis`
    app.py        builds a broker from its parts, serves, and stops it
    standby.py    the ports of a standby        switching.py   hands the log over to a standby
    http/         the management API and the process that serves it, the metrics port
    monitoring/   metrics for Prometheus, rows for `trellis list`
    server/       listeners, links, the turn of the event loop, TLS, store writer, recovery, reload
    auth/         logins by password, token or plugin; login throttling; rate limits
    settings/     all settings, and where their values come from        bench/   the load generator
    logs.py       log lines        process.py   memory, file descriptors, disk space

Begin with server/link.py (one client) and server/turn.py (one turn of the event loop).
"""

import importlib
from typing import Final

#: The version, also in pyproject.toml. To look it up in the metadata of the installed package would
#: take 10 ms of each start.
__version__: Final = "0.1.0"


def compiled() -> bool:
    """True if the core runs as compiled extension modules."""
    return (importlib.import_module("broker.queues.queue").__file__ or "").endswith((".so", ".pyd"))
