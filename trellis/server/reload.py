"""Reload at SIGHUP: certificates, users and their permissions, token keys, log level, profile.

All other settings need a restart. If any new setting is wrong, no setting changes, and the error is
logged. Clients stay connected, with their old TLS context and their new permissions, unless their
user no longer exists.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trellis import logs
from trellis.auth.account import Account
from trellis.auth.settings_users import accounts_from_settings, anonymous_identity
from trellis.server.certificates import CertificateFiles
from trellis.server.matching_profile import MatchingProfile
from trellis.server.matching_profile import read as read_profile
from trellis.server.node import BrokerNode
from trellis.settings import Loaded, Settings, SettingsError
from trellis.settings.options import OPTIONS

if TYPE_CHECKING:
    from trellis.auth.tokens.authenticator import Tokens

#: Reads the settings again from their sources. Raises SettingsError.
Read = Callable[[], Loaded]

#: Settings from which the users are built.
USER_KEYS: Final = (
    "users",
    "user",
    "password",
    "password_file",
    "auth.guest",
    "mqtt.anonymous",
    "mqtt.anonymous_rules",
)
#: Settings that a reload applies, in addition to USER_KEYS.
RELOADABLE_KEYS: Final = (
    "tls.certificate",
    "tls.key",
    "tls.ca",
    "tls.crl",
    "tls.minimum",
    "tls.names",
    "log.level",
    "matcher.profile",
    *(key for key in OPTIONS if key.startswith("jwt.")),
)


class PreparedSettings(NamedTuple):
    """Settings that a reload has read, and the objects made from the files that they name.

    `accounts` is None if the users have not changed. `certificates` is None if no listener uses
    TLS; `tokens` is None if the broker accepts no tokens.
    """

    loaded: Loaded
    accounts: list[Account] | None
    profile: MatchingProfile | None
    certificates: CertificateFiles | None
    tokens: Tokens | None


class SettingsReload:
    """Reloads of the settings, one at a time, however often they are requested.

    After each reload that was applied, `applied` is called with the new settings.
    """

    def __init__(self, node: BrokerNode, read: Read, applied: Callable[[Settings], None]) -> None:
        self._node = node
        self._read = read
        self._applied = applied
        #: Settings of the last successful reload; before the first reload, the settings of the
        #: start.
        self._settings = node.settings
        self._again = False
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Begin a reload.

        If a reload is under way, begin another reload when the present reload ends.
        """
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._reload())
        else:
            self._again = True

    async def close(self) -> None:
        """Wait for a reload that is under way."""
        if self._task is not None:
            await self._task

    async def _reload(self) -> None:
        self._again = True
        while self._again:
            self._again = False
            try:
                # Files are read and passwords hashed in a thread, so the event loop is not blocked.
                self._apply(await asyncio.get_running_loop().run_in_executor(None, self._prepare))
            except SettingsError as error:
                logs.error(
                    "reload_refused",
                    error=error,
                    note="nothing changed; the previous settings stay in force",
                )
            except Exception:  # noqa: BLE001  (asyncio would report it only when the broker ends)
                logs.error(
                    "reload_failed",
                    traceback=traceback.format_exc(),
                    note="some settings may be applied already; correct the settings, and send "
                    "SIGHUP again",
                )

    def _prepare(self) -> PreparedSettings:
        """Read the settings, and the files that they name. Change nothing.

        Runs in a thread. Raises SettingsError.
        """
        loaded, node = self._read(), self._node
        settings = loaded.settings
        profile = read_profile(settings.matcher.profile, node.settings.matcher.allowed)
        changed = any(_value(settings, key) != _value(self._settings, key) for key in USER_KEYS)
        return PreparedSettings(
            loaded,
            accounts_from_settings(settings, node.directory) if changed else None,
            profile,
            CertificateFiles(settings) if node.certificates.contexts else None,
            self._read_tokens(settings),
        )

    def _read_tokens(self, settings: Settings) -> Tokens | None:
        """Return the verifier of tokens for the settings; None if the broker accepts no tokens."""
        if self._node.tokens is None or not settings.jwt.enabled:
            return None
        # Imported here, because a broker without tokens does not need the module.
        from trellis.auth.tokens.authenticator import Tokens

        return Tokens(settings.jwt)

    def _applied_keys(self, settings: Settings) -> set[str]:
        """Return the keys of the settings that a reload applies."""
        applied = {*USER_KEYS, *RELOADABLE_KEYS}
        if not self._node.certificates.contexts:
            applied -= {key for key in applied if key.startswith("tls.")}
        if self._node.tokens is None or not settings.jwt.enabled:
            # The broker decides at its start whether there is an authenticator for tokens.
            applied -= {key for key in applied if key.startswith("jwt.")}
        return applied

    def _ignored(self, settings: Settings, applied: set[str]) -> list[str]:
        """Return the keys of the settings that have changed, but need a restart."""
        return [
            key
            for key in OPTIONS
            if key not in applied and _value(settings, key) != _value(self._node.settings, key)
        ]

    def _apply(self, prepared: PreparedSettings) -> None:
        """Apply new settings, which `_prepare` has checked together with their files."""
        loaded, accounts, profile, certificates, tokens = prepared
        settings = loaded.settings
        if certificates is not None:
            self._node.certificates.use(certificates)
        if self._node.tokens is not None and tokens is not None:
            self._node.tokens.use(tokens)
        if accounts is not None:
            self._replace_accounts(accounts, settings)
            self._node.review()
        logs.set_level(settings.log.level)
        if profile is not None or self._settings.matcher.profile:
            self._node.use_profile(profile, serving=True)
        applied = self._applied_keys(settings)
        ignored = self._ignored(settings, applied)
        self._node.settings_in_force.reload(loaded, applied)
        self._settings = settings
        self._applied(settings)
        logs.info(
            "reloaded",
            users="changed" if accounts is not None else "as before",
            certificates=len(self._node.certificates.expirations),
            log_level=settings.log.level,
        )
        if ignored:
            logs.warning(
                "reload_incomplete",
                keys=",".join(ignored),
                note="restart the broker to apply these settings",
            )

    def _replace_accounts(self, accounts: list[Account], settings: Settings) -> None:
        """Replace the users of the settings; remove the producers of removed and of new users.

        A producer has a sequence number, by which the broker drops repeated messages of its user. A
        new user must not inherit the producers of a former user of the same name.
        """
        known = self._node.accounts
        names = {*known.settings_accounts, *(account.identity.name for account in accounts)}
        absent = {name for name in names if known.identity_of(name) is None}
        known.replace(accounts, anonymous_identity(settings), settings.mqtt.anonymous == "true")
        for name in names:
            if name in absent or known.identity_of(name) is None:
                self._node.broker.forget_producers(name)


def _value(settings: Settings, key: str) -> Any:
    """Return the value of the setting with a key, such as `log.level`."""
    section, _, name = key.rpartition(".")
    return getattr(getattr(settings, section) if section else settings, name)
