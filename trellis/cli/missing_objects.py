"""The nearest name and the next command, for an error about an object that does not exist.

The errors of the HTTP API name the kind of the missing object, its name and its virtual host. The
commands print, for example:

    trellis: no queue 'ordrs' in vhost '/'; the nearest is 'orders'; next: trellis list queues
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

#: Largest number of rows whose names are compared with the missing name: the first of the list.
NAMES_MAX: Final = 500
#: Smallest similarity (a ratio of difflib) of a name that is printed as the nearest.
SIMILARITY_MIN: Final = 0.6
#: Texts about a missing object, with the groups kind, name and vhost.
_TEXTS: Final = (
    # The error about a missing queue, if an MQTT session has the name that was given.
    re.compile(
        r"no queue '.+?', but (?P<kind>session) '(?P<name>.+?)' in vhost '(?P<vhost>.+?)' has"
    ),
    re.compile(r"no client '(?P<name>.+?)' is (?P<kind>connected)(?P<vhost>)"),
    re.compile(r"\bno (?P<kind>[a-z]+) '(?P<name>.+?)'(?: in vhost '(?P<vhost>.+?)')?(?!\w)"),
    re.compile(
        r"client identifier '(?P<name>.+?)' has no (?P<kind>session) in vhost '(?P<vhost>.+?)'"
    ),
    re.compile(r"no (?P<kind>client) is known as '(?P<name>.+?)'(?P<vhost>)"),
    re.compile(r"user '(?P<name>.+?)' has no (?P<kind>permissions) in vhost '(?P<vhost>.+?)'"),
)


class _ListedKind(NamedTuple):
    """The command and the request that list the objects of one kind.

    `command` is the command line without `trellis`. `path` is the path of the list in the HTTP API;
    an empty path means that no nearest name is searched. `by_vhost` is True if the command has
    --vhost and the path ends with the virtual host. `fields` of a row are the object's names;
    "a.b" is the field b of the object in the field a.
    `by_name` is True if the command takes the name in the error as an argument, and lists only the
    rows of this name. `add` is the command that adds an object of the kind; "" if no command adds
    one from its name alone.
    """

    command: str
    path: tuple[str, ...] = ()
    by_vhost: bool = False
    fields: tuple[str, ...] = ("name",)
    by_name: bool = False
    add: str = ""


_KINDS: Final = {
    "queue": _ListedKind("list queues", ("queues",), True),
    "stream": _ListedKind("stream list", ("streams",)),
    "exchange": _ListedKind("list exchanges", ("exchanges",), True),
    "binding": _ListedKind("list bindings"),
    "policy": _ListedKind("policies list", ("policies",)),
    "vhost": _ListedKind("vhosts list", ("vhosts",)),
    "user": _ListedKind("users list", ("users",), add="users add"),
    "role": _ListedKind("roles list", ("roles",)),
    "permissions": _ListedKind("permissions list", by_name=True),
    "connection": _ListedKind("list connections", ("connections",)),
    # A client that `trellis close` can close: only open connections have names.
    "connected": _ListedKind(
        "list connections",
        ("connections",),
        fields=("name", "user_provided_name", "variable_map.client_id"),
    ),
    "client": _ListedKind("list connections", ("trellis", "sessions"), fields=("client_id",)),
    "session": _ListedKind("list sessions", ("trellis", "sessions"), fields=("client_id",)),
}

#: Returns the first rows of a list of the HTTP API; the arguments are path and query.
ListRows = Callable[[tuple[str, ...], Mapping[str, object]], list[dict[str, Any]]]


def advice_about(error: str, list_rows: ListRows, may_add: bool = False) -> str:
    """Return what to add to the text of an error, if an object is missing; else "".

    `list_rows` returns [] if the user may not read the list. If `may_add` is True, the operator may
    want to add the missing object, and the text names the command for this.
    """
    match = next(filter(None, (text.search(error) for text in _TEXTS)), None)
    if match is None or match["kind"] not in _KINDS:
        return ""
    kind, name, vhost = _KINDS[match["kind"]], match["name"], match["vhost"]
    path = (*kind.path, vhost) if kind.by_vhost and vhost else kind.path
    names: list[str] = []
    if path:
        columns = ",".join(kind.fields)
        query = {"page": 1, "page_size": NAMES_MAX, "columns": columns}
        rows = list_rows(path, query)[:NAMES_MAX]
        names = list(filter(None, (_text_in(row, each) for row in rows for each in kind.fields)))
    near = get_close_matches(name, names, 1, SIMILARITY_MIN)
    nearest = f"; the nearest is '{near[0]}'" if near and near[0] != name else ""
    words = [name] if kind.by_name else []
    if kind.by_vhost and vhost not in (None, "/"):
        words += ["--vhost", vhost]
    text = f"{nearest}; next: {shlex.join(['trellis', *kind.command.split(), *words])}"
    if not may_add or not kind.add:
        return text
    add = shlex.join(["trellis", *kind.add.split(), name])
    return f"{text}, or to add this {match['kind']}: {add}"


def _text_in(row: Mapping[str, Any], field: str) -> str:
    """Return the text in a field of a row, or "" if the row has no such text."""
    value: Any = row
    for part in field.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""
