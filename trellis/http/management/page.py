"""The broker's part of the web page: its login, its logout, and the state that it shows."""

from __future__ import annotations

from trellis.http.management.answers import Call, Empty, Row


async def open_session(call: Call) -> Row:
    """Open a session of the web page for the user that makes the request; return the session's
    token.
    """
    return {"token": call.page_sessions.open(call.identity, call.request.local), **_user(call)}


async def close_session(call: Call) -> Empty:
    """End the session of the web page that sent the request: log out."""
    call.page_sessions.close(call.request.session)
    return Empty()


async def user(call: Call) -> Row:
    """Return name, tags and node of the user that makes the request, for the web page."""
    return _user(call)


async def now(call: Call) -> Row:
    """Return the present state of the broker: rates, totals, alarms, deepest queues, refusals."""
    return await call.live_status.sample()


def _user(call: Call) -> Row:
    tags = set(call.identity.tags)
    if call.identity.administrator:
        tags.add("administrator")
    return {"user": call.identity.name, "tags": sorted(tags), "node": call.broker.name}
