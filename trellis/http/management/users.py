"""Users: list, create, change and delete them.

Users of the settings are listed too, but can be changed only in the settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Final

from broker.access.users import User
from trellis.auth.account import Account
from trellis.auth.passwords import HASHER, check_hash, show_hash
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
from trellis.http.management.settings_users import change_advice

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


def _account_row(call: Call, account: Account) -> Row:
    identity = account.identity
    stored = call.broker.users.by_name.get(identity.name)
    return {
        "name": identity.name,
        "tags": list(identity.tags),
        "limits": {} if stored is None else dict(stored.limits),
        "from": "settings",
        "loopback_only": account.loopback_only,
    }


def _rows(call: Call) -> Iterator[Row]:
    accounts = call.node.accounts.settings_accounts
    yield from (_account_row(call, account) for account in accounts.values())
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


def known_user(call: Call, name: str) -> User | Account:
    """Return the user with a name. Raises ApiRefusal."""
    account = call.node.accounts.settings_accounts.get(name)
    user = account or call.broker.users.by_name.get(name)
    if user is None:
        raise not_found(f"there is no user '{name}'")
    return user


def require_changeable(call: Call, name: str) -> None:
    """Raise ApiRefusal if the settings define the user: the API cannot change such a user."""
    if name in call.node.accounts.settings_accounts:
        raise bad_request(f"user '{name}' is defined in the settings: {change_advice(call, name)}")


async def user(call: Call) -> Row:
    """Return the user that the path names."""
    known = known_user(call, call.path_parameters[0])
    return _account_row(call, known) if isinstance(known, Account) else _user_row(known)


async def put_user(call: Call) -> Empty:
    """Create or change the user that the path names."""
    name, row = call.path_parameters[0], call.body()
    require_changeable(call, name)
    tags = row.get("tags")
    if isinstance(tags, str):
        tags = [tag.strip() for tag in tags.split(",") if tag.strip()]
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise bad_request(
            "'tags' must be a list of tags, or a text with tags separated by commas; the tags "
            "are " + ", ".join(TAGS)
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

    The request may have the hash, or a password to hash. For a request without hash and password,
    return the user's present hash. Raises ApiRefusal if the request has an empty password, or has
    no password for a new user, and ValueError for an invalid hash.
    """
    if row.get("password_hash") is not None:
        return check_hash(text(row, "password_hash"), text(row, "hashing_algorithm", ""))
    if row.get("password") is not None:
        password = text(row, "password")
        if not password:
            raise bad_request(
                f"the password of user '{name}' is empty; for a user without a password, which "
                "logs in with a certificate, set password_hash to an empty text"
            )
        return await asyncio.get_running_loop().run_in_executor(
            None, HASHER.hash, password.encode("utf-8", "surrogateescape")
        )
    known = call.broker.users.by_name.get(name)
    if known is None:
        raise bad_request(
            f"user '{name}' does not exist: to create the user, give 'password' or 'password_hash'"
        )
    return known.password_hash


async def delete_user(call: Call) -> Empty:
    """Delete the user that the path names."""
    name = call.path_parameters[0]
    known_user(call, name)
    require_changeable(call, name)
    await call.make_durable(lambda ticket: call.broker.users.remove(name, ticket))
    return Empty()


async def bulk_delete(call: Call) -> Empty:
    """Delete the users that the body names in the list `users`."""
    names = call.body().get("users")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request("the field 'users' must be a list of names of users")
    for name in names:
        require_changeable(call, name)
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
