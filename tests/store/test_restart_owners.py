"""Tests that a session keeps its user over a restart: a user named `anonymous`, or no user."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.access.identity import Identity
from broker.store.entries import Defined
from tests.store.homes import Home

RESUMED, REJECTED = b"\x20\x02\x01\x00", b"\x20\x02\x00\x02"


class NamedHome(Home):
    """A broker on a data directory, with a user named `anonymous` and anonymous clients."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.guests.identities["anonymous"] = Identity("anonymous")
        # Clients without a user name get the identity of `guest`.
        nameless = self.guests.identities["guest"] = Identity("anonymous")
        nameless.anonymous = True


@pytest.mark.parametrize("owner", ["", "anonymous/guest"])
def test_sessions_keep_their_user(tmp_path: Path, owner: str) -> None:
    home = NamedHome(tmp_path / "home")
    assert home.mqtt("dev", clean=False, user=owner).greeting[:2] == b"\x20\x02"
    home.turn()
    home.opened.store.close()
    after = NamedHome(tmp_path / "home")
    other = "anonymous/guest" if not owner else ""
    assert after.mqtt("dev", clean=False, user=other).greeting == REJECTED
    assert after.mqtt("dev", clean=False, user=owner).greeting == RESUMED


def test_an_older_version_stored_anonymous_clients_by_name_alone(tmp_path: Path) -> None:
    home = NamedHome(tmp_path / "home")
    row: dict[str, object] = {"away_since": 1, "expiry": 4_000_000_000, "user": "anonymous"}
    home.store.append(Defined("/", "session", "dev", row | {"named": False}), None)
    home.store.append(Defined("/", "session", "none", {"away_since": 1, "expiry": 1 << 32}), None)
    home.turn()
    home.opened.store.close()
    after = NamedHome(tmp_path / "home")
    assert after.mqtt("dev", clean=False, user="anonymous/guest").greeting == REJECTED
    assert after.mqtt("dev", clean=False).greeting == RESUMED
    # Still older versions stored no user: the first user to connect owns the session from then on.
    assert after.mqtt("none", clean=False).greeting == RESUMED
    assert after.mqtt("none", clean=False, user="anonymous/guest").greeting == REJECTED
