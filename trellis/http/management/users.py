"""Users, their permissions and topic rules: list, create, change and delete them.

Users of the settings are listed too, but can be changed only in the settings. The API can set the
permissions of such a user in a virtual host that the settings do not name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

from broker.access.users import User
from broker.vhost.vhost import VirtualHost
from trellis.auth.account import Account
from trellis.auth.passwords import HASHER, check_hash, show_hash
from trellis.auth.settings_users import SettingsIdentity
from trellis.http.management.answers import (
    ApiRefusal,
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

TAGS: Final = ("administrator", "monitoring", "policymaker", "management")


def _user_row(user: User) -> Row:
    password_hash, algorithm = show_hash(user.password_hash)
    return {
        "name": user.name,
        "password_hash": password_hash,
        "hashing_algorithm": algorithm,
        "tags": list(user.tags),
        "limits": dict(user.limits),
        "role": user.role_name,
    }


def _account_row(account: Account) -> Row:
    identity = account.identity
    return {
        "name": identity.name,
        "tags": list(identity.tags),
        "limits": {},
        "from": "settings",
        "loopback_only": account.loopback_only,
    }


def _rows(call: Call) -> Iterator[Row]:
    accounts = call.node.accounts.settings_accounts
    yield from map(_account_row, accounts.values())
    for user in list(call.broker.users.by_name.values()):
        if user.name not in accounts:
            yield _user_row(user)


async def users(call: Call) -> Listing:
    """List all users."""
    return Listing(iterate(_rows(call)))


async def users_without_permissions(call: Call) -> Listing:
    """List the users without permissions in any virtual host."""
    return Listing(
        iterate(
            _user_row(user)
            if not user.permissions
            and user.role is None
            and user.name not in call.node.accounts.settings_accounts
            else None
            for user in list(call.broker.users.by_name.values())
        )
    )


def _known(call: Call, name: str) -> User | Account:
    """Return the user with a name. Raises ApiRefusal."""
    account = call.node.accounts.settings_accounts.get(name)
    user = account or call.broker.users.by_name.get(name)
    if user is None:
        raise not_found(f"there is no user '{name}'")
    return user


def _changeable(call: Call, name: str) -> None:
    """Raise ApiRefusal if the settings define the user: the API cannot change such a user."""
    if name in call.node.accounts.settings_accounts:
        raise bad_request(
            f"user '{name}' is defined in the settings: change it there, then send SIGHUP"
        )


async def user(call: Call) -> Row:
    """Return the user that the path names."""
    known = _known(call, call.path_parameters[0])
    return _account_row(known) if isinstance(known, Account) else _user_row(known)


async def put_user(call: Call) -> Empty:
    """Create or change the user that the path names."""
    name, row = call.path_parameters[0], call.body()
    _changeable(call, name)
    tags = row.get("tags")
    if isinstance(tags, str):
        tags = [tag.strip() for tag in tags.split(",") if tag.strip()]
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise bad_request(
            "'tags' must be a list of texts, or one text with commas, of "
            + ", ".join(TAGS)
            + "; it may be empty"
        )
    password_hash = await _password_hash(call, name, row)
    role = text(row, "role") if "role" in row else None
    known = name in call.broker.users.by_name
    await call.make_durable(
        lambda ticket: call.broker.users.define(name, password_hash, tags, ticket, None, role)
    )
    return Empty(not known)


async def _password_hash(call: Call, name: str, row: Row) -> str:
    """Return the password hash of a user that a request creates or changes.

    It is the hash in the request, or the hash of the password in the request. If the request has
    neither, it is the user's present hash. Raises ApiRefusal, ValueError.
    """
    if row.get("password_hash") is not None:
        return check_hash(text(row, "password_hash"), text(row, "hashing_algorithm", ""))
    if row.get("password") is not None:
        password = text(row, "password")
        if not password:
            raise bad_request(
                "the password is empty; for a user without a password, which logs in with a "
                "certificate, set password_hash to an empty text"
            )
        return await asyncio.get_running_loop().run_in_executor(
            None, HASHER.hash, password.encode("utf-8", "surrogateescape")
        )
    known = call.broker.users.by_name.get(name)
    if known is None:
        raise bad_request("'password' or 'password_hash' is missing")
    return known.password_hash


async def delete_user(call: Call) -> Empty:
    """Delete the user that the path names."""
    name = call.path_parameters[0]
    _known(call, name)
    _changeable(call, name)
    await call.make_durable(lambda ticket: call.broker.users.remove(name, ticket))
    return Empty()


async def bulk_delete(call: Call) -> Empty:
    """Delete the users that the body names in the list `users`."""
    names = call.body().get("users")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request("'users' is not a list of names")
    for name in names:
        _changeable(call, name)
    for done, name in enumerate(names):
        try:
            await call.make_durable(partial(call.broker.users.remove, name))
        except TimeoutError:
            raise ApiRefusal(
                503,
                "timeout",
                f"{done} of {len(names)} users are deleted; the deletion of user '{name}' is not "
                "durable yet because the disk is slow; delete the remaining users again",
            ) from None
    return Empty()


# -- permissions


def _permission(user: str, vhost: str, permission: tuple[str, str, str]) -> Row:
    configure, write, read = permission
    return {"user": user, "vhost": vhost, "configure": configure, "write": write, "read": read}


def _permission_of(call: Call, name: str, vhost: str) -> tuple[str, str, str] | None:
    """Return the permission of one user in one virtual host; None if there is none."""
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
    _known(call, name)
    return Listing(iterate(row if row["user"] == name else None for row in rows))


def _both(call: Call) -> tuple[VirtualHost, str]:
    """Return the virtual host and the user that a path names. Raises ApiRefusal."""
    vhost, name = call.vhost(call.path_parameters[0]), call.path_parameters[1]
    _known(call, name)
    return vhost, name


def _owned(call: Call) -> tuple[VirtualHost, User]:
    """Return the virtual host and the user in a path, before a change of the user's permissions.

    Raises ApiRefusal, for example if the settings define the permissions.
    """
    vhost, name = _both(call)
    account = call.node.accounts.settings_accounts.get(name)
    if account is not None:
        if account.is_fixed(vhost.name):
            raise bad_request(
                f"the permissions of user '{name}' in vhost '{vhost.name}' are defined in the "
                "settings: change them there, then send SIGHUP"
            )
        if name not in call.broker.users.by_name:
            # The stored user only holds permissions: it has no password and no tags.
            call.broker.users.define(name, "", [])
    return vhost, call.broker.users.by_name[name]


async def permission(call: Call) -> Row:
    """Return the permissions of the user in the virtual host that the path names."""
    vhost, name = _both(call)
    found = _permission_of(call, name, vhost.name)
    if found is not None:
        return _permission(name, vhost.name, found)
    stored = call.broker.users.by_name.get(name)
    if stored is not None:
        for granted, grant in role_grants(call, stored):
            if granted == vhost.name:
                return _permission(name, granted, grant.permission) | {"role": stored.role_name}
    raise not_found(f"user '{name}' has no permissions in vhost '{vhost.name}'")


async def put_permission(call: Call) -> Empty:
    """Set the permissions of the user in the virtual host that the path names."""
    vhost, user = _owned(call)
    row = call.body()
    configure, write, read = (text(row, field) for field in ("configure", "write", "read"))
    fresh = await call.make_durable(
        lambda ticket: call.broker.users.set_permission(
            vhost.name, user.name, configure, write, read, ticket
        )
    )
    return Empty(fresh)


async def delete_permission(call: Call) -> Empty:
    """Revoke the permissions of the user in the virtual host that the path names."""
    vhost, user = _owned(call)
    if not await call.make_durable(
        lambda ticket: call.broker.users.remove_permission(vhost.name, user.name, ticket)
    ):
        raise not_found(f"user '{user.name}' has no permissions in vhost '{vhost.name}'")
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

    Raises ApiRefusal if there are none.
    """
    vhost, name = _both(call)
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
    vhost, user = _owned(call)
    row = call.body()
    exchange, patterns = text(row, "exchange"), (text(row, "write"), text(row, "read"))
    fresh = await call.make_durable(
        lambda ticket: call.broker.users.set_topic_permission(
            vhost.name, user.name, exchange, patterns, ticket
        )
    )
    return Empty(fresh)


