"""Roles: named sets of permissions and topic rules that many users share.

    role    name -> for each virtual host: configure, write, read; topic rules

In the store, a role is an entry of the virtual host USERS_VHOST.

A user has at most one role. In a virtual host in which the user has a permission of its own, only
the user's own permission and rules apply. In all other virtual hosts, the permissions and rules of
the role apply. Variables such as `{username}` in a role stand for the user that has the role.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.access.reservations import is_reservation
from broker.access.rules import UserPermissions, check_rule_variables
from broker.errors import PreconditionFailed
from broker.names import checked_name
from broker.store.contract import Store, Ticket
from broker.store.entries import Defined, Undefined

#: The virtual host under which the store keeps users and roles, because they belong to no virtual
#: host.
USERS_VHOST = "/"


class RoleGrant:
    """The permissions (configure, write, read) and the topic rules of a role in a virtual host."""

    def __init__(self, permission: tuple[str, str, str], rules: Sequence[str]) -> None:
        self.permission = permission
        self.rules = tuple(rules)

    @property
    def row(self) -> dict[str, object]:
        """The grant as a mapping, which the store keeps and the HTTP API returns."""
        configure, write, read = self.permission
        return {"configure": configure, "write": write, "read": read, "rules": list(self.rules)}


class Role:
    """A named set of permissions and topic rules: virtual host -> RoleGrant.

    A change of the role replaces `grants`, so that the change applies to all users of the role.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.grants: dict[str, RoleGrant] = {}

    def permissions_of(
        self, user: str, vhost: str, known: UserPermissions | None
    ) -> UserPermissions | None:
        """Return the permissions that this role gives the user in a virtual host.

        Return None if the role gives no permission in the virtual host, or if a pattern or a rule
        becomes invalid when the user name replaces its variables.

        `known` is the result of an earlier call, or None. If the role has not changed since that
        call, return `known` again, so that the user's cached routes stay valid.
        """
        grant = self.grants.get(vhost)
        if grant is None:
            return None
        if known is not None and known.equals(grant.permission, grant.rules, {}):
            return known
        try:
            return UserPermissions(user, vhost, grant.permission, grant.rules)
        except PreconditionFailed:
            # A pattern or a rule is too long after the user name has replaced its variables.
            return None

    @property
    def row(self) -> dict[str, object]:
        """The role without its name, as a mapping that the store keeps and the HTTP API returns."""
        return {"vhosts": {vhost: grant.row for vhost, grant in self.grants.items()}}


class Roles:
    """All roles, by name."""

    def __init__(self, store: Store) -> None:
        self.by_name: dict[str, Role] = {}
        self._store = store

    def find(self, name: str) -> Role:
        """Return the role of this name. Raises PreconditionFailed if there is none."""
        role = self.by_name.get(name)
        if role is None:
            raise PreconditionFailed(
                f"there is no role '{name}': create it with `trellis roles set`"
            )
        return role

    def define(
        self, name: str, grants: Mapping[str, RoleGrant], ticket: Ticket | None = None
    ) -> bool:
        """Create a role, or replace its permissions and rules in all virtual hosts.

        Return True if the role is new or has changed. Raises PreconditionFailed, and changes
        nothing, if the name, a pattern or a rule is invalid.
        """
        checked_name("role", name)
        for vhost, grant in grants.items():
            _check(name, vhost, grant)
        role = Role(name)
        role.grants = dict(grants)
        known = self.by_name.get(name)
        if known is not None and known.row == role.row:
            # An earlier request has made this change, which may not be durable yet: wait for it.
            self._store.reply_when_all_durable(ticket)
            return False
        self._put(role, ticket)
        return True

    def _put(self, role: Role, ticket: Ticket | None) -> None:
        """Store a role. If a role of this name exists, replace its grants."""
        self._store.define(Defined(USERS_VHOST, "role", role.name, role.row), ticket)
        self.by_name.setdefault(role.name, role).grants = role.grants

    def remove(self, name: str, ticket: Ticket | None = None) -> bool:
        """Delete a role; return True if it existed. The caller checks that no user has the role."""
        if self.by_name.pop(name, None) is None:
            return False
        self._store.define(Undefined(USERS_VHOST, "role", name), ticket)
        return True

    def remove_vhost(self, vhost: str, ticket: Ticket | None = None) -> None:
        """Remove a deleted virtual host from all roles.

        The rules of a role in other virtual hosts are not checked again: an earlier version may
        have stored rules that are refused today.
        """
        for known in list(self.by_name.values()):
            if vhost in known.grants:
                role = Role(known.name)
                role.grants = {name: one for name, one in known.grants.items() if name != vhost}
                self._put(role, ticket)

    def add(self, name: str, row: Mapping[str, object]) -> None:
        """Add a stored role when the broker starts."""
        role = self.by_name[name] = Role(name)
        role.grants = grants_of(row.get("vhosts"))


def _check(name: str, vhost: str, grant: RoleGrant) -> None:
    """Raise PreconditionFailed if a pattern or a rule in a role's grant for `vhost` is invalid."""
    for text in grant.rules:
        if is_reservation(text):
            raise PreconditionFailed(
                f"role '{name}' cannot have the rule '{text}', which reserves a client identifier: "
                "move this rule to the rules of a user"
            )
        try:
            check_rule_variables(text)
        except ValueError as error:
            raise PreconditionFailed(
                f"role '{name}': invalid rule '{text}' in vhost '{vhost}': {error}"
            ) from None
    try:
        UserPermissions("user", vhost, grant.permission, grant.rules)
    except PreconditionFailed as refusal:
        text = str(refusal).replace(f"of user 'user' in vhost '{vhost}'", f"in vhost '{vhost}'")
        raise PreconditionFailed(f"role '{name}': {text}") from None


def grants_of(given: object) -> dict[str, RoleGrant]:
    """Convert decoded JSON (virtual host -> permissions and rules) to grants by virtual host.

    A missing permission permits no name, and missing rules permit every topic. Raises
    PreconditionFailed if `given` is invalid.
    """
    if not isinstance(given, dict):
        raise PreconditionFailed(
            "the field 'vhosts' must be an object such as {VHOST: {configure, write, read, rules}}"
        )
    return {str(vhost): _grant(str(vhost), row) for vhost, row in given.items()}


def _grant(vhost: str, row: object) -> RoleGrant:
    if not isinstance(row, dict):
        raise PreconditionFailed(
            f"in the field 'vhosts', the value of vhost '{vhost}' must be an object with the "
            "fields configure, write, read and rules"
        )
    texts: list[str] = []
    for field in ("configure", "write", "read"):
        pattern = row.get(field, "")
        if not isinstance(pattern, str):
            raise PreconditionFailed(f"the field '{field}' of vhost '{vhost}' must be a string")
        texts.append(pattern)
    rules = row.get("rules", [])
    if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
        raise PreconditionFailed(f"the field 'rules' of vhost '{vhost}' must be a list of strings")
    return RoleGrant((texts[0], texts[1], texts[2]), [str(rule) for rule in rules])
