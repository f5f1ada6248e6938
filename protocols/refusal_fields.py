"""The fields of a log line about a refusal."""

from __future__ import annotations


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


def unlogged(event: str, fields: dict[str, object]) -> None:
    """Drop an event. Used while no server has set `ConnectionRegistry.log`."""
