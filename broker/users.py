"""Users that the broker keeps itself: imported ones, beside those of the settings. What their passwords are worth, the top floor says."""

from __future__ import annotations

import re
from collections.abc import Mapping

from broker.access import Identity
from broker.errors import PreconditionFailed
from broker.store.contract import Defined, Store, Ticket

#: The virtual host under which users are kept, who belong to none.
HOME = "/"


class User(Identity):
    """One of them. In a virtual host it is another Identity, where it has permissions."""

    def __init__(self, name: str, password_hash: str, tags: list[str]) -> None:
        super().__init__(name, "^$", "^$", "^$")
        self.password_hash = password_hash
        self.tags = tags
        self.administrator = "administrator" in tags
        self.permissions: dict[str, tuple[str, str, str]] = {}
        self._within: dict[str, Identity] = {}

    def within(self, vhost: str) -> Identity | None:
        return self._within.get(vhost)

    def permit(self, vhost: str, configure: str, write: str, read: str) -> None:
        """What it may do from now on; connections that are there keep what they had. Raises PreconditionFailed."""
        for pattern in (configure, write, read):
            try:
                re.compile(pattern, re.DOTALL)
            except (re.error, RecursionError, OverflowError) as error:
                raise PreconditionFailed(f"permission of user '{self.name}' in vhost '{vhost}': '{pattern}' is no regular expression "
                                         f"({error})") from None
        if self.permissions.get(vhost) != (configure, write, read):
            self.permissions[vhost] = (configure, write, read)
            self._within[vhost] = Identity(self.name, configure, write, read)


class Users:
    """All of them, by their names."""

    def __init__(self, store: Store) -> None:
        self.by_name: dict[str, User] = {}
        self._store = store

    def define(self, name: str, password_hash: str, tags: list[str], ticket: Ticket | None = None) -> User:
        """Add a user, or change it: its permissions stay."""
        row: dict[str, object] = {"password_hash": password_hash, "tags": list(tags)}
        known = self.by_name.get(name)
        if known is None or known.password_hash != password_hash or known.tags != tags:
            self._store.append(Defined(HOME, "user", name, row), ticket)
        return self.add(name, row)

    def permit(self, vhost: str, name: str, configure: str, write: str, read: str, ticket: Ticket | None = None) -> None:
        """Say what a user may do in a virtual host. Raises PreconditionFailed."""
        user = self.by_name.get(name)
        if user is None:
            raise PreconditionFailed(f"permission in vhost '{vhost}': there is no user '{name}'")
        before = user.permissions.get(vhost)
        user.permit(vhost, configure, write, read)
        if before != user.permissions[vhost]:
            self._store.append(Defined(vhost, "permission", name, {"configure": configure, "write": write, "read": read}), ticket)

    def add(self, name: str, row: Mapping[str, object]) -> User:
        """A user that is defined now, or was before."""
        known = self.by_name.get(name)
        tags = row.get("tags")
        user = User(name, str(row.get("password_hash", "")), [str(tag) for tag in tags] if isinstance(tags, list) else [])
        if known is not None:
            if known.password_hash == user.password_hash and known.tags == user.tags:
                return known
            for vhost, (configure, write, read) in known.permissions.items():
                user.permit(vhost, configure, write, read)
        self.by_name[name] = user
        return user

    def add_permission(self, vhost: str, name: str, row: Mapping[str, object]) -> None:
        """A permission that was there before. Raises PreconditionFailed."""
        user = self.by_name.get(name)
        if user is None:
            raise PreconditionFailed(f"there is no user '{name}'")
        user.permit(vhost, str(row.get("configure", "")), str(row.get("write", "")), str(row.get("read", "")))
