"""Reads mosquitto.conf and its include_dir into general lines, listeners, bridges and plugins.

The options below a line `listener` belong to that listener. Listener options above the first line
`listener` belong to the default listener. With `per_listener_settings true`, the options for logins
are listener options, too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from trellis.mosquitto.options import DIFFERENT, MISSING, UNNEEDED, MosquittoOption, option_named
from trellis.mosquitto.report import Place, Report

#: Options that belong to the listener if `per_listener_settings` is true.
_PER_LISTENER: Final = (
    "password_file",
    "acl_file",
    "psk_file",
    "allow_anonymous",
    "allow_zero_length_clientid",
    "auto_id_prefix",
    "plugin",
    "auth_plugin",
)
#: Beginnings of the names of plugin options.
_PLUGIN_OPTIONS: Final = ("plugin_opt_", "auth_opt_")
#: Options whose values are secrets. Values of plugin options and unknown options may be secrets.
_SECRETS: Final = (
    "password",
    "remote_password",
    "local_password",
    "bridge_psk",
    "tls_engine_kpass_sha1",
)
#: Values after which Mosquitto ignores the rest of the line.
_WORD: Final = re.compile("true|false|-?[0-9]+", re.IGNORECASE)


class Line(NamedTuple):
    """One line of a mosquitto.conf: the name and the value of an option."""

    place: Place
    name: str
    value: str

    @property
    def text(self) -> str:
        """The line as a report shows it, without a value that may be a secret."""
        secret = (
            self.name in _SECRETS
            or (self.name.startswith(_PLUGIN_OPTIONS) and not self.name.endswith("_file"))
            or option_named(self.name) is None
        )
        return f"{self.name.split()[0]} {'...' if secret else self.value}".strip()


class Plugin:
    """A plugin with its options, such as `config_file`."""

    def __init__(self, line: Line, path: str) -> None:
        self.line = line
        self.path = path
        self.options: dict[str, Line] = {}


class MosquittoListener:
    """A listener and its lines. `line` is None for the default listener."""

    def __init__(self, line: Line | None) -> None:
        self.line = line
        self.lines: dict[str, list[Line]] = {}
        self.plugins: list[Plugin] = []

    def last(self, name: str) -> Line | None:
        """Return the last line of an option; None if there is none."""
        lines = self.lines.get(name)
        return lines[-1] if lines else None

    def value(self, name: str, default: str = "") -> str:
        """Return the value in the last line of an option; `default` if there is no line."""
        line = self.last(name)
        return default if line is None else line.value

    def is_on(self, name: str) -> bool:
        """True if an option is `true` or `1`."""
        return self.value(name).lower() in ("true", "1")

    def add(self, line: Line) -> None:
        """Add a line to the listener's lines."""
        self.lines.setdefault(line.name, []).append(line)


