"""Permissions and topic permissions of users: list, set and delete them.

Permissions in the settings are listed too, but can be changed only in the settings. The API can set
the permissions of a user of the settings in a virtual host that the settings do not name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from broker.access.roles import RoleGrant
from broker.access.rules import UserPermissions
from broker.access.users import User
from broker.names import checked_name
from broker.store.contract import Ticket
from broker.vhost.vhost import VirtualHost
from trellis.auth.settings_users import SettingsIdentity
from trellis.http.management.answers import (
    Call,
    Empty,
    Listing,
    Row,
    bad_request,
    iterate,
    not_found,
    text,
)
from trellis.http.management.roles import role_grants
from trellis.http.management.settings_users import change_advice
from trellis.http.management.users import known_user

#: The permission of a user that has topic permissions or rules only: it permits no name.
NO_PERMISSION: Final = ("", "", "")


def _permission(user: str, vhost: str, permission: tuple[str, str, str]) -> Row:
    configure, write, read = permission
    return {"user": user, "vhost": vhost, "configure": configure, "write": write, "read": read}


def _permission_of(call: Call, name: str, vhost: str) -> tuple[str, str, str] | None:
    """Return a user's permission in a virtual host; None if there is none.

    A permission is the patterns of the names that the user may configure, write and read.
    """
    account = call.node.accounts.settings_accounts.get(name)
    stored = call.broker.users.by_name.get(name)
    if account is not None:
        if isinstance(account.identity, SettingsIdentity):
            if vhost in account.identity.rights:
                return account.identity.rights[vhost].permission
        elif account.is_fixed(vhost) or stored is None or vhost not in stored.permissions:
            return (".*", ".*", ".*")
        if account.is_fixed(vhost):
            return None
    return None if stored is None else stored.permissions.get(vhost)


def grant_in_force(call: Call, name: str, vhost: str) -> RoleGrant | None:
    """Return the permission and the topic rules that apply to a user in a virtual host.

    A user without a permission of its own in the virtual host has the permission and the rules of
    its role. Return None if the user may not use the virtual host.
    """
    permission = _permission_of(call, name, vhost)
    stored = call.broker.users.by_name.get(name)
    if permission is not None:
        has_own = stored is not None and vhost in stored.permissions
        return RoleGrant(permission, stored.rules.get(vhost, ()) if stored and has_own else ())
    if stored is None:
        return None
    return next((grant for granted, grant in role_grants(call, stored) if granted == vhost), None)


def _permissions(call: Call) -> Iterator[Row]:
    for account in call.node.accounts.settings_accounts.values():
        if isinstance(account.identity, SettingsIdentity):
            for vhost, rights in account.identity.rights.items():
                yield _permission(account.identity.name, vhost, rights.permission)
        else:
            stored = call.broker.users.by_name.get(account.identity.name)
            for vhost in list(call.broker.vhosts):
                if account.is_fixed(vhost) or stored is None or vhost not in stored.permissions:
                    yield _permission(account.identity.name, vhost, (".*", ".*", ".*"))
    for user in list(call.broker.users.by_name.values()):
        known = call.node.accounts.settings_accounts.get(user.name)
        for vhost, permission in list(user.permissions.items()):
            if known is None or not known.is_fixed(vhost):
                yield _permission(user.name, vhost, permission)
        for vhost, grant in role_grants(call, user):
            yield _permission(user.name, vhost, grant.permission) | {"role": user.role_name}


async def permissions(call: Call) -> Listing:
    """List the permissions of all users in all virtual hosts."""
    return Listing(iterate(_permissions(call)))


async def vhost_permissions(call: Call) -> Listing:
    """List the permissions of all users in the virtual host that the path names."""
    return _of_vhost(call, _permissions(call))


async def user_permissions(call: Call) -> Listing:
    """List the permissions of the user that the path names, in all virtual hosts."""
    return _of_user(call, _permissions(call))


def _of_vhost(call: Call, rows: Iterable[Row]) -> Listing:
    """Return a Listing of the rows of the virtual host in the path. Raises ApiRefusal."""
    vhost = call.vhost(call.path_parameters[0])
    return Listing(iterate(row if row["vhost"] == vhost.name else None for row in rows))


def _of_user(call: Call, rows: Iterable[Row]) -> Listing:
    """Return a Listing of the rows of the user in the path. Raises ApiRefusal."""
    name = call.path_parameters[0]
    known_user(call, name)
    return Listing(iterate(row if row["user"] == name else None for row in rows))


def user_of_path(call: Call) -> tuple[VirtualHost, str]:
    """Return the virtual host and the user that a path names. Raises ApiRefusal."""
    vhost, name = call.vhost(call.path_parameters[0]), call.path_parameters[1]
    known_user(call, name)
    return vhost, name


def define_holder(call: Call, new: UserPermissions, ticket: Ticket) -> None:
    """Store the user of the permissions `new` if only the settings define this user so far.

    The stored user only holds permissions: it has no password and no tags. The constructor of `new`
    has already raised PreconditionFailed for an invalid pattern or rule, so no user is stored for
    an invalid request.
    """
    if new.user not in call.broker.users.by_name:
        call.broker.users.define(new.user, "", [], ticket)


def changeable_user(call: Call) -> tuple[VirtualHost, str]:
    """Return the virtual host and the user in a path, before a change of the user's permissions.

    A user that the settings define is possibly not stored yet; `define_holder` stores it. Raises
    ApiRefusal, for example if the settings define the permissions.
    """
    vhost, name = user_of_path(call)
    account = call.node.accounts.settings_accounts.get(name)
    if account is not None and account.is_fixed(vhost.name):
        raise bad_request(
            f"the permissions of user '{name}' in vhost '{vhost.name}' are defined in the "
            f"settings: {change_advice(call, name)}"
        )
    return vhost, name


def user_with_permissions(call: Call) -> tuple[VirtualHost, User]:
    """Return the virtual host and the user in a path, before the user's permissions are revoked.

    Raises ApiRefusal, for example if the user has no permissions of its own in the virtual host.
    """
    vhost, name = changeable_user(call)
    user = call.broker.users.by_name.get(name)
    if user is None or vhost.name not in user.permissions:
        raise not_found(f"user '{name}' has no permissions in vhost '{vhost.name}'")
    return vhost, user


async def permission(call: Call) -> Row:
    """Return the permissions of the user in the virtual host that the path names."""
    vhost, name = user_of_path(call)
    permissions = _permission_of(call, name, vhost.name)
    if permissions is not None:
        return _permission(name, vhost.name, permissions)
    stored = call.broker.users.by_name.get(name)
    if stored is not None:
        for granted, grant in role_grants(call, stored):
            if granted == vhost.name:
                return _permission(name, granted, grant.permission) | {"role": stored.role_name}
    raise not_found(f"user '{name}' has no permissions in vhost '{vhost.name}'")


async def put_permission(call: Call) -> Empty:
    """Set the permissions of the user in the virtual host that the path names."""
    vhost, name = changeable_user(call)
    row = call.body()
    configure, write, read = (text(row, field) for field in ("configure", "write", "read"))
    new = UserPermissions(name, vhost.name, (configure, write, read))

    def set_(ticket: Ticket) -> bool:
        define_holder(call, new, ticket)
        users = call.broker.users
        return users.set_permission(vhost.name, name, configure, write, read, ticket)

    return Empty(await call.make_durable(set_))


async def delete_permission(call: Call) -> Empty:
    """Revoke the permissions of the user in the virtual host that the path names."""
    vhost, name = changeable_user(call)
    if not await call.make_durable(
        lambda ticket: call.broker.users.remove_permission(vhost.name, name, ticket)
    ):
        raise not_found(f"user '{name}' has no permissions in vhost '{vhost.name}'")
    return Empty()


# -- RabbitMQ's topic permissions


def _topics(call: Call) -> Iterator[Row]:
    for user in list(call.broker.users.by_name.values()):
        for vhost, topics in list(user.topics.items()):
            for exchange, (write, read) in topics.items():
                yield {
                    "user": user.name,
                    "vhost": vhost,
                    "exchange": exchange,
                    "write": write,
                    "read": read,
                }


async def topic_permissions(call: Call) -> Listing:
    """List the topic permissions of all users in all virtual hosts."""
    return Listing(iterate(_topics(call)))


async def vhost_topic_permissions(call: Call) -> Listing:
    """List the topic permissions of all users in the virtual host that the path names."""
    return _of_vhost(call, _topics(call))


async def user_topic_permissions(call: Call) -> Listing:
    """List the topic permissions of the user that the path names, in all virtual hosts."""
    return _of_user(call, _topics(call))


async def topic_permission(call: Call) -> Listing:
    """List the topic permissions of the user in the virtual host that the path names.

    Raises ApiRefusal if the user has no topic permissions there.
    """
    vhost, name = user_of_path(call)
    user = call.broker.users.by_name.get(name)
    if user is None or not user.topics.get(vhost.name):
        raise not_found(f"user '{name}' has no topic permissions in vhost '{vhost.name}'")
    return Listing(
        iterate(
            row if row["user"] == name and row["vhost"] == vhost.name else None
            for row in _topics(call)
        )
    )


async def put_topic_permission(call: Call) -> Empty:
    """Set a user's topic permission in a virtual host, for the exchange in the body."""
    vhost, name = changeable_user(call)
    row = call.body()
    exchange, patterns = text(row, "exchange"), (text(row, "write"), text(row, "read"))
    checked_name("exchange", exchange)
    new = UserPermissions(name, vhost.name, NO_PERMISSION, (), {exchange: patterns})

    def set_(ticket: Ticket) -> bool:
        define_holder(call, new, ticket)
        users = call.broker.users
        return users.set_topic_permission(vhost.name, name, exchange, patterns, ticket)

    return Empty(await call.make_durable(set_))


async def delete_topic_permission(call: Call) -> Empty:
    """Delete a user's topic permission for the exchange in the path, or for all exchanges."""
    vhost, name = changeable_user(call)
    exchanges = call.path_parameters[2:]
    if name in call.broker.users.by_name:
        await call.make_durable(
            lambda ticket: call.broker.users.remove_topic_permissions(
                vhost.name, name, exchanges, ticket
            )
        )
    return Empty()
