"""The user of a token, with the user's permissions in each virtual host.

In a virtual host, the first of these lines that applies to the token decides:

    scopes and topic rules -----> an action needs the permission of both
    scopes ---------------------> the scopes decide
    topic rules ----------------> the topics of the rules, in the exchange amq.topic alone
    a role of the broker -------> the permissions and rules of the role
    none of these --------------> the user may not enter the virtual host

Scopes name their virtual hosts themselves. Topic rules and roles apply in the virtual hosts of the
token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from broker.access.identity import Identity
from broker.access.roles import Role
from broker.access.rules import UserPermissions
from broker.errors import PreconditionFailed
from trellis.auth.tokens.scopes import Scope, ScopedIdentity

#: Patterns (configure, write, read) for a user with topic rules and no scopes: only the exchange
#: amq.topic, which is enough for MQTT.
TOPICS_ONLY: Final = ("", "^amq\\.topic$", "^amq\\.topic$")


class TokenGrants:
    """The permissions that a token gives to its user.

    `vhosts` are the virtual hosts of the topic rules and of the role. `roles` are names of roles;
    the first of these roles that the broker has applies.
    """

    def __init__(
        self,
        scopes: Sequence[Scope] = (),
        tags: Sequence[str] = (),
        vhosts: Sequence[str] = ("/",),
        rules: Sequence[str] = (),
        roles: Sequence[str] = (),
    ) -> None:
        self.scopes = scopes
        self.tags = tags
        self.vhosts = vhosts
        self.rules = rules
        self.roles = roles


def no_role(name: str) -> Role | None:
    """Return None, as if the broker had no roles; used until the broker has started."""
    return None


class TokenIdentity(Identity):
    """The user of a token, with an identity in each virtual host for which the token has grants.

    `expires` is in seconds since 1970.
    """

    def __init__(
        self,
        name: str,
        grants: TokenGrants,
        expires: float,
    ) -> None:
        super().__init__(name, "^$", "^$", "^$")
        self.grants = grants
        self.tags = list(grants.tags)
        self.administrator = "administrator" in grants.tags
        self.expires = expires
        #: A function that returns the broker's role with a given name, or None.
        self.find_role: Callable[[str], Role | None] = no_role
        self._scoped: dict[str, ScopedIdentity | None] = {}
        self._ruled: dict[str, UserPermissions | None] = {}
        self._both: dict[str, tuple[Identity, RuledScopesIdentity]] = {}
        self._by_role: dict[str, UserPermissions] = {}

    def for_vhost(self, vhost: str, client_id: str = "") -> Identity | None:
        scoped, ruled = self._scopes_in(vhost), self._rules_in(vhost)
        if ruled is not None:
            by_rules = ruled.identity(client_id)
            if scoped is None:
                return by_rules
            known = self._both.get(vhost)
            if known is None or known[0] is not by_rules:
                known = self._both[vhost] = by_rules, RuledScopesIdentity(scoped, by_rules)
            return known[1]
        if scoped is not None:
            return scoped
        by_role = self._role_in(vhost)
        return None if by_role is None else by_role.identity(client_id)

    def _scopes_in(self, vhost: str) -> ScopedIdentity | None:
        """Return the identity with the scopes that match a virtual host; None if none matches."""
        if vhost not in self._scoped:
            scopes = [scope for scope in self.grants.scopes if scope.vhost.matches(vhost)]
            self._scoped[vhost] = ScopedIdentity(self.name, scopes) if scopes else None
        return self._scoped[vhost]

    def _rules_in(self, vhost: str) -> UserPermissions | None:
        """Return the permissions by topic rules in a virtual host; None if there are none."""
        if not self.grants.rules or vhost not in self.grants.vhosts:
            return None
        if vhost not in self._ruled:
            try:
                permissions = UserPermissions(self.name, vhost, TOPICS_ONLY, self.grants.rules)
            except PreconditionFailed:
                # A rule is too long once the name of the virtual host has replaced a variable.
                permissions = None
            self._ruled[vhost] = permissions
        return self._ruled[vhost]

    def _role_in(self, vhost: str) -> UserPermissions | None:
        """Return the permissions of the token's role in a virtual host; None if there are none."""
        if vhost not in self.grants.vhosts:
            return None
        role = next(filter(None, map(self.find_role, self.grants.roles)), None)
        if role is None:
            return None
        known = self._by_role.get(vhost)
        permissions = role.permissions_of(self.name, vhost, known)
        if permissions is not None:
            self._by_role[vhost] = permissions
        return permissions


class RuledScopesIdentity(Identity):
    """A user of a token who may do only what the scopes and the topic rules both permit."""

    def __init__(self, scoped: ScopedIdentity, ruled: Identity) -> None:
        super().__init__(scoped.name, "^$", "^$", "^$")
        self._scoped = scoped
        self._ruled = ruled
        self.weight = scoped.weight + ruled.weight

    def may(self, operation: str, kind: str, name: str, vhost: str) -> None:
        self._scoped.may(operation, kind, name, vhost)

    def may_publish(self, topic: bytes) -> bool:
        return self._ruled.may_publish(topic)

    def may_route(self, exchange: str, key: str, topic: bytes) -> bool:
        return self._scoped.may_route(exchange, key, topic) and self._ruled.may_route(
            exchange, key, topic
        )

    def may_publish_everything(self, exchange: str) -> bool:
        return self._scoped.may_publish_everything(exchange) and self._ruled.may_publish_everything(
            exchange
        )

    def may_read_everything(self) -> bool:
        return self._scoped.may_read_everything() and self._ruled.may_read_everything()

    def may_subscribe(self, topic_filter: str) -> bool:
        return self._ruled.may_subscribe(topic_filter)

    def read_scope(self, exchange: str, key: str, topic_filter: str, hides_dollar: bool) -> int:
        # READ_NONE < READ_SOME < READ_ALL.
        return min(
            self._scoped.read_scope(exchange, key, topic_filter, hides_dollar),
            self._ruled.read_scope(exchange, key, topic_filter, hides_dollar),
        )

    def rules_about(self, exchange: str, topic_filter: str) -> list[str]:
        return self._ruled.rules_about(exchange, topic_filter)

    def subscribe_rules(self) -> list[list[object]] | None:
        return self._ruled.subscribe_rules()

    def may_read(self, topic: bytes) -> bool:
        return self._ruled.may_read(topic)
