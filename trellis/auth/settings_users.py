"""Accounts of the users in the settings, and of the generated user if the settings name none."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import argon2
import msgspec

from broker.access.identity import Identity
from broker.access.rules import UserPermissions
from trellis import logs
from trellis.auth.account import Account, AccountIdentity
from trellis.auth.authenticate import Accounts
from trellis.auth.passwords import HASHER
from trellis.auth.private_files import scram_secret, write_private
from trellis.settings import Settings, SettingsError
from trellis.settings.schema import UserSettings

GUEST_NAME: Final = "guest"
#: Name of clients without a user name in logs and permissions.
ANONYMOUS_NAME: Final = "anonymous"
#: File in the data directory with the generated user and the hash of its password.
GENERATED_USER_FILE: Final = "generated-user.json"


class GeneratedUser(msgspec.Struct):
    """The user that the broker makes if the settings name no user; stored as a JSON file."""

    name: str
    password_hash: str


class SettingsIdentity(AccountIdentity):
    """A user that the settings define, with permissions in virtual hosts that the settings name.

    In other virtual hosts, the user has the permissions that the broker stores for the user's name.
    """

    def __init__(self, user: UserSettings) -> None:
        super().__init__(user.name, user.configure, user.write, user.read)
        self.administrator = user.administrator
        self.tags = ["administrator"] if user.administrator else list(user.tags)
        permission = (user.configure, user.write, user.read)
        self.rights = {
            vhost: UserPermissions(user.name, vhost, permission, user.rules)
            for vhost in user.vhosts
        }

    def for_vhost(self, vhost: str, client_id: str = "") -> Identity | None:
        rights = self.rights.get(vhost)
        if rights is None:
            return self.stored_identity(vhost, client_id)
        return rights.identity(client_id)

    def is_fixed(self, vhost: str) -> bool:
        return vhost in self.rights


class Superuser(AccountIdentity):
    """A user with all permissions in all virtual hosts.

    Permissions that the broker stores for the user's name take precedence, except in the virtual
    host "/".
    """

    def for_vhost(self, vhost: str, client_id: str = "") -> Identity | None:
        stored = None if self.is_fixed(vhost) else self.stored_identity(vhost, client_id)
        return stored or self

    def is_fixed(self, vhost: str) -> bool:
        return vhost == "/"


class AnonymousIdentity(Identity):
    """The identity of all clients that give no user name; the settings define its topic rules."""

    def __init__(self, rules: Sequence[str]) -> None:
        super().__init__(ANONYMOUS_NAME)
        self._rules = rules
        #: Permissions by virtual host, added by `for_vhost`. Clients without a user name can use
        #: one virtual host only.
        self._by_vhost: dict[str, UserPermissions] = {}

    def for_vhost(self, vhost: str, client_id: str = "") -> Identity | None:
        if not self._rules:
            return self
        permissions = self._by_vhost.get(vhost)
        if permissions is None:
            permissions = self._by_vhost[vhost] = UserPermissions(
                ANONYMOUS_NAME, vhost, (".*", ".*", ".*"), self._rules
            )
        identity = permissions.identity(client_id)
        identity.anonymous = True
        return identity


def superuser(name: str) -> AccountIdentity:
    """Return a user with all permissions in all virtual hosts."""
    identity = Superuser(name)
    identity.administrator = True
    identity.tags = ["administrator"]
    return identity


def authenticator_from_settings(settings: Settings, directory: Path | None) -> Accounts:
    """Return the authenticator for the users that the settings define. Raises SettingsError."""
    return Accounts(
        accounts_from_settings(settings, directory),
        anonymous_identity(settings),
        settings.mqtt.anonymous == "true",
        settings.auth.threads,
        settings.auth.queue,
        settings.auth.remember,
        scram_secret(directory),
    )


def anonymous_identity(settings: Settings) -> Identity | None:
    """Return the identity of clients that give no user name; None if they are refused."""
    if settings.mqtt.anonymous == "false":
        return None
    identity = AnonymousIdentity(settings.mqtt.anonymous_rules)
    identity.anonymous = True
    return identity


def accounts_from_settings(settings: Settings, directory: Path | None) -> list[Account]:
    """Return the accounts of all users that the settings define.

    Slow, since it hashes passwords. Raises SettingsError.
    """
    accounts = [
        Account(
            SettingsIdentity(user),
            user.password_hash,
            user.loopback_only,
            dict.fromkeys(user.vhosts, user.rules),
        )
        for user in settings.users
    ]
    if settings.user and settings.password:
        accounts.append(Account(superuser(settings.user), HASHER.hash(settings.password), False))
    if settings.auth.guest:
        accounts.append(Account(superuser(GUEST_NAME), HASHER.hash(GUEST_NAME), True))
    if not accounts or settings.user and not settings.password:
        accounts.append(_generated_account(settings.user or "trellis", directory))
    return accounts


def _generated_account(name: str, directory: Path | None) -> Account:
    """Return the generated user's account: the stored account, or one with a new password.

    A new password is logged once; its hash is stored in the data directory. Raises SettingsError.
    """
    path = None if directory is None else directory / GENERATED_USER_FILE
    if path is not None and path.exists():
        try:
            kept = msgspec.json.decode(path.read_bytes(), type=GeneratedUser)
            argon2.extract_parameters(kept.password_hash)
        except (OSError, ValueError, RecursionError) as error:
            what = error.strerror if isinstance(error, OSError) else error
            raise SettingsError(
                f"{path}: cannot be read ({what}); delete the file to get a new password"
            ) from error
        if kept.name == name:
            return Account(superuser(name), kept.password_hash, False)
    password = secrets.token_urlsafe(18)
    password_hash = HASHER.hash(password)
    if path is not None:
        _write_generated_user(path, GeneratedUser(name, password_hash))
    logs.secret(
        "generated_password",
        user=name,
        password=password,
        note="this password is shown only once; to choose your own, set user and password",
    )
    return Account(superuser(name), password_hash, False)


def _write_generated_user(path: Path, kept: GeneratedUser) -> None:
    """Write GENERATED_USER_FILE. Raises SettingsError."""
    try:
        write_private(path, msgspec.json.encode(kept))
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be written ({error.strerror}); make the directory writable, or set "
            "user and password, so that the broker need not store a generated password"
        ) from error
