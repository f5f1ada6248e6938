"""The accounts that the settings make, and the one that is made when they make none."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Final

from broker.access import Identity
from trellis import logs
from trellis.authenticate import HASHER, Account, Accounts
from trellis.settings import Settings, SettingsError

GUEST: Final = "guest"
#: Where the hash of a generated password is kept.
GENERATED: Final = "generated-user.json"


def accounts_of(settings: Settings, directory: Path | None) -> Accounts:
    """Everybody who may log in. Raises SettingsError."""
    found = [Account(Identity(user.name, user.configure, user.write, user.read), user.password_hash, user.loopback_only)
             for user in settings.users]
    if settings.user and settings.password:
        found.append(Account(Identity(settings.user), HASHER.hash(settings.password), False))
    if settings.auth.guest:
        found.append(Account(Identity(GUEST), HASHER.hash(GUEST), True))
    if not found or settings.user and not settings.password:
        found.append(_generated(settings.user or "trellis", directory))
    anonymous = None if settings.mqtt.anonymous == "false" else Identity("anonymous")
    return Accounts(found, anonymous, settings.mqtt.anonymous == "true", settings.auth.threads, settings.auth.queue,
                    settings.auth.remember)


def _generated(name: str, directory: Path | None) -> Account:
    """A user with a password that is printed once; its hash stays in the data directory."""
    path = None if directory is None else directory / GENERATED
    if path is not None and path.exists():
        try:
            kept = json.loads(path.read_text())
            if kept["name"] == name:
                return Account(Identity(name), str(kept["password_hash"]), False)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SettingsError(f"{path}: unreadable ({error}); delete it to have a new password made") from error
    password = secrets.token_urlsafe(18)
    password_hash = HASHER.hash(password)
    if path is not None:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump({"name": name, "password_hash": password_hash}, file)
    logs.warning("generated_password", user=name, password=password, note="shown once; set user and password to choose your own")
    return Account(Identity(name), password_hash, False)
