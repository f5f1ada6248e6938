"""The import of a Mosquitto configuration: settings, users and topic rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from broker.access.rules import RULES_MAX
from trellis.mosquitto.access import limited
from trellis.mosquitto.acl_file import Acl, read_acl
from trellis.mosquitto.bridges import bridge_tables
from trellis.mosquitto.conf import Configuration, Line, MosquittoListener, Plugin
from trellis.mosquitto.dynamic_security import DynamicSecurity
from trellis.mosquitto.password_file import read_passwords
from trellis.mosquitto.report import Place, Report
from trellis.mosquitto.settings import (
    Tables,
    file_of,
    general_settings,
    is_loopback,
    listener_settings,
)
from trellis.settings.rendering import toml

#: Permissions of an imported user: it may publish and subscribe at MQTT's exchange, and declare
#: nothing.
_PERMISSION: Final = {"configure": "^$", "write": r"^amq\.topic$", "read": r"^amq\.topic$"}
#: Parts of plugins' file names: of the plugins that are imported, and of one that Trellis does not
#: need.
_PLUGINS: Final = ("dynamic_security", "password_file", "acl_file")
_DYNAMIC, _PASSWORDS, _ACL = _PLUGINS
_PERSIST: Final = "persist_sqlite"
#: The virtual host of MQTT clients.
_VHOST: Final = "/"


class SecurityFiles:
    """A listener's lines that name the files with users and rights; None for a missing line."""

    def __init__(self, owner: MosquittoListener, plugins: list[Plugin]) -> None:
        self.passwords = owner.last("password_file")
        self.acl = owner.last("acl_file")
        self.dynamic: Line | None = None
        for plugin in plugins:
            self.dynamic = self.dynamic or _option(plugin, _DYNAMIC, "config_file")
            self.passwords = self.passwords or _option(plugin, _PASSWORDS, _PASSWORDS)
            self.acl = self.acl or _option(plugin, _ACL, _ACL)

    @property
    def key(self) -> list[str]:
        """The names of the files, to compare two listeners."""
        lines = (self.passwords, self.acl, self.dynamic)
        return ["" if line is None else line.value for line in lines]


