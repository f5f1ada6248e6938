"""Addresses and ports on which tests let programs listen."""

from __future__ import annotations

import os
import socket


def own_address() -> str:
    """Return an address of the loopback interface for programs of this test process alone.

    Each test process has an address of its own in 127.0.0.0/8. So a client or a load balancer that
    still connects to the port of an ended program reaches no program of another test process.
    """
    number = os.getpid()
    return "127.{}.{}.{}".format(64 + (number >> 16), *number.to_bytes(4)[2:])


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of the address `host` on which no program listened during this call."""
    with socket.socket() as one:
        one.bind((host, 0))
        return int(one.getsockname()[1])
