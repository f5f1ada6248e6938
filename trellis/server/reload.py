"""SIGHUP: certificates, users with their access rules, keys of tokens, the log level and the
matching profile are read again; nothing else is.

What is wrong changes nothing: the broker goes on with what it has, and says what is wrong. Who is
connected stays connected, under the certificate of before and with the rights of now, unless it is
nobody any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from trellis import logs
from trellis.auth.authenticate import Account
from trellis.auth.settings_users import accounts_from_settings, anonymous_identity
from trellis.server.matching_profile import MatchingProfile
from trellis.server.matching_profile import read as read_profile
from trellis.server.node import BrokerNode
from trellis.settings import Settings, SettingsError
from trellis.settings.options import OPTIONS

#: Reads the settings again from where they came. Raises SettingsError.
Read = Callable[[], Settings]

#: Of whom the users are made.
USER_KEYS: Final = ("users", "user", "password", "password_file", "auth.guest", "mqtt.anonymous")
#: Where certificates and the matching profile are, and the log level.
RELOADABLE_KEYS: Final = (
    "tls.certificate",
    "tls.key",
    "tls.ca",
    "tls.minimum",
    "tls.names",
    "log.level",
    "matcher.profile",
    *(
        f"jwt.{name}"
        for name in (
            "keys",
            "algorithms",
            "issuer",
            "audience",
            "user",
            "scopes",
            "prefix",
            "leeway",
        )
    ),
)


class SettingsReload:
    """Does it once at a time, however often it is asked for."""

    def __init__(self, node: BrokerNode, read: Read) -> None:
        self._node = node
        self._read = read
        #: What holds now of that which can be reloaded.
        self._settings = node.settings
        self._again = False
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Reload, soon; asked while it is being done, once more."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._reload())
        else:
            self._again = True

    async def close(self) -> None:
        """Wait for what is being done."""
        if self._task is not None:
            await self._task

    async def _reload(self) -> None:
        self._again = True
        while self._again:
            self._again = False
            try:
                # Files are read and passwords hashed in a thread: the loop goes on meanwhile.
                settings, found, advised = await asyncio.get_running_loop().run_in_executor(
                    None, self._prepare
                )
                self._apply(settings, found, advised)
            except SettingsError as error:
                logs.error("reload_refused", error=error, note="what was read before still holds")

    def _prepare(self) -> tuple[Settings, list[Account] | None, MatchingProfile | None]:
        """In a thread: the settings, the users unless they are those of before, and the profile.

        Raises SettingsError.
        """
        settings = self._read()
        advised = read_profile(settings.matcher.profile, self._node.settings.matcher.allowed)
        changed = any(_value(settings, key) != _value(self._settings, key) for key in USER_KEYS)
        return (
            settings,
            accounts_from_settings(settings, self._node.directory) if changed else None,
            advised,
        )

    def _apply(
        self, settings: Settings, found: list[Account] | None, advised: MatchingProfile | None
    ) -> None:
        """Raises SettingsError, and has changed nothing then."""
        self._node.certificates.reload(settings)
        if self._node.tokens is not None and settings.jwt.keys:
            self._node.tokens.reload(settings.jwt)
        if found is not None:
            self._node.accounts.replace(
                found, anonymous_identity(settings), settings.mqtt.anonymous == "true"
            )
            self._node.review()
        logs.set_level(settings.log.level)
        if advised is not None or self._settings.matcher.profile:
            self._node.use_profile(advised, serving=True)
        ignored = [
            key
            for key in OPTIONS
            if key not in (*USER_KEYS, *RELOADABLE_KEYS)
            and _value(settings, key) != _value(self._node.settings, key)
        ]
        self._settings = settings
        logs.info(
            "reloaded",
            users="changed" if found is not None else "as before",
            certificates=len(self._node.certificates.expirations),
            log_level=settings.log.level,
        )
        if ignored:
            logs.warning(
                "reload_incomplete", keys=",".join(ignored), note="these change with a restart only"
            )


def _value(settings: Settings, key: str) -> Any:
    """The value of an option."""
    section, _, name = key.rpartition(".")
    return getattr(getattr(settings, section) if section else settings, name)
