"""Logins with passwords at an `Accounts` object, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar

import argon2

from broker.access.identity import Credentials, Verdict
from tests.top.running import PATIENCE
from trellis.auth.authenticate import Accounts

#: A password hash that is verified very fast, and one that is verified slowly.
QUICK = argon2.PasswordHasher(1, 8, 1).hash("quick")
SLOW = (
    "$argon2id$v=19$m=32768,t=8,p=1"
    "$1fMGcVnNnuIyNHzpZsPLXw$gPXeam4tcTr4WePqhJysI6Kt3gAIMRUw3wKdY7GQQBw"
)
Make = Callable[..., Accounts]


class Question:
    """Credentials that wait for a verdict."""

    #: Number of questions with a verdict; a test sets it to 0.
    answers: ClassVar[int] = 0

    def __init__(
        self,
        accounts: Accounts,
        user: str | None,
        password: str = "",
        local: bool = True,
        address: str = "192.0.2.1",
    ) -> None:
        self.verdicts: list[Verdict] = []
        self._heard = asyncio.Event()
        address = "127.0.0.1" if local else address
        accounts.authenticate(Credentials(user, password.encode(), "/", address, local), self._hear)

    def _hear(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        Question.answers += 1
        self._heard.set()

    @property
    def answered(self) -> bool:
        return bool(self.verdicts)

    async def verdict(self) -> Verdict:
        async with asyncio.timeout(PATIENCE):
            await self._heard.wait()
        (verdict,) = self.verdicts
        return verdict

    async def name(self) -> str | None:
        """Return the name of the identity in the verdict, or None if the login is refused."""
        identity = (await self.verdict()).identity
        return None if identity is None else identity.name