class MosquittoImport:
    """The result of an import: the settings, the definitions, and the notes in `report`."""

    def __init__(self, path: Path) -> None:
        self.report = Report()
        self._place = Place(path, 0)
        self._conf = Configuration(path, self.report)
        self._note_plugins()
        listeners, files = self._listeners()
        self.tables: Tables = general_settings(self._conf, self.report)
        tables, taken = listener_settings(self._conf, listeners, self.report)
        for section, table in tables.items():
            self.tables[section] = {**table, **self.tables.get(section, {})}
        # The built-in user guest would have all permissions, so it is switched off.
        self.tables["auth"] = {"guest": False}
        self._add_anonymous(taken)
        #: The [[bridge]] tables.
        self.bridges = bridge_tables(self._conf, self.report)
        self._users: dict[str, str] = {}
        self._rules: dict[str, list[str]] = {}
        self._read_security(files)

    def settings_text(self, definitions: Path) -> str:
        """Return the broker.toml, which names the file of the definitions."""
        tables = {**self.tables, "definitions": {"file": str(definitions)}}
        lines = [
            "# Settings imported from Mosquitto. `trellis check-config --config FILE` checks them.",
        ]
        for section, table in tables.items():
            if table:
                lines += ["", f"[{section}]"]
                lines += [f"{key} = {toml(value)}" for key, value in table.items()]
        for table in self.bridges:
            lines += ["", "[[bridge]]", *(f"{key} = {toml(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"

    @property
    def definitions(self) -> dict[str, Any]:
        """The users, their permissions and their topic rules, as definitions."""
        return {
            "vhosts": [{"name": _VHOST}],
            "users": [
                {
                    "name": name,
                    "password_hash": password_hash,
                    "hashing_algorithm": "mosquitto",
                    "tags": [],
                }
                for name, password_hash in self._users.items()
            ],
            "permissions": [{"user": name, "vhost": _VHOST, **_PERMISSION} for name in self._users],
            "topic_rules": [
                {"user": name, "vhost": _VHOST, "rules": rules}
                for name, rules in self._rules.items()
            ],
        }

    def _note_plugins(self) -> None:
        """Report the plugins that are not imported, with the reason."""
        for plugin in self._conf.plugins:
            name, line = Path(plugin.path).name, plugin.line
            if _PERSIST in name:
                self.report.not_needed(line.place, line.text, "durable data is always on disk")
            elif not any(known in name for known in _PLUGINS):
                self.report.not_taken(
                    line.place,
                    line.text,
                    "Trellis cannot load this plugin; plugins for amqtt, in Python, are the "
                    "nearest replacement (docs/amqtt-plugins.md)",
                )

    def _listeners(self) -> tuple[list[MosquittoListener], SecurityFiles]:
        """Return the listeners that are imported, and the files with their users and rights.

        All listeners of Trellis share their users. A listener with other files than the first
        listener is not imported, because its clients would get other rights.
        """
        conf = self._conf
        if conf.local_only:
            return [], SecurityFiles(conf.general, conf.general.plugins)
        files = []
        for listener in conf.listeners:
            owner = listener if conf.per_listener else conf.general
            files.append(SecurityFiles(owner, [*conf.general.plugins, *listener.plugins]))
        taken = []
        for listener, security_files in zip(conf.listeners, files, strict=True):
            if security_files.key == files[0].key:
                taken.append(listener)
                continue
            line = listener.line
            assert line is not None
            self.report.not_taken(
                line.place,
                line.text,
                "the listener has another password_file, acl_file or plugin than the first "
                "listener, but all listeners of Trellis have the same users; run a second broker, "
                "or merge the files",
            )
        return taken, files[0]

    def _add_anonymous(self, listeners: list[MosquittoListener]) -> None:
        """Set `mqtt.anonymous` to true, loopback or false, as the listeners require.

        If no value fits all listeners, the value is false, and the report has the lines that permit
        clients without a user name.
        """
        conf = self._conf
        general = conf.general.value("allow_anonymous").lower()
        if conf.local_only:
            self.tables["mqtt"]["anonymous"] = "false" if general in ("false", "0") else "loopback"
            return
        allowing: list[MosquittoListener] = []
        refusing: list[MosquittoListener] = []
        for listener in listeners:
            own = listener.value("allow_anonymous").lower() if conf.per_listener else general
            value = listener.value("listener_allow_anonymous", own).lower()
            (allowing if value in ("true", "1") else refusing).append(listener)
        if not refusing and allowing:
            verdict = "loopback" if all(map(is_loopback, allowing)) else "true"
        elif all(map(is_loopback, allowing)) and not any(map(is_loopback, refusing)):
            verdict = "loopback" if allowing else "false"
        else:
            verdict = "false"
            for listener in allowing:
                line = listener.last("listener_allow_anonymous") or listener.last("allow_anonymous")
                if line is not None:
                    self.report.not_taken(
                        line.place,
                        line.text,
                        "another listener refuses clients without a user name, and Trellis has one "
                        "setting for all; give these clients a user name",
                    )
        self.tables["mqtt"]["anonymous"] = verdict

    def _read_security(self, files: SecurityFiles) -> None:
        """Read the files with users and rights."""
        if files.dynamic is not None:
            for line in (files.passwords, files.acl):
                if line is not None:
                    self.report.not_taken(
                        line.place,
                        line.text,
                        "users and rights come from the dynamic security plugin; add the users and "
                        "rights of this file to the plugin's file",
                    )
            self._read_dynamic(files.dynamic)
            return
        if files.passwords is not None:
            text = self._text(files.passwords)
            if text is not None:
                self._users = read_passwords(text, file_of(files.passwords), self.report)
        elif self.tables["mqtt"]["anonymous"] != "false":
            self.report.differs(
                self._place,
                "allow_anonymous without a password_file",
                "Mosquitto accepts every user name; in Trellis a client gives no user name, or the "
                "name of a user (`trellis users add`)",
            )
        acl = None
        if files.acl is not None:
            text = self._text(files.acl)
            # A file that cannot be read permits nothing, like an empty file.
            acl = read_acl(text or "", file_of(files.acl), self.report)
        if acl is not None:
            self._apply(acl)

    def _apply(self, acl: Acl) -> None:
        """Give each user, and clients without a user name, the rules of an acl_file."""
        for name in acl.user_names:
            if name not in self._users:
                self._users[name] = ""
                self.report.differs(
                    acl.users[name][0].place if acl.users[name] else self._place,
                    f"user '{name}'",
                    "the user has rights and no password; it logs in with a certificate, or after "
                    f"`trellis users change-password {name}`",
                )
        for name in self._users:
            self._rules[name] = self._limited(name, acl.rules(name, self.report))
        self._set_anonymous_rules(acl.rules(None, self.report))

    def _read_dynamic(self, line: Line) -> None:
        """Read the file of the dynamic security plugin."""
        text = self._text(line)
        if text is None:
            self._set_anonymous_rules(["deny all #"])
            return
        file = file_of(line)
        try:
            dynamic = DynamicSecurity(msgspec.json.decode(text), file, self.report)
        except (ValueError, RecursionError) as error:
            self.report.not_taken(line.place, line.text, f"{file} is not valid: {error}")
            self._set_anonymous_rules(["deny all #"])
            return
        self._users = dynamic.passwords()
        for name in dynamic.names:
            self._rules[name] = self._limited(name, dynamic.rules(name))
        self._set_anonymous_rules(dynamic.rules(None))

    def _set_anonymous_rules(self, rules: list[str]) -> None:
        if self.tables["mqtt"]["anonymous"] != "false":
            self.tables["mqtt"]["anonymous_rules"] = self._limited("", rules)

    def _limited(self, name: str, rules: list[str]) -> list[str]:
        """Return at most RULES_MAX of the rules of a user. Report how many are left out."""
        kept, left_out = limited(rules)
        if left_out:
            owner = f"user '{name}'" if name else "clients without a user name"
            self.report.not_taken(
                self._place,
                f"{left_out} rules of {owner}",
                f"{owner} would have {len(rules)} rules; the limit is {RULES_MAX}; use wildcards, "
                "or several users",
            )
        return kept

    def _text(self, line: Line) -> str | None:
        """Return the text of the file that a line names. Report an unreadable file, return None."""
        file = file_of(line)
        try:
            return file.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            self.report.not_taken(line.place, line.text, f"{file} cannot be read: {why}")
            return None


def _option(plugin: Plugin, name: str, option: str) -> Line | None:
    """Return the line of a plugin's option; None if the plugin does not have the option.

    Also return None if the file name of the plugin does not contain `name`.
    """
    return plugin.options.get(option) if name in Path(plugin.path).name else None
