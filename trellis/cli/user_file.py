"""`trellis users import FILE`: many users with their permissions and topic rules, from one file.

A file is CSV with a header, or a JSON list of objects. The fields are the same:

    name                            the user
    password or password_hash       a password, which this command hashes, or a hash
    tags                            in CSV separated by spaces
    vhost                           / if absent
    configure, write, read          permissions: patterns of names
    rules                           topic rules; in CSV separated by semicolons
    role                            the role of the user, which must exist (`trellis roles set`)
"""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec

from trellis.auth.passwords import HASHER, show_hash
from trellis.cli.actions import PERMISSIONS
from trellis.cli.parsing import CommandError
from trellis.settings.errors import nearest

FIELDS: Final = (
    "name",
    "password",
    "password_hash",
    "hashing_algorithm",
    "tags",
    "vhost",
    "configure",
    "write",
    "read",
    "rules",
    "role",
)

Row = dict[str, Any]


def read_users(path: str) -> list[Row]:
    """Return the users in a file, a row for each; "-" is standard input. Raises CommandError."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}", 2) from None
    except UnicodeDecodeError:
        raise CommandError(f"{path} is not UTF-8 text; save it as UTF-8", 2) from None
    rows = _json(path, text) if text.lstrip()[:1] in ("[", "{") else _csv(path, text)
    known: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        where = f"{path}, user {number}"
        for field in row:
            if field not in FIELDS:
                hint = nearest(field, FIELDS)
                raise CommandError(f"{where}: unknown field '{field}'; the nearest is {hint}", 2)
        name = row.get("name")
        if not isinstance(name, str) or not name:
            raise CommandError(f"{where}: the name is missing; set the field 'name'", 2)
        if ("password" in row) == ("password_hash" in row):
            problem = "give one of the fields password and password_hash"
            raise CommandError(f"{where} ({name}): {problem}", 2)
        password = row.get("password", "x")
        if not isinstance(password, str):
            problem = "the password must be text in quotation marks"
            raise CommandError(f"{where} ({name}): {problem}", 2)
        if not password:
            raise CommandError(f"{where} ({name}): the password is empty; give one", 2)
        if name in known:
            raise CommandError(
                f"{where}: user {known[name]} of the file has the name '{name}', too; remove one", 2
            )
        known[name] = number
    return rows


def _json(path: str, text: str) -> list[Row]:
    try:
        return msgspec.json.decode(text, type=list[dict[str, Any]])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CommandError(f"{path} is not a JSON list of objects: {error}", 2) from None


def _csv(path: str, text: str) -> list[Row]:
    reader = csv.DictReader(io.StringIO(text), restkey="", strict=True)
    rows: list[Row] = []
    try:
        for line in reader:
            if "" in line:
                problem = "too many fields: each field needs a name in the first line"
                raise CommandError(f"{path}, line {reader.line_num}: {problem}", 2)
            row: Row = {field: value for field, value in line.items() if value}
            if "tags" in row:
                row["tags"] = row["tags"].split()
            if "rules" in row:
                row["rules"] = [rule.strip() for rule in row["rules"].split(";") if rule.strip()]
            rows.append(row)
    except csv.Error as error:
        raise CommandError(f"{path}, line {reader.line_num}: invalid CSV: {error}", 2) from None
    return rows


def password_hashes(rows: list[Row]) -> Iterator[str | None]:
    """Yield the hash of each user's password; None for a user whose hash is in the file.

    A hash takes 24 ms of one core. The threads use all cores.
    """
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        yield from pool.map(
            lambda row: HASHER.hash(row["password"]) if "password" in row else None, rows
        )


def users_of(rows: list[Row], hashes: Iterable[str | None]) -> Iterator[Row]:
    """Yield the users as rows of a definitions document.

    `hashes` has the hash of each user's password; None for a user whose hash is in the file.
    """
    for row, new_hash in zip(rows, hashes, strict=True):
        user = {"name": row["name"], "tags": row.get("tags", [])}
        if "role" in row:
            user["role"] = row["role"]
        if new_hash is None:
            user["password_hash"] = row["password_hash"]
            user["hashing_algorithm"] = row.get("hashing_algorithm", "")
        else:
            user["password_hash"], user["hashing_algorithm"] = show_hash(new_hash)
        yield user


def definitions_of(rows: list[Row], users: list[Row]) -> dict[str, list[Row]]:
    """Return the definitions document of these users, with their permissions and topic rules.

    If a user has at least one of the fields configure, write and read, a missing field becomes an
    empty pattern. A user that has topic rules and none of these fields gets all permissions,
    because the rules limit the topics.
    """
    permissions, rules = [], []
    for row in rows:
        owner = {"user": row["name"], "vhost": row.get("vhost", "/")}
        if any(field in row for field in PERMISSIONS):
            permissions.append(owner | {field: row.get(field, "") for field in PERMISSIONS})
        elif row.get("rules"):
            permissions.append(owner | dict.fromkeys(PERMISSIONS, ".*"))
        if row.get("rules"):
            rules.append(owner | {"rules": row["rules"]})
    return {"users": users, "permissions": permissions, "topic_rules": rules}
