"""Limits of virtual hosts and of users: list, set and delete them."""

from __future__ import annotations

from broker.store.contract import Ticket
from broker.vhost.options import USER_LIMITS, VHOST_LIMITS, limits_of
from trellis.http.management.answers import (
    ApiRefusal,
    Call,
    Empty,
    Listing,
    bad_request,
    iterate,
    not_found,
)
from trellis.http.management.users import known_user


async def vhost_limits(call: Call) -> Listing:
    """List the limits of the virtual host in the path, or of all visible virtual hosts."""
    return Listing(
        iterate(
            {"vhost": vhost.name, "value": dict(vhost.options.limits)}
            for vhost in call.path_vhosts
            if vhost.options.limits
        )
    )


def _value(call: Call, known: tuple[str, ...], thing: str) -> dict[str, int]:
    """Return the limit of a request as {name: value}: the path has the name, the body the value.

    Return {} for a value below 0, which means no limit. `known` are the valid names. `thing` names
    the virtual host or user that has the limit, for the error message. Raises PreconditionFailed.
    """
    row = call.body()
    if "value" not in row:
        raise bad_request("the field 'value' of the body is missing")
    return limits_of(thing, known, {call.path_parameters[1]: row["value"]})


async def put_vhost_limit(call: Call) -> Empty:
    """Set a limit of a virtual host, both named in the path, to the `value` in the body."""
    vhost = call.vhost(call.path_parameters[0])
    limits = dict(vhost.options.limits)
    fresh = limits.pop(call.path_parameters[1], None) is None
    limits |= _value(call, VHOST_LIMITS, f"vhost '{vhost.name}'")
    options = vhost.options.with_limits(limits)
    await call.make_durable(lambda ticket: call.broker.create_vhost(vhost.name, ticket, options))
    return Empty(fresh)


async def delete_vhost_limit(call: Call) -> Empty:
    """Delete the limit of a virtual host that the path names."""
    vhost, name = call.vhost(call.path_parameters[0]), call.path_parameters[1]
    limits = dict(vhost.options.limits)
    if limits.pop(name, None) is None:
        raise not_found(f"vhost '{vhost.name}' has no limit '{name}'")
    options = vhost.options.with_limits(limits)
    await call.make_durable(lambda ticket: call.broker.create_vhost(vhost.name, ticket, options))
    return Empty()


async def user_limits(call: Call) -> Listing:
    """List the limits of the user in the path, or of all users that the requester may see.

    Raises ApiRefusal if the requester may not see the limits of the user in the path. The error
    does not tell whether this user exists.
    """
    stored = call.broker.users.by_name
    if call.path_parameters:
        name = call.path_parameters[0]
        if not call.sees_everything and name != call.identity.name:
            raise ApiRefusal(
                403,
                "not_authorised",
                f"user '{call.identity.name}' lacks the tag 'monitoring', which is required to "
                "list the limits of another user",
            )
        known_user(call, name)
        users = [stored[name]] if name in stored else []
    else:
        users = list(stored.values())
    return Listing(
        iterate(
            {"user": user.name, "value": dict(user.limits)}
            if user.limits and (call.sees_everything or user.name == call.identity.name)
            else None
            for user in users
        )
    )


def _limits(call: Call) -> tuple[str, dict[str, int]]:
    """Return the name of the user in the path and a copy of the user's limits. Raises ApiRefusal.

    A user that the settings define has limits, too: the stored user of the same name holds them.
    """
    name = call.path_parameters[0]
    known_user(call, name)
    stored = call.broker.users.by_name.get(name)
    return name, {} if stored is None else dict(stored.limits)


async def _set_limits(call: Call, name: str, limits: dict[str, int]) -> None:
    """Set the limits of a user.

    A user that only the settings define is stored, too, without a password and tags.
    """

    def define(ticket: Ticket) -> None:
        users = call.broker.users
        stored = users.by_name.get(name)
        if stored is None:
            users.define(name, "", [], ticket, limits)
        else:
            users.define(name, stored.password_hash, stored.tags, ticket, limits)

    await call.make_durable(define)


async def put_user_limit(call: Call) -> Empty:
    """Set a limit of a user, both named in the path, to the `value` in the body."""
    name, limits = _limits(call)
    fresh = limits.pop(call.path_parameters[1], None) is None
    limits |= _value(call, USER_LIMITS, f"user '{name}'")
    await _set_limits(call, name, limits)
    return Empty(fresh)


async def delete_user_limit(call: Call) -> Empty:
    """Delete the limit of a user that the path names."""
    name, limits = _limits(call)
    limit = call.path_parameters[1]
    if limits.pop(limit, None) is None:
        raise not_found(f"user '{name}' has no limit '{limit}'")
    await _set_limits(call, name, limits)
    return Empty()
