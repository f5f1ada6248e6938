"""The row of a session in the list of sessions."""

from __future__ import annotations

from protocols.mqtt.session.session import Session


def session_row(session: Session) -> dict[str, object]:
    """Return the session's row in the list of sessions: values by column name.

    The column `inbox` is "" while the session has no inbox.
    """
    return {
        "client_id": session.name,
        "vhost": session.vhost.name,
        "connected": session.connection is not None,
        "persistent": session.persistent,
        "subscriptions": session.subscriptions.total,
        "inbox": session.inbox.name,
        "queued": int(session.inbox.depth),
        "in_flight": int(session.in_flight.count),
        "dropped": int(session.dropped),
        "missed": int(session.missed),
    }