async def delete_topic_permission(call: Call) -> Empty:
    """Delete a user's topic permission for the exchange in the path, or for all exchanges."""
    vhost, user = _owned(call)
    exchanges = call.path_parameters[2:]
    await call.make_durable(
        lambda ticket: call.broker.users.remove_topic_permissions(
            vhost.name, user.name, exchanges, ticket
        )
    )
    return Empty()


# -- ordered rules about topics


def _rules(call: Call) -> Iterator[Row]:
    for account in call.node.accounts.settings_accounts.values():
        if isinstance(account.identity, SettingsIdentity):
            for vhost, rights in account.identity.rights.items():
                if rights.rules:
                    yield _rule_row(account.identity.name, vhost, rights.rules)
    for user in list(call.broker.users.by_name.values()):
        for vhost, rules in list(user.rules.items()):
            yield _rule_row(user.name, vhost, rules)
        for vhost, grant in role_grants(call, user):
            if grant.rules:
                yield _rule_row(user.name, vhost, grant.rules) | {"role": user.role_name}


def _rule_row(user: str, vhost: str, rules: Iterable[str]) -> Row:
    return {"user": user, "vhost": vhost, "rules": list(rules)}


async def rules(call: Call) -> Listing:
    """List the topic rules of all users in all virtual hosts."""
    return Listing(iterate(_rules(call)))


async def rules_of(call: Call) -> Row:
    """Return the topic rules of the user in the virtual host that the path names."""
    vhost, name = _both(call)
    account = call.node.accounts.settings_accounts.get(name)
    if account is not None and isinstance(account.identity, SettingsIdentity):
        rights = account.identity.rights.get(vhost.name)
        if rights is not None and rights.rules:
            return _rule_row(name, vhost.name, rights.rules)
    stored = call.broker.users.by_name.get(name)
    return _rule_row(name, vhost.name, () if stored is None else stored.rules.get(vhost.name, ()))


async def put_rules(call: Call) -> Empty:
    """Replace the topic rules of the user in the virtual host that the path names."""
    vhost, user = _owned(call)
    given: Any = call.body().get("rules")
    if not isinstance(given, list) or not all(isinstance(rule, str) for rule in given):
        raise bad_request(
            "'rules' is not a list of texts such as 'allow publish sensors/{username}/#'"
        )
    fresh = vhost.name not in user.rules
    await call.make_durable(
        lambda ticket: call.broker.users.set_rules(vhost.name, user.name, given, ticket)
    )
    return Empty(fresh)


async def delete_rules(call: Call) -> Empty:
    """Delete the topic rules of the user in the virtual host that the path names."""
    vhost, user = _owned(call)
    await call.make_durable(
        lambda ticket: call.broker.users.set_rules(vhost.name, user.name, [], ticket)
    )
    return Empty()
