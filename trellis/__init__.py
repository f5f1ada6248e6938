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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str


def __getattr__(name: str) -> str:
    """Return the value of `trellis.__version__`, which is computed at its first use.

    Looking up the version is slow, and most commands do not need it.
    """
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        version_text = version("trellis-broker")
    except PackageNotFoundError:  # a checkout that is not installed
        version_text = "0+source"
    globals()["__version__"] = version_text
    return version_text


def compiled() -> bool:
    """True if the core runs as compiled extension modules."""
    return (importlib.import_module("broker.queues.queue").__file__ or "").endswith((".so", ".pyd"))
