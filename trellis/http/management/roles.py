"""Roles, which many users share: list, create, change and delete them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from broker.access.roles import Role, RoleGrant, grants_of
from broker.access.users import User
from trellis.http.management.answers import Call, Empty, Listing, Row, iterate, not_found


def _row(role: Role, users: int) -> Row:
    return {"name": role.name, **role.row, "users": users}


async def roles(call: Call) -> Listing:
    """List the roles, with the number of users of each."""
    counts = Counter(user.role_name for user in call.broker.users.by_name.values())
    known = list(call.broker.users.roles.by_name.values())
    return Listing(iterate(_row(role, counts[role.name]) for role in known))


def known_role(call: Call) -> Role:
    """Return the role that the path names. Raises ApiRefusal."""
    name = call.path_parameters[0]
    role = call.broker.users.roles.by_name.get(name)
    if role is None:
        raise not_found(f"there is no role '{name}'")
    return role


async def role(call: Call) -> Row:
    """Return the role that the path names."""
    known = known_role(call)
    users = sum(user.role is known for user in call.broker.users.by_name.values())
    return _row(known, users)


async def put_role(call: Call) -> Empty:
    """Create the role that the path names, or replace its permissions and rules in all vhosts."""
    name, grants = call.path_parameters[0], grants_of(call.body().get("vhosts"))
    for vhost in grants:
        call.vhost(vhost)
    known = name in call.broker.users.roles.by_name
    await call.make_durable(lambda ticket: call.broker.users.define_role(name, grants, ticket))
    return Empty(not known)


async def delete_role(call: Call) -> Empty:
    """Delete the role that the path names. A role that a user has cannot be deleted."""
    name = known_role(call).name
    await call.make_durable(lambda ticket: call.broker.users.remove_role(name, ticket))
    return Empty()


def role_grants(call: Call, user: User) -> Iterator[tuple[str, RoleGrant]]:
    """Yield (virtual host, grant) for each virtual host in which the user's role decides."""
    known = call.node.accounts.settings_accounts.get(user.name)
    for vhost in list(call.broker.vhosts) if known is None else ():
        grant = user.role_grant(vhost)
        if grant is not None:
            yield vhost, grant
