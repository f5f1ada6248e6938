"""The time at which the credentials of a connected client expire."""

from __future__ import annotations

from mypy_extensions import i64

from broker.access.identity import Identity
from broker.agenda import Agenda


def expiry_of(identity: Identity | None, agenda: Agenda) -> i64:
    """Return when the credentials of this identity expire, in ms of Agenda.now; 0 for never."""
    if identity is None or identity.expires == 0.0:
        return 0
    return max(1, agenda.now + i64((identity.expires - agenda.wall) * 1000))
