"""Topic rules of users: list, set and delete them. The order of a user's rules matters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from broker.access.rules import UserPermissions
from broker.access.users import check_variables
from broker.store.contract import Ticket
from trellis.auth.settings_users import SettingsIdentity
from trellis.http.management.answers import Call, Empty, Listing, Row, bad_request, iterate
from trellis.http.management.permissions import (
    NO_PERMISSION,
    changeable_user,
    define_holder,
    user_of_path,
)
from trellis.http.management.roles import role_grants


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
    vhost, name = user_of_path(call)
    account = call.node.accounts.settings_accounts.get(name)
    if account is not None and isinstance(account.identity, SettingsIdentity):
        rights = account.identity.rights.get(vhost.name)
        if rights is not None and rights.rules:
            return _rule_row(name, vhost.name, rights.rules)
    stored = call.broker.users.by_name.get(name)
    return _rule_row(name, vhost.name, () if stored is None else stored.rules.get(vhost.name, ()))


def given_rules(vhost: str, name: str, body: Row) -> list[str]:
    """Return the topic rules of the user `name` in the body of a request.

    Raises ApiRefusal if the rules are not a list of texts, and PreconditionFailed if a rule has an
    unknown variable.
    """
    given: Any = body.get("rules")
    if not isinstance(given, list) or not all(isinstance(rule, str) for rule in given):
        raise bad_request(
            "'rules' must be a list of texts such as 'allow publish sensors/{username}/#'"
        )
    check_variables(vhost, name, given)
    return given


async def put_rules(call: Call) -> Empty:
    """Replace the topic rules of the user in the virtual host that the path names."""
    vhost, name = changeable_user(call)
    given = given_rules(vhost.name, name, call.body())
    users = call.broker.users
    new = UserPermissions(name, vhost.name, NO_PERMISSION, given)
    fresh = name not in users.by_name or vhost.name not in users.by_name[name].rules

    def set_(ticket: Ticket) -> None:
        define_holder(call, new, ticket)
        users.set_rules(vhost.name, name, given, ticket)

    await call.make_durable(set_)
    return Empty(fresh)


async def delete_rules(call: Call) -> Empty:
    """Delete the topic rules of the user in the virtual host that the path names."""
    vhost, name = changeable_user(call)
    users = call.broker.users
    if name in users.by_name:
        await call.make_durable(lambda ticket: users.set_rules(vhost.name, name, [], ticket))
    return Empty()
