"""The settings that a running broker uses, the source of each value, and changes not yet applied.

A reload (SIGHUP) applies some settings at once. The other settings keep their values until the
broker is started again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from trellis.settings import Loaded, Settings
from trellis.settings.options import OPTIONS
from trellis.settings.rendering import masked, toml

#: The source of a value that no file, environment variable or flag gives.
DEFAULT = "default"


class SettingInForce(NamedTuple):
    """One setting: its value now, the source of the value, and a value that waits for a restart.

    `value` and `after_restart` are TOML, with masked secrets. `source` is the file, environment
    variable or flag that gives `value`. `after_restart` is a changed value that the last reload has
    read and that only a restart applies; "" if there is none.
    """

    name: str
    value: str
    source: str
    after_restart: str


class SettingsInForce:
    """The settings of a running broker, as read at its start and by its last reload."""

    def __init__(self, started: Loaded, files: Sequence[str] = ()) -> None:
        """Begin with the settings of the start; `files` are the settings files that were read."""
        self.files = files
        self._started = started
        self._reloaded = started
        #: The keys whose values a reload applies.
        self._applied: Collection[str] = ()

    def reload(self, loaded: Loaded, applied: Collection[str]) -> None:
        """Record a reload, which has read `loaded` and applied the settings with keys `applied`."""
        self._reloaded, self._applied = loaded, applied

    @property
    def reloaded(self) -> Settings:
        """The settings that were read last. The users that these settings define are in force."""
        return self._reloaded.settings

    def source(self, key: str) -> str:
        """Return the file, variable or flag that gives the value of a setting, or DEFAULT."""
        loaded = self._reloaded if key in self._applied else self._started
        return loaded.sources.get(key, DEFAULT)

    def __iter__(self) -> Iterator[SettingInForce]:
        started, reloaded = masked(self._started.settings), masked(self._reloaded.settings)
        for key, option in OPTIONS.items():
            applied = key in self._applied
            value, read = option.value_in(started), option.value_in(reloaded)
            # Two different secrets look equal when masked, so the unmasked values are compared.
            differs = option.value_in(self._started.settings) != option.value_in(
                self._reloaded.settings
            )
            yield SettingInForce(
                key,
                toml(_plain(read if applied else value)),
                self.source(key),
                toml(_plain(read)) if differs and not applied else "",
            )


def _plain(value: object) -> object:
    """Return a list of users as dictionaries, for TOML, and any other setting's value unchanged."""
    if isinstance(value, tuple) and value and isinstance(value[0], Struct):
        return [asdict(one) for one in value]
    return value
