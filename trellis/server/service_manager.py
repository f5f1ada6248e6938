"""Notifications to the service manager that started the broker, such as systemd.

Source of the protocol: the manual page sd_notify(3). The service manager names a datagram socket in
NOTIFY_SOCKET, and gives its watchdog time in WATCHDOG_USEC. If the service manager receives no
notification within the watchdog time, it restarts the broker. So a broker whose event loop hangs is
restarted.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import MutableMapping
from typing import Final

#: Number of notifications that keep the watchdog quiet in each watchdog time.
BEATS: Final = 3


class ServiceManager:
    """The service manager of this process. If there is none, notifications do nothing."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Read the variables of the service manager, and remove them from `environment`.

        So the child processes of the broker do not inherit these variables.
        """
        path = environment.pop("NOTIFY_SOCKET", "")
        process = environment.pop("WATCHDOG_PID", "")
        microseconds = environment.pop("WATCHDOG_USEC", "")
        #: The watchdog time in seconds; 0.0 without a watchdog.
        self.watchdog = 0.0
        if microseconds.isdecimal() and process in ("", str(os.getpid())):
            self.watchdog = int(microseconds) / 1_000_000
        self._socket: socket.socket | None = None
        if path[:1] in ("/", "@"):
            # An address that begins with @ is an abstract socket, which begins with a zero byte.
            self._address = "\0" + path[1:] if path[0] == "@" else path
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)

    def notify(self, *assignments: str) -> None:
        """Send assignments such as `READY=1`.

        Errors are ignored: the broker also serves without a service manager.
        """
        if self._socket is None:
            return
        try:
            self._socket.sendto("\n".join(assignments).encode(), self._address)
        except OSError:
            pass

    async def watch(self) -> None:
        """Notify the watchdog until the task is cancelled. Without a watchdog, do nothing."""
        while True:
            if self.watchdog:
                self.notify("WATCHDOG=1")
            await asyncio.sleep(self.watchdog / BEATS or 3600.0)

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
