"""Users and permissions that the broker stores, in addition to the users in the settings.

    user         name -> password hash, tags, role (roles.py)
    permission   virtual host, name -> configure, write, read; topic rules; topic permissions

In the store, a user is an entry of the virtual host USERS_VHOST.

Users are created at run time over HTTP or by imported definitions. The server checks passwords.
After a change, each function in `Users.changed` is called with the user's name, so that the user's
connections and sessions are authorized again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from broker.access.identity import Identity
from broker.access.reservations import Reservations
from broker.access.roles import USERS_VHOST, Role, RoleGrant, Roles
from broker.access.rules import TopicPermissions, UserPermissions, check_rule_variables
from broker.errors import PreconditionFailed
from broker.names import checked_name
from broker.store.contract import Store, Ticket
from broker.store.entries import Defined, Undefined


class User(Identity):
    """A user that the broker stores, with a separate Identity for each virtual host."""

    def __init__(
        self,
        name: str,
        password_hash: str,
        tags: list[str],
        limits: Mapping[str, int] | None = None,
        role: Role | None = None,
    ) -> None:
        super().__init__(name, "^$", "^$", "^$")
        self.role = role
        #: The permissions that the user's role gives, by virtual host.
        self._by_role: dict[str, UserPermissions] = {}
        #: Largest numbers of connections and of channels (USER_LIMITS); a missing entry means no
        #: limit.
        self.limits: dict[str, int] = dict(limits or {})
        self.password_hash = password_hash
        self.tags = tags
        self.administrator = "administrator" in tags
        #: Permissions, topic rules and topic permissions by virtual host. Rules and topic
        #: permissions may be set before the permission; they apply once it exists.
        self.permissions: dict[str, tuple[str, str, str]] = {}
        self.rules: dict[str, list[str]] = {}
        self.topics: dict[str, dict[str, tuple[str, str]]] = {}
        self._by_vhost: dict[str, UserPermissions] = {}

    def for_vhost(self, vhost: str, client_id: str = "") -> Identity | None:
        permissions = self._by_vhost.get(vhost) or self._role_permissions(vhost)
        return None if permissions is None else permissions.identity(client_id)

    def _role_permissions(self, vhost: str) -> UserPermissions | None:
        """Return the permissions that the user's role gives in `vhost`; None if it gives none."""
        if self.role is None:
            return None
        known = self._by_role.get(vhost)
        permissions = self.role.permissions_of(self.name, vhost, known)
        if permissions is not None and permissions is not known:
            self._by_role[vhost] = permissions
        return permissions

    @property
    def role_name(self) -> str:
        """The name of the user's role; "" if the user has none."""
        return "" if self.role is None else self.role.name

    def role_grant(self, vhost: str) -> RoleGrant | None:
        """Return the permissions and rules that the user gets from its role in a virtual host.

        Return None if the user has a permission of its own in `vhost`, or gets nothing from a role.
        """
        if self.role is None or vhost in self.permissions:
            return None
        return self.role.grants.get(vhost)

    def grant(
        self,
        vhost: str,
        permission: tuple[str, str, str] | None,
        rules: Sequence[str],
        topics: TopicPermissions,
    ) -> bool:
        """Replace the user's permissions and rules in a virtual host.

        `permission` has the patterns for configure, write and read; if `permission` is None, the
        user may not enter the virtual host. Return True if something changed.
        Raises PreconditionFailed, and changes nothing, if a pattern or a rule is invalid.
        """
        before = self._by_vhost.get(vhost)
        permissions = UserPermissions(self.name, vhost, permission or ("", "", ""), rules, topics)
        changed = (
            self.permissions.get(vhost) != permission
            or self.rules.get(vhost, []) != list(rules)
            or self.topics.get(vhost, {}) != dict(topics)
        )
        if not changed:
            return False
        self.rules[vhost], self.topics[vhost] = list(rules), dict(topics)
        if not rules:
            del self.rules[vhost]
        if not topics:
            del self.topics[vhost]
        if permission is None:
            self.permissions.pop(vhost, None)
            self._by_vhost.pop(vhost, None)
        else:
            self.permissions[vhost] = permission
            if before is None or not before.equals(permission, rules, topics):
                self._by_vhost[vhost] = permissions
        return True

    def copy_permissions(self, other: User) -> None:
        """Take over the permissions of `other`, which this object replaces."""
        self.permissions, self.rules, self.topics, self._by_vhost = (
            other.permissions,
            other.rules,
            other.topics,
            other._by_vhost,
        )

    @property
    def vhosts(self) -> set[str]:
        """The virtual hosts in which the user has permissions or rules."""
        return {*self.permissions, *self.rules, *self.topics}


