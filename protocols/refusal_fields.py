"""Fields of a log line about a refusal, and its note if the client speaks another protocol."""

from __future__ import annotations

from typing import Final

#: A note shows this number of the bytes that a client sent first.
FIRST_BYTES: Final = 8


def refusal_fields(
    protocol: str, owner: tuple[str, str], address: str, note: str, fields: dict[str, object] | None
) -> dict[str, object]:
    """Return the fields of a log line about a refusal: the client's protocol, user, virtual host
    and address, then `fields` and `note`. `owner` is the pair of user and virtual host.
    """
    more = dict(fields or {})
    user, vhost = owner
    user = str(more.pop("user", user))
    line: dict[str, object] = {"protocol": protocol}
    if user:
        line["user"] = user
    if vhost:
        line["vhost"] = vhost
    line["address"] = address
    return {**line, **more, "note": note}


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
