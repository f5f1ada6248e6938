"""Fields of a log line about a refusal, and its note if the client speaks another protocol."""

from __future__ import annotations

from typing import Final

from broker.errors import EXCHANGE, QUEUE, AccessRefused, BrokerError, LimitExceeded, NotFound

#: The field that tells programs why a client is refused. The field `note` has the whole reason.
CAUSE: Final = "cause"
#: Causes: the user lacks a permission or a topic rule, or a limit is reached.
ACCESS: Final = "access"
LIMIT: Final = "limit"
#: Causes: a queue or an exchange does not exist.
MISSING_QUEUE: Final = "missing_queue"
MISSING_EXCHANGE: Final = "missing_exchange"
#: A note shows this number of the bytes that a client sent first.
FIRST_BYTES: Final = 8


def refusal_fields(
    protocol: str, owner: tuple[str, str], address: str, note: str, fields: dict[str, object] | None
) -> dict[str, object]:
    """Return the fields of a log line about a refusal: the client's protocol, user, virtual host
    and address, then `fields` and `note`. `owner` is the pair of user and virtual host. A user,
    virtual host or cause that is empty is left out.
    """
    more = dict(fields or {})
    if not more.get(CAUSE):
        more.pop(CAUSE, None)
    user, vhost = owner
    user = str(more.pop("user", user))
    line: dict[str, object] = {"protocol": protocol}
    if user:
        line["user"] = user
    if vhost:
        line["vhost"] = vhost
    line["address"] = address
    return {**line, **more, "note": note}


def cause_of(error: BrokerError) -> str:
    """Return the value of the log field `cause`, such as ACCESS, for an error of the broker core.

    Return "" if the log has no word for the cause of this error.
    """
    if isinstance(error, AccessRefused):
        return ACCESS
    if isinstance(error, LimitExceeded):
        return LIMIT
    if isinstance(error, NotFound):
        return {QUEUE: MISSING_QUEUE, EXCHANGE: MISSING_EXCHANGE}.get(error.kind, "")
    return ""


def other_protocol(data: bytes, spoken: str) -> str:
    """Return the note about a client that does not speak the protocol of the port.

    `data` begins with the first bytes of the client; `spoken` names the protocol of the port.
    """
    return (
        f"the first bytes of the client are {bytes(data[:FIRST_BYTES])!r}; this port speaks "
        f"{spoken}: use the port of the client's protocol"
    )


def unlogged(event: str, fields: dict[str, object]) -> None:
    """Drop an event. Used while no server has set `ConnectionRegistry.log`."""
