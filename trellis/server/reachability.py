"""Logs at the start whether clients of other machines can connect and log in."""

from __future__ import annotations

import ipaddress
from typing import Final

from trellis import logs
from trellis.auth.authenticate import Accounts
from trellis.settings import Settings

#: Listeners for operators. Clients of other machines are not expected there, so these listeners are
#: not checked.
_FOR_OPERATORS: Final = frozenset(("metrics", "http", "https"))


def log_reachability(settings: Settings, accounts: Accounts) -> None:
    """Log whether clients of other machines can log in.

    Log a warning if clients of other machines can connect, but no user may log in from there.
    """
    open_to_others = [
        name
        for name, listener in settings.listeners.items()
        if name not in _FOR_OPERATORS
        and any(not ipaddress.ip_address(address).is_loopback for address in listener.addresses)
    ]
    names = ",".join(open_to_others)
    if not open_to_others:
        logs.info(
            "reachable",
            clients="this machine",
            note="the listeners for clients are on loopback; set amqp.host and mqtt.host to serve "
            "other machines",
        )
    elif accounts.serves_other_machines or settings.jwt.enabled or settings.amqtt.plugins:
        logs.info("reachable", clients="all machines", listeners=names)
    else:
        logs.warning(
            "no_remote_user",
            listeners=names,
            note="clients of other machines can connect, but no user may log in from there; add "
            "one: `trellis users add NAME`, then `trellis permissions set NAME '.*' '.*' '.*'`",
        )