class Configuration:
    """The content of a mosquitto.conf: its listeners, and the lines that belong to no listener.

    The report gets an entry for each line whose option is missing or not needed in Trellis.
    """

    def __init__(self, path: Path, report: Report) -> None:
        #: The lines outside of listeners, stored as the lines of a listener whose `line` is None.
        self.general = MosquittoListener(None)
        self.listeners: list[MosquittoListener] = []
        #: The bridges; `line` is their line `connection`.
        self.bridges: list[MosquittoListener] = []
        self._default = MosquittoListener(None)
        self._current = self._default
        self._report = report
        self._loaded: dict[str, Plugin] = {}
        self._plugin: Plugin | None = None
        lines = _read(path, report)
        self.per_listener = any(
            line.name == "per_listener_settings" and line.value.lower() in ("true", "1")
            for line in lines
        )
        in_bridge = False
        for line in lines:
            in_bridge = line.name == "connection" or in_bridge and line.name != "listener"
            self._take(line, in_bridge)
        if self._default.lines or self._default.plugins:
            self.listeners.insert(0, self._default)

    @property
    def local_only(self) -> bool:
        """True if no listener is configured: then Mosquitto listens on loopback only."""
        return not self.listeners

    @property
    def plugins(self) -> list[Plugin]:
        """The plugins of all listeners, and the plugins of lines that belong to no listener."""
        owners = [self.general, *self.listeners]
        return [plugin for owner in owners for plugin in owner.plugins]

    def _take(self, line: Line, in_bridge: bool) -> None:
        """Add a line to the listener or plugin that it belongs to, else to the general lines.

        `in_bridge` is True below a line `connection`.
        """
        option = option_named(line.name)
        if option is None:
            self._report.not_taken(
                line.place,
                line.text,
                "Mosquitto has no option of this name; correct or remove this line",
            )
            return
        self._note(line, option)
        if in_bridge and option.group == "bridge":
            if line.name == "connection":
                self.bridges.append(MosquittoListener(line))
            else:
                self.bridges[-1].add(line)
            return
        if line.name == "listener":
            self._current = MosquittoListener(line)
            self.listeners.append(self._current)
        elif line.name in ("plugin", "auth_plugin", "global_plugin"):
            self._plugin = Plugin(line, line.value)
            to_listener = self.per_listener and line.name != "global_plugin"
            (self._current if to_listener else self.general).plugins.append(self._plugin)
        elif line.name == "plugin_load":
            name, _, path = line.value.partition(" ")
            self._plugin = self._loaded[name] = Plugin(line, path.strip())
        elif line.name == "plugin_use":
            plugin = self._loaded.get(line.value)
            if plugin is None:
                self._report.not_taken(
                    line.place, line.text, "no line `plugin_load` above this line has this name"
                )
            else:
                self._current.plugins.append(plugin)
        elif line.name.startswith(_PLUGIN_OPTIONS):
            name = line.name.partition("_opt_")[2]
            if self._plugin is None:
                self._report.not_taken(
                    line.place,
                    line.text,
                    "there is no line `plugin` above, so the option belongs to no plugin",
                )
            else:
                self._plugin.options[name] = line
        elif option.of_listener or (self.per_listener and line.name in _PER_LISTENER):
            self._current.add(line)
        else:
            self.general.add(line)

    def _note(self, line: Line, option: MosquittoOption) -> None:
        """Report an option whose effect differs in Trellis, unless its value is a default."""
        if line.value.lower() in option.defaults:
            return
        if option.verdict == MISSING:
            self._report.not_taken(line.place, line.text, option.advice)
        elif option.verdict == UNNEEDED:
            self._report.not_needed(line.place, line.text, option.advice)
        elif option.verdict == DIFFERENT and option.group in ("general", "log", "bridge"):
            self._report.differs(line.place, line.text, option.advice)


def _read(path: Path, report: Report, main: bool = True) -> list[Line]:
    """Return the lines of a configuration file, and of the files in its include_dir.

    `main` is False for a file of an include_dir, which may not have an include_dir itself.
    """
    lines: list[Line] = []
    text = path.read_bytes().decode("utf-8", "replace")
    for number, each in enumerate(text.split("\n"), 1):
        if each.startswith("#") or not each.strip():
            continue
        name, _, value = each.strip().partition(" ")
        line = Line(Place(path, number), name, _value(name, value.strip()))
        if name != "include_dir":
            lines.append(line)
            continue
        if not main:
            report.not_taken(
                line.place, line.text, "Mosquitto reads this option in the main file only"
            )
            continue
        directory = beside(path, line.value)
        try:
            files = sorted(
                (file for file in directory.iterdir() if file.name.endswith(".conf")),
                key=lambda file: (file.name.lower(), file.name),
            )
            for file in files:
                lines += _read(file, report, False)
        except OSError as error:
            report.not_taken(line.place, line.text, f"{directory}: {error.strerror}")
    return lines


def _value(name: str, text: str) -> str:
    """Return the value of an option. A boolean or number ends at a space, other text does not."""
    word = text.partition(" ")[0]
    return word if name != "listener" and _WORD.fullmatch(word) else text


def beside(path: Path, value: str) -> Path:
    """Return the path that a line names.

    A relative path begins at the directory of the line's file.
    """
    return path.parent.absolute() / value
