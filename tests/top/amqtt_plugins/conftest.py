"""Fixtures: accounts, brokers with plugins, and a password file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import argon2
import pytest
from pwdlib.hashers.argon2 import Argon2Hasher

from broker.access.identity import Identity
from tests.top.amqtt_plugins.house import Build, House
from tests.top.amqtt_plugins.plugins import Hangs, Lives, Roles
from trellis.auth.account import Account
from trellis.auth.authenticate import Accounts
from trellis.auth.private_files import scram_secret


@pytest.fixture(scope="module")
def accounts() -> Iterator[Accounts]:
    """Return accounts without anonymous logins.

    `guest` may log in from loopback only; `ann` may write to amq.topic only.
    """
    cheap = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    users = [
        Account(Identity("guest"), cheap.hash("guest"), True),
        Account(Identity("ann", write="amq\\.topic"), cheap.hash("ann's"), False),
    ]
    accounts = Accounts(users, Identity("anonymous"), False, 1, 8, 300, scram_secret(None))
    yield accounts
    accounts.close()


@pytest.fixture
async def build(accounts: Accounts) -> AsyncIterator[Build]:
    """Return a function that builds a broker with plugins; close the brokers after the test."""
    houses: list[House] = []

    def make(plugins: dict[str, dict[str, object]], **limits: Any) -> House:
        houses.append(House(plugins, accounts, **limits))
        return houses[-1]

    Hangs.released.clear()
    Roles.seen.clear()
    Lives.life.clear()
    yield make
    for house in houses:
        house.close()


@pytest.fixture
def passwords(tmp_path: Path) -> str:
    """Write a password file of amqtt with the user `bob`; return its path."""
    path = tmp_path / "passwords"
    path.write_text(
        f"# comment\nbob:{Argon2Hasher(time_cost=1, memory_cost=8, parallelism=1).hash('bobs')}\n"
    )
    return str(path)
