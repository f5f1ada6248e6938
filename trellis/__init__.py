"""The top floor of Trellis: sockets, event loop, timers, settings, HTTP, command line.

Beneath it nothing waits: `protocols` turns bytes into calls, `broker` is the model, `matching`
answers topics. This package gives them a clock, transports and threads, and it is the only place
where asyncio is imported.

Read in this order:

    settings/         what can be set, and where a value comes from
    app.py            puts the parts together and takes them apart again
    listener.py       accepts connections
    link.py           one transport and one sans-IO connection
    turn.py           the work of one loop turn: clock in, input, output once
    authenticate.py   verdicts on credentials, away from the loop
    http.py           the small HTTP server;  metrics.py  what it says to Prometheus
    logs.py           log lines;  collector.py  when Python's garbage is collected
    cli/              the command `trellis`
"""

import importlib
from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("trellis-broker")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+source"


def compiled() -> bool:
    """Does the core run as compiled extension modules?"""
    return (importlib.import_module("broker.queues.queue").__file__ or "").endswith((".so", ".pyd"))
