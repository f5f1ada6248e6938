"""dynamic-security.json: clients, groups and roles of Mosquitto's dynamic security plugin.

The access lists of a client are examined in this order, and the first entry that matches decides:
the client's roles, then the roles of its groups; each by priority, highest first. If none matches,
the default of the access type decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from trellis.mosquitto.access import Entry, both, entry_of, rules_of, without_sys
from trellis.mosquitto.password_file import checked
from trellis.mosquitto.report import Place, Report

SEND: Final = "publishClientSend"
RECEIVE: Final = "publishClientReceive"
LITERAL: Final = "subscribeLiteral"
PATTERN: Final = "subscribePattern"
#: Access types of subscribing, in the order in which one role's entries are examined.
_SUBSCRIBE: Final = (LITERAL, PATTERN)
_UNSUBSCRIBE: Final = ("unsubscribeLiteral", "unsubscribePattern")
#: Priorities that Mosquitto assumes if none is given: of roles and groups; of access entries.
_MEMBER_PRIORITY: Final = -1
_ACL_PRIORITY: Final = 0
#: Topics of commands to Mosquitto's plugins, and filters of shared subscriptions.
_CONTROL: Final = "$CONTROL"
_SHARE: Final = "$share/"

Table = Mapping[str, Any]


class DynamicSecurity:
    """The content of a dynamic-security.json."""

    def __init__(self, document: object, file: Path, report: Report) -> None:
        if not isinstance(document, dict):
            raise ValueError("the content must be a JSON object")
        self._report = report
        self._place = Place(file, 0)
        self._roles = {str(role.get("rolename")): role for role in _tables(document, "roles")}
        self._groups = {str(group.get("groupname")): group for group in _tables(document, "groups")}
        self._clients = {
            str(client.get("username")): client
            for client in _tables(document, "clients")
            if isinstance(client.get("username"), str)
        }
        self._anonymous = document.get("anonymousGroup")
        defaults = document.get("defaultACLAccess")
        self._defaults = defaults if isinstance(defaults, dict) else {}
        if self._defaults.get("unsubscribe") is False:
            report.not_taken(
                self._place,
                "defaultACLAccess unsubscribe",
                "Trellis lets every client unsubscribe; nothing needs to be done",
            )
        for name, role in self._roles.items():
            self._note_role(name, role)

    @property
    def names(self) -> list[str]:
        """The names of all clients."""
        return list(self._clients)

    def passwords(self) -> dict[str, str]:
        """Return the password hash of each client; "" for clients that cannot log in."""
        return {name: self._password(name, client) for name, client in self._clients.items()}

    def rules(self, user: str | None) -> list[str]:
        """Return the topic rules of a client; of anonymous clients if `user` is None."""
        roles = self._roles_of(user)
        send = self._entries(roles, (SEND,), user, False)
        subscribe = self._entries(roles, _SUBSCRIBE, user, True)
        receive = self._entries(roles, (RECEIVE,), user, True)
        reading: list[Entry] = []
        for dollar in (True, False):
            lists = [
                _completed(entries, dollar, self._default(kind))
                for entries, kind in ((subscribe, "subscribe"), (receive, RECEIVE))
            ]
            reading += both(*lists)
        return rules_of(send + reading, self._default(SEND), False)

    def _default(self, kind: str) -> bool:
        """Return True if an access of the type `kind` is allowed when no entry matches.

        If the file has no default for the type, the access is denied, as in Mosquitto.
        """
        return self._defaults.get(kind) is True

    def _roles_of(self, user: str | None) -> list[Table]:
        """Return the roles of a client and of its groups, in the order of their precedence."""
        if user is None:
            group = self._groups.get(str(self._anonymous))
            return [] if group is None else self._members(group)
        client = self._clients[user]
        groups = [(_priority(one), str(one.get("groupname"))) for one in _tables(client, "groups")]
        for name, group in self._groups.items():
            for one in _tables(group, "clients"):
                if one.get("username") == user and all(name != known for _, known in groups):
                    groups.append((_priority(one), name))
        roles = self._members(client)
        for _, name in sorted(groups, key=lambda each: (-each[0], each[1])):
            roles += self._members(self._groups.get(name, {}))
        return roles

    def _members(self, owner: Table) -> list[Table]:
        """Return the roles of a client or a group, by priority; by name if priorities are equal."""
        listed = [(_priority(one), str(one.get("rolename"))) for one in _tables(owner, "roles")]
        ordered = sorted(listed, key=lambda each: (-each[0], each[1]))
        return [self._roles[name] for _, name in ordered if name in self._roles]

    def _entries(
        self, roles: list[Table], kinds: tuple[str, ...], user: str | None, reading: bool
    ) -> list[Entry]:
        """Convert the roles' access entries of the types `kinds`, and return the new entries.

        If `reading` is True, the new entries are about subscribing, else about publishing.
        """
        entries: list[Entry] = []
        for role in roles:
            for kind in kinds:
                for acl in _acls(role, kind):
                    entries += self._entry(role, kind, acl, user, reading)
        return entries

    def _entry(
        self, role: Table, kind: str, acl: Table, user: str | None, reading: bool
    ) -> list[Entry]:
        """Convert one access entry of Mosquitto; return the new entries.

        The result is [] if the entry is left out. Entries about $SYS topics become several entries.
        """
        topic, allow = str(acl.get("topic", "")), acl.get("allow") is True
        if self._is_left_out(kind, topic, allow):
            return []
        entry, exact = entry_of(allow, not reading, reading, topic, user, True)
        if not exact:
            note = self._report.not_taken if entry is None else self._report.differs
            note(
                self._place,
                f"role '{role.get('rolename')}' {kind} {topic}",
                "a topic rule cannot express the filter, so "
                + (
                    "these topics are not allowed"
                    if entry is None
                    else "the rule denies more topics"
                )
                + "; write a rule by hand",
            )
        return [] if entry is None else without_sys(entry)

    def _is_left_out(self, kind: str, topic: str, allow: bool) -> bool:
        """True if an access entry has no counterpart in Trellis.

        `_note_role` reports these entries.
        """
        return topic.startswith((_CONTROL, _SHARE)) or (
            kind == LITERAL and not allow and ("+" in topic or "#" in topic)
        )

    def _note_role(self, name: str, role: Table) -> None:
        """Report the parts of a role that Trellis cannot express, or that have another effect in
        Trellis.
        """
        note = self._report.not_taken
        for kind in (SEND, RECEIVE, *_SUBSCRIBE, *_UNSUBSCRIBE):
            for acl in _acls(role, kind):
                topic, allow = str(acl.get("topic", "")), acl.get("allow") is True
                text = f"role '{name}' {kind} {topic}"
                if kind in _UNSUBSCRIBE:
                    if not allow:
                        note(self._place, text, "Trellis lets every client unsubscribe")
                elif topic.startswith(_CONTROL):
                    note(
                        self._place,
                        text,
                        "$CONTROL has no function in Trellis; manage users over the HTTP API",
                    )
                elif topic.startswith(_SHARE):
                    note(
                        self._place,
                        text,
                        "Trellis checks the filter after $share/GROUP/; allow or deny that filter",
                    )
                elif kind == LITERAL and not allow and ("+" in topic or "#" in topic):
                    note(
                        self._place,
                        text,
                        "a rule denies topics, not one filter, so this filter is not denied; "
                        "`mqtt.no_subscribe` denies a filter to all clients",
                    )
                elif kind == LITERAL and ("+" in topic or "#" in topic):
                    self._report.differs(
                        self._place, text, "narrower filters of the same topics are allowed too"
                    )
        if role.get("allowwildcardsubs") is False:
            note(
                self._place,
                f"role '{name}' allowwildcardsubs false",
                "a topic rule cannot deny all filters with wildcards; `mqtt.no_subscribe` denies "
                "single filters",
            )

    def _password(self, name: str, client: Table) -> str:
        """Return the password hash of a client; "" if the client cannot log in with a password."""
        if client.get("clientid"):
            self._report.not_taken(
                self._place,
                f"client '{name}' clientid {client['clientid']}",
                "in Trellis the user may log in with any client identifier; the rule `reserve "
                "client` keeps the identifier from other users",
            )
        if client.get("disabled") is True:
            self._report.differs(
                self._place,
                f"client '{name}' disabled",
                "the user has no password, so it cannot log in; to enable the user, set a password "
                f"with `trellis users change-password {name}`",
            )
            return ""
        encoded = client.get("encoded_password")
        if not isinstance(encoded, str):
            parts = [client.get(key) for key in ("iterations", "salt", "password")]
            encoded = "$7$" + "$".join(map(str, parts)) if all(parts) else ""
        return checked(name, encoded, self._place, self._report)


def _completed(entries: list[Entry], dollar: bool, default: bool) -> list[Entry]:
    """Return the entries for topics that begin with `$` (if `dollar`), or for all other topics.

    The last entry applies the default to the topics that no other entry matches.
    """
    chosen = [entry for entry in entries if entry.topic_filter.startswith("$") == dollar]
    if dollar:
        chosen.append(Entry(False, False, True, f"{_CONTROL}/#"))
    return [*chosen, Entry(default, False, True, "$+/#" if dollar else "#")]


def _acls(role: Table, kind: str) -> list[Table]:
    """Return a role's access entries of one type, highest priority first."""
    acls = [acl for acl in _tables(role, "acls") if str(acl.get("acltype")) == kind]
    return sorted(acls, key=lambda acl: -_number(acl.get("priority"), _ACL_PRIORITY))


def _tables(owner: Table, key: str) -> Iterable[Table]:
    """Return the objects in the list `key` of a client, group or role."""
    listed = owner.get(key)
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _priority(member: Table) -> int:
    return _number(member.get("priority"), _MEMBER_PRIORITY)


def _number(value: object, default: int) -> int:
    return int(value) if isinstance(value, int | float) else default
