"""Users that the broker keeps itself, made at run time or imported, beside those of the settings.
What their passwords are worth, the top floor says.

    user         name -> password hash, tags                                             kept under the virtual host HOME
    permission   vhost, name -> configure, write, read; ordered rules about topics; topic permissions by exchange

Whoever changes one of them has its connections and sessions looked at again: `changed` is called
with the user's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from broker.access.identity import Identity
from broker.access.rules import TopicPermissions, UserPermissions
from broker.errors import PreconditionFailed
from broker.store.contract import Defined, Store, Ticket, Undefined

#: The virtual host under which users are kept, who belong to none.
USERS_VHOST = "/"


class User(Identity):
    """One of them. In a virtual host it is another Identity, where it has permissions."""

    def __init__(self, name: str, password_hash: str, tags: list[str]) -> None:
        super().__init__(name, "^$", "^$", "^$")
        self.password_hash = password_hash
        self.tags = tags
        self.administrator = "administrator" in tags
        #: By virtual host. Rules and topic permissions may be there before a permission is; they
        #: hold with it.
        self.permissions: dict[str, tuple[str, str, str]] = {}
        self.rules: dict[str, list[str]] = {}
        self.topics: dict[str, dict[str, tuple[str, str]]] = {}
        self._by_vhost: dict[str, UserPermissions] = {}

    def for_vhost(self, vhost: str, client_id: str = "") -> Identity | None:
        rights = self._by_vhost.get(vhost)
        return None if rights is None else rights.identity(client_id)

    def grant(
        self,
        vhost: str,
        permission: tuple[str, str, str] | None,
        rules: Sequence[str],
        topics: TopicPermissions,
    ) -> bool:
        """What it may do from now on in a virtual host; no permission is nothing at all. Returns
        whether that is new. Raises PreconditionFailed, and changes nothing then."""
        before = self._by_vhost.get(vhost)
        rights = UserPermissions(self.name, vhost, permission or ("", "", ""), rules, topics)
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
                self._by_vhost[vhost] = rights
        return True

    def copy_permissions(self, other: User) -> None:
        """It may do what the other one may."""
        self.permissions, self.rules, self.topics, self._by_vhost = (
            other.permissions,
            other.rules,
            other.topics,
            other._by_vhost,
        )

    @property
    def vhosts(self) -> set[str]:
        """Where something is written about it."""
        return {*self.permissions, *self.rules, *self.topics}


class Users:
    """All of them, by their names."""

    def __init__(self, store: Store) -> None:
        self.by_name: dict[str, User] = {}
        #: Who wants to know that a user of this name may do other things than before, or is no
        #: more.
        self.changed: list[Callable[[str], None]] = []
        self._store = store

    def _notify(self, name: str) -> None:
        for tell in self.changed:
            tell(name)

    def define(
        self, name: str, password_hash: str, tags: list[str], ticket: Ticket | None = None
    ) -> User:
        """Add a user, or change it: its permissions stay."""
        row: dict[str, object] = {"password_hash": password_hash, "tags": list(tags)}
        known = self.by_name.get(name)
        if known is not None and known.password_hash == password_hash and known.tags == tags:
            return known
        self._store.append(Defined(USERS_VHOST, "user", name, row), ticket)
        user = self.add(name, row)
        self._notify(name)
        return user

    def remove(self, name: str, ticket: Ticket | None = None) -> bool:
        """Delete a user, with all that is written about it; whether it was there."""
        user = self.by_name.pop(name, None)
        if user is None:
            return False
        for vhost in user.vhosts:
            self._remove_all(user, vhost, ticket)
        self._store.append(Undefined(USERS_VHOST, "user", name), ticket)
        self._notify(name)
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
        """Say what a user may do in a virtual host; whether that is new.

        Raises PreconditionFailed.
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
        """It may not enter the virtual host any more; whether it might."""
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
        """Its rules about topics from now on; none at all allow all. Raises PreconditionFailed."""
        user = self._user(vhost, name)
        self._grant(
            user, vhost, user.permissions.get(vhost), rules, user.topics.get(vhost, {}), ticket
        )

    def set_topic_permission(
        self,
        vhost: str,
        name: str,
        exchange: str,
        patterns: tuple[str, str] | None,
        ticket: Ticket | None = None,
    ) -> bool:
        """Its topic permission for an exchange from now on, None for none; whether there was none.

        Raises PreconditionFailed.
        """
        user = self._user(vhost, name)
        topics = dict(user.topics.get(vhost, {}))
        known = topics.pop(exchange, None)
        if patterns is not None:
            topics[exchange] = patterns
        self._grant(
            user, vhost, user.permissions.get(vhost), user.rules.get(vhost, ()), topics, ticket
        )
        return known is None

    def remove_vhost(self, vhost: str, ticket: Ticket | None = None) -> None:
        """The virtual host is gone, and what users may do there."""
        for user in self.by_name.values():
            if vhost in user.vhosts:
                self._remove_all(user, vhost, ticket)

    def _remove_all(self, user: User, vhost: str, ticket: Ticket | None) -> None:
        user.grant(vhost, None, (), {})
        self._store.append(Undefined(vhost, "permission", user.name), ticket)

    def _grant(
        self,
        user: User,
        vhost: str,
        permission: tuple[str, str, str] | None,
        rules: Sequence[str],
        topics: TopicPermissions,
        ticket: Ticket | None,
    ) -> None:
        if not user.grant(vhost, permission, rules, topics):
            return
        row: dict[str, object] = {}
        if permission is not None:
            row["configure"], row["write"], row["read"] = permission
        if rules:
            row["rules"] = list(rules)
        if topics:
            row["topics"] = {exchange: list(pair) for exchange, pair in topics.items()}
        self._store.append(
            Defined(vhost, "permission", user.name, row)
            if row
            else Undefined(vhost, "permission", user.name),
            ticket,
        )
        self._notify(user.name)

    def _user(self, vhost: str, name: str) -> User:
        user = self.by_name.get(name)
        if user is None:
            raise PreconditionFailed(f"permission in vhost '{vhost}': there is no user '{name}'")
        return user

    # -- what was there before

    def add(self, name: str, row: Mapping[str, object]) -> User:
        """A user that is defined now, or was before."""
        known = self.by_name.get(name)
        tags = row.get("tags")
        user = User(
            name,
            str(row.get("password_hash", "")),
            [str(tag) for tag in tags] if isinstance(tags, list) else [],
        )
        if known is not None:
            user.copy_permissions(known)
        self.by_name[name] = user
        return user

    def add_permission(self, vhost: str, name: str, row: Mapping[str, object]) -> None:
        """What was written before about a user. Raises PreconditionFailed."""
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
