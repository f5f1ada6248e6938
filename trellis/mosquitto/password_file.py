"""Mosquitto's password_file: `name:hash` in each line."""

from __future__ import annotations

from pathlib import Path

from trellis.auth.passwords import check_hash
from trellis.mosquitto.report import Place, Report


def read_passwords(text: str, file: Path, report: Report) -> dict[str, str]:
    """Return the password hash of each user; "" for a user that cannot log in with a password."""
    users: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        place = Place(file, number)
        name, colon, password_hash = line.partition(":")
        if not name:
            report.not_taken(place, "a line without a user name", "give a name before the colon")
            continue
        if name in users:
            report.not_taken(
                place, f"user '{name}'", "the file has two lines for this user; remove one of them"
            )
            continue
        users[name] = checked(name, password_hash if colon else "", place, report)
    return users


def checked(name: str, password_hash: str, place: Place, report: Report) -> str:
    """Return a password hash if Trellis can verify it. Otherwise report the hash, and return ""."""
    advice = f"set a password with `trellis users change-password {name}` after the import"
    if not password_hash.startswith("$"):
        what = "the password must be hashed" if password_hash else "the password is missing"
        report.not_taken(place, f"password of user '{name}'", f"{what}; {advice}")
        return ""
    try:
        return check_hash(password_hash, "mosquitto")
    except ValueError as error:
        report.not_taken(place, f"password of user '{name}'", f"{error}; {advice}")
        return ""
