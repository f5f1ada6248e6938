"""Accounts of users that may log in: their identity, and the hash of their password."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from broker.access.identity import Identity
from broker.access.users import Users


class UserStore(Protocol):
    """The part of Accounts that an identity uses: the users that the broker stores."""

    users: Users | None


class AccountIdentity(Identity):
    """A user that the settings define. The broker may store further permissions for the user."""

    #: The accounts, which know the users that the broker stores. `Accounts` sets this attribute.
    accounts: UserStore | None = None

    def stored_identity(self, vhost: str, client_id: str) -> Identity | None:
        """Return the identity with the user's stored permissions in a virtual host.

        Return None if the broker stores no such permissions.
        """
        users = None if self.accounts is None else self.accounts.users
        stored = None if users is None else users.by_name.get(self.name)
        return None if stored is None else stored.for_vhost(vhost, client_id)

    def is_fixed(self, vhost: str) -> bool:
        """True if the settings alone decide about the user's permissions in a virtual host."""
        raise NotImplementedError


class Account:
    """A user that may log in, with the hash of the password.

    A `loopback_only` user may log in from this machine only. `rules` has the topic rules that the
    settings give the user, by virtual host. `rules` is empty for a user that is not in the
    settings.
    """

    def __init__(
        self,
        identity: Identity,
        password_hash: str,
        loopback_only: bool,
        rules: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        self.identity = identity
        self.password_hash = password_hash
        self.loopback_only = loopback_only
        self.rules = rules

    def is_fixed(self, vhost: str) -> bool:
        """True if the settings alone decide about the user's permissions in a virtual host."""
        return not isinstance(self.identity, AccountIdentity) or self.identity.is_fixed(vhost)
