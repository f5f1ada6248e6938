"""Names in the catalog that are not valid UTF-8: find them, and rename their objects.

Older versions accepted such names over HTTP. The broker does not restore their objects, which stay
in the store with their messages, until `trellis store repair` has renamed them.
"""

from __future__ import annotations

from typing import Final

from broker.names import NAME_BYTES_MAX, is_text, shown
from broker.store.catalog import Catalog
from broker.store.entries import Defined

#: Kinds of definitions whose names the broker generates. They contain routing keys, which need not
#: be UTF-8.
_LINKS: Final = ("binding", "subscription")
#: Number of bytes of a name that are reserved for a suffix such as `~2`, which makes the name
#: unique.
_SUFFIX: Final = 12

Numbered = tuple[int, Defined]


def has_invalid_name(entry: Defined) -> bool:
    """True if the definition is of an object with a name that is not valid UTF-8."""
    return entry.kind not in _LINKS and not is_text(entry.name)


def invalid_names(definitions: list[Numbered]) -> list[Numbered]:
    """Return the definitions of objects whose names are not valid UTF-8, with their numbers."""
    return [(number, entry) for number, entry in definitions if has_invalid_name(entry)]


def rename_invalid(catalog: Catalog, definitions: list[Numbered]) -> list[tuple[Defined, str]]:
    """Rename each object whose name is not valid UTF-8; return the objects with their new names.

    Bytes that are not UTF-8 become escape sequences, such as `\\xff`. A user and its permissions
    get the same new name. Raises StoreError if the catalog cannot be written.
    """
    taken: dict[tuple[str, str], set[str]] = {}
    for _, entry in definitions:
        taken.setdefault(_scope(entry), set()).add(entry.name)
    chosen: dict[tuple[str, str, str], str] = {}
    renamed: list[tuple[Defined, str]] = []
    for number, entry in invalid_names(definitions):
        scope = _scope(entry)
        name = chosen.get((*scope, entry.name)) or _unused(entry.name, taken[scope])
        chosen[*scope, entry.name] = name
        taken[scope].add(name)
        catalog.rename(number, entry.kind, name)
        renamed.append((entry, name))
    return renamed


def _scope(entry: Defined) -> tuple[str, str]:
    """Return (virtual host, kind): the object's name must be unique among these objects."""
    if entry.kind in ("user", "permission"):
        return "", "user"
    return entry.vhost, entry.kind


def _unused(name: str, taken: set[str]) -> str:
    """Return a valid name that begins like `name` and is not in `taken`."""
    base = shown(name).encode()[: NAME_BYTES_MAX - _SUFFIX].decode(errors="ignore")
    candidate, count = base, 1
    while candidate in taken:
        count += 1
        candidate = f"{base}~{count}"
    return candidate
