"""All options of mosquitto.conf, and the counterpart of each in Trellis.

The import and docs/moving-from-mosquitto.md have this table as their source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from trellis.mosquitto.option_rows import ROWS

EQUAL: Final = "equal"
DIFFERENT: Final = "different"
MISSING: Final = "missing"
UNNEEDED: Final = "not needed"
#: Groups of options, in the order of the page.
GROUPS: Final = {
    "general": "General options",
    "security": "Logins and rights",
    "log": "Log",
    "listener": "Listeners",
    "tls": "TLS",
    "plugin": "Plugins",
    "bridge": "Bridges",
}


class MosquittoOption(NamedTuple):
    """One option of mosquitto.conf.

    `defaults` are values that need no note: by default, Trellis behaves as Mosquitto does with one
    of these values.
    `trellis` is the corresponding setting or feature; `note` is the difference or the remedy.
    """

    name: str
    group: str
    verdict: str
    defaults: tuple[str, ...]
    trellis: str
    note: str

    @property
    def of_listener(self) -> bool:
        """True if the option belongs to the listener above it."""
        return self.group in ("listener", "tls")

    @property
    def advice(self) -> str:
        """The note of the option.

        If the note begins with `see NAME`, the result is the note of the option NAME.
        """
        if not self.note.startswith("see `"):
            return self.note
        return OPTIONS[self.note.removeprefix("see `").partition("`")[0]].advice


def _options() -> Iterator[MosquittoOption]:
    group = ""
    for line in ROWS.strip().replace("\n    ", " ").splitlines():
        if line.startswith("["):
            group = line.strip("[]")
        else:
            name, verdict, defaults, trellis, note = (part.strip() for part in line.split("|"))
            yield MosquittoOption(name, group, verdict, tuple(defaults.split()), trellis, note)


#: Every option by its name. A name that ends with `*` covers all names with this beginning.
OPTIONS: Final = {option.name: option for option in _options()}


def option_named(name: str) -> MosquittoOption | None:
    """Return the option with a name; None if Mosquitto has no such option."""
    for prefix in ("plugin_opt_", "auth_opt_"):
        if name.startswith(prefix):
            return OPTIONS[f"{prefix}*"]
    return OPTIONS.get(name)