class Users:
    """All users that the broker stores, by name."""

    def __init__(self, store: Store) -> None:
        self.by_name: dict[str, User] = {}
        self.roles = Roles(store)
        #: Functions that are called with a user's name after its permissions changed or it was
        #: deleted, and with "" after a role changed.
        self.changed: list[Callable[[str], None]] = []
        #: Functions that are called with a user's name after the user was deleted, and before a
        #: user of this name is created.
        self.absent: list[Callable[[str], None]] = []
        #: Client identifiers that the users' rules reserve.
        self.reservations = Reservations()
        self._store = store

    def _reserve(self, user: User, vhost: str) -> None:
        """Register the client identifiers that the user's rules reserve in `vhost`, if the user may
        enter it.
        """
        rules = user.rules.get(vhost, []) if vhost in user.permissions else []
        self.reservations.replace(user.name, vhost, rules)

    def _notify(self, name: str) -> None:
        """Call the functions in `changed` with the name of a changed user; "" if a role changed."""
        for tell in self.changed:
            tell(name)

    def define(
        self,
        name: str,
        password_hash: str,
        tags: list[str],
        ticket: Ticket | None = None,
        limits: Mapping[str, int] | None = None,
        role: str | None = None,
    ) -> User:
        """Create a user, or replace the password hash and the tags of an existing user.

        An existing user keeps its permissions. It keeps its limits if `limits` is None, and its
        role if `role` is None; the role "" removes the role. Return the user.
        Raises PreconditionFailed if the name or a tag is not valid, or if there is no such role.
        """
        row: dict[str, object] = {"password_hash": password_hash, "tags": list(tags)}
        known = self.by_name.get(name)
        if limits is None and known is not None:
            limits = known.limits
        if limits:
            row["limits"] = dict(limits)
        present = "" if known is None else known.role_name
        if role is None:
            role = present
        if role:
            row["role"] = self.roles.find(role).name
        if (
            known is not None
            and known.password_hash == password_hash
            and known.tags == tags
            and known.limits == (limits or {})
            and present == role
        ):
            # An earlier request has made this change, which may not be durable yet: wait for it.
            self._store.reply_when_all_durable(ticket)
            return known
        checked_name("user", name)
        for tag in tags:
            checked_name("tag", tag)
        for tell in self.absent if known is None else ():
            tell(name)
        self._store.define(Defined(USERS_VHOST, "user", name, row), ticket)
        user = self.add(name, row)
        self._notify(name)
        return user

    def remove(self, name: str, ticket: Ticket | None = None) -> bool:
        """Delete a user and all its permissions; return True if it existed."""
        user = self.by_name.pop(name, None)
        if user is None:
            return False
        for vhost in user.vhosts:
            self._remove_all(user, vhost, ticket)
        self._store.define(Undefined(USERS_VHOST, "user", name), ticket)
        for tell in (*self.absent, *self.changed):
            tell(name)
        return True

    def set_permission(
        self,
        vhost: str,
        name: str,
        configure: str,
        write: str,
        read: str,
        ticket: Ticket | None = None,
    ) -> bool:
        """Set the permissions of a user to configure, write and read in a virtual host.

        Each permission is a regular expression of names. Return True if the user had none in
        `vhost`. Raises PreconditionFailed if the user does not exist or a pattern is invalid.
        """
        user = self._user(vhost, name)
        fresh = vhost not in user.permissions
        self._grant(
            user,
            vhost,
            (configure, write, read),
            user.rules.get(vhost, ()),
            user.topics.get(vhost, {}),
            ticket,
        )
        return fresh

    def remove_permission(self, vhost: str, name: str, ticket: Ticket | None = None) -> bool:
        """Forbid a user to enter a virtual host. Return True if the user was permitted to enter it.

        The user's topic rules and topic permissions in the virtual host stay, and apply again with
        a new permission.
        """
        user = self.by_name.get(name)
        if user is None or vhost not in user.permissions:
            return False
        self._grant(
            user, vhost, None, user.rules.get(vhost, ()), user.topics.get(vhost, {}), ticket
        )
        return True

    def set_rules(
        self, vhost: str, name: str, rules: Sequence[str], ticket: Ticket | None = None
    ) -> None:
        """Set a user's topic rules in a virtual host; an empty list permits every topic.

        Raises PreconditionFailed if there is no such user or a rule is invalid.
        """
        user = self._user(vhost, name)
        check_variables(vhost, name, rules)
        self._grant(
            user, vhost, user.permissions.get(vhost), rules, user.topics.get(vhost, {}), ticket
        )

    def set_topic_permission(
        self,
        vhost: str,
        name: str,
        exchange: str,
        patterns: tuple[str, str],
        ticket: Ticket | None = None,
    ) -> bool:
        """Set a user's topic permission for an exchange.

        `patterns` are the patterns for write and read. Return True if there was no topic permission
        before. Raises PreconditionFailed if there is no such user or a pattern is invalid.
        """
        user = self._user(vhost, name)
        topics = dict(user.topics.get(vhost, {}))
        fresh = exchange not in topics
        checked_name("exchange", exchange)
        topics[exchange] = patterns
        self._grant(
            user, vhost, user.permissions.get(vhost), user.rules.get(vhost, ()), topics, ticket
        )
        return fresh

    def remove_topic_permissions(
        self, vhost: str, name: str, exchanges: Sequence[str], ticket: Ticket | None = None
    ) -> None:
        """Remove a user's topic permissions for exchanges, all in one change of the store.

        An empty list stands for all exchanges. Raises PreconditionFailed if there is no such user.
        """
        user = self._user(vhost, name)
        known = user.topics.get(vhost, {})
        removed = set(exchanges or known)
        topics = {exchange: pair for exchange, pair in known.items() if exchange not in removed}
        self._grant(
            user, vhost, user.permissions.get(vhost), user.rules.get(vhost, ()), topics, ticket
        )

    def define_role(
        self, name: str, grants: Mapping[str, RoleGrant], ticket: Ticket | None = None
    ) -> None:
        """Create or replace a role, and authorize the connections of its users again.

        Raises PreconditionFailed if the name, a pattern or a rule is invalid.
        """
        if self.roles.define(name, grants, ticket):
            self._notify("")

    def remove_role(self, name: str, ticket: Ticket | None = None) -> bool:
        """Delete a role, and authorize all connections again, because tokens may name the role.

        Return True if the role existed. Raises PreconditionFailed if a user has the role.
        """
        members = [user.name for user in self.by_name.values() if user.role_name == name]
        if members:
            raise PreconditionFailed(
                f"cannot delete role '{name}': users with this role: {len(members)}, for example "
                f"'{members[0]}'; give these users another role first"
            )
        removed = self.roles.remove(name, ticket)
        if removed:
            self._notify("")
        return removed

    def remove_vhost(self, vhost: str, ticket: Ticket | None = None) -> None:
        """Delete all permissions and rules of a virtual host, because it was deleted."""
        self.roles.remove_vhost(vhost, ticket)
        for user in self.by_name.values():
            if vhost in user.vhosts:
                self._remove_all(user, vhost, ticket)

    def _remove_all(self, user: User, vhost: str, ticket: Ticket | None) -> None:
        """Delete a user's permissions, topic rules and topic permissions in one virtual host."""
        user.grant(vhost, None, (), {})
        self._reserve(user, vhost)
        self._store.define(Undefined(vhost, "permission", user.name), ticket)

    def _grant(
        self,
        user: User,
        vhost: str,
        permission: tuple[str, str, str] | None,
        rules: Sequence[str],
        topics: TopicPermissions,
        ticket: Ticket | None,
    ) -> None:
        """Replace a user's permissions in one virtual host, store them, and notify of the change.

        If the new permissions are equal to the present permissions, only wait until the present
        permissions are durable.
        """
        if not user.grant(vhost, permission, rules, topics):
            self._store.reply_when_all_durable(ticket)
            return
        self._reserve(user, vhost)
        row: dict[str, object] = {}
        if permission is not None:
            row["configure"], row["write"], row["read"] = permission
        if rules:
            row["rules"] = list(rules)
        if topics:
            row["topics"] = {exchange: list(pair) for exchange, pair in topics.items()}
        self._store.define(
            Defined(vhost, "permission", user.name, row)
            if row
            else Undefined(vhost, "permission", user.name),
            ticket,
        )
        self._notify(user.name)

    def _user(self, vhost: str, name: str) -> User:
        user = self.by_name.get(name)
        if user is None:
            raise PreconditionFailed(
                f"cannot set permissions or rules in vhost '{vhost}': there is no user '{name}'"
            )
        return user

    # -- without storing, for definitions that are stored already

    def add(self, name: str, row: Mapping[str, object]) -> User:
        """Create or replace a user without storing it; return the user.

        The permissions of a replaced user stay.
        """
        known = self.by_name.get(name)
        tags, limits = row.get("tags"), row.get("limits")
        user = User(
            name,
            str(row.get("password_hash", "")),
            [str(tag) for tag in tags] if isinstance(tags, list) else [],
            {str(limit): int(value) for limit, value in limits.items()}
            if isinstance(limits, dict)
            else {},
            self.roles.by_name.get(str(row.get("role", ""))),
        )
        if known is not None:
            user.copy_permissions(known)
        self.by_name[name] = user
        return user

    def add_permission(self, vhost: str, name: str, row: Mapping[str, object]) -> None:
        """Apply a stored permission when the broker starts.

        Raises PreconditionFailed if the user does not exist, or a pattern or a rule is invalid.
        """
        user = self.by_name.get(name)
        if user is None:
            raise PreconditionFailed(f"there is no user '{name}'")
        permission = (
            (str(row["configure"]), str(row.get("write", "")), str(row.get("read", "")))
            if "configure" in row
            else None
        )
        rules, pairs = row.get("rules"), row.get("topics")
        topics = (
            {str(exchange): (str(pair[0]), str(pair[1])) for exchange, pair in pairs.items()}
            if isinstance(pairs, dict)
            else {}
        )
        user.grant(
            vhost,
            permission,
            [str(rule) for rule in rules] if isinstance(rules, list) else [],
            topics,
        )
        self._reserve(user, vhost)


def check_variables(vhost: str, name: str, rules: Sequence[str]) -> None:
    """Raise PreconditionFailed if a new topic rule of a user has an unknown variable."""
    for text in rules:
        try:
            check_rule_variables(text)
        except ValueError as error:
            raise PreconditionFailed(
                f"invalid rule '{text}' of user '{name}' in vhost '{vhost}': {error}"
            ) from None
