"""Who may come in: users with argon2id hashes, checked in threads so that the loop never waits.

    credentials --+-- remembered (keyed hash, five minutes) ------------------------------> verdict at once
                  +-- the same ones are being checked already: wait with them ------------> one verdict for all
                  +-- room in the queue: a thread hashes (24 ms, 19 MiB) -----------------> verdict later
                  +-- no room ------------------------------------------------------------> busy
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from broker.access import Authenticator, Credentials, Identity, Verdict
from broker.users import Users
from trellis import logs
from trellis.passwords import HASHER, verify

#: Verified credentials remembered; the oldest go first.
REMEMBERED: Final = 10_000
#: Verdicts told in one turn of the loop: each makes its connection go on.
ANSWERS: Final = 5
#: How much less than the loop the hashing threads get of a busy processor (nice levels, Linux).
NICE: Final = 5

Answer = Callable[[Verdict], None]


class Account:
    """A user who may log in, with a hash of the password. A `loopback_only` one from this machine alone."""

    def __init__(self, identity: Identity, password_hash: str, loopback_only: bool) -> None:
        self.identity = identity
        self.password_hash = password_hash
        self.loopback_only = loopback_only


class Accounts(Authenticator):
    """Checks names and passwords. `anonymous` is whose rights they get who give no name: from loopback only,
    or from anywhere; None is nobody."""

    def __init__(self, accounts: list[Account], anonymous: Identity | None, anonymous_from_afar: bool, threads: int, queue: int,
                 remember: float) -> None:
        self._accounts = {account.identity.name: account for account in accounts}
        self._anonymous = anonymous
        self._anonymous_from_afar = anonymous_from_afar
        self._queue = queue
        self._remember = remember
        self._secret = secrets.token_bytes(32)
        self._verified: dict[bytes, float] = {}
        self._checking: dict[bytes, list[Answer]] = {}
        #: Verdicts that nobody has been told yet.
        self._found_out: deque[tuple[Answer, Verdict]] = deque()
        #: Hashed for names that nobody has, so that those take as long as wrong passwords.
        self._decoy = HASHER.hash(secrets.token_urlsafe())
        self._pool = ThreadPoolExecutor(threads, "trellis-login", initializer=stand_back)
        #: Users that the broker keeps itself; those of the settings come first.
        self.users: Users | None = None
        #: Passwords hashed so far.
        self.hashed = 0

    def replace(self, accounts: list[Account], anonymous: Identity | None, anonymous_from_afar: bool) -> None:
        """From now on these may log in. Who is in already stays as it is."""
        self._accounts = {account.identity.name: account for account in accounts}
        self._anonymous = anonymous
        self._anonymous_from_afar = anonymous_from_afar

    def authenticate(self, credentials: Credentials, answer: Answer) -> None:
        name = credentials.user
        if name is None:
            allowed = self._anonymous is not None and (credentials.local or self._anonymous_from_afar) and not credentials.foreign
            answer(Verdict(self._anonymous) if allowed else Verdict(None, "anonymous access is not allowed here"))
            return
        account = self._account(name, credentials.proven)
        if account is not None and account.loopback_only and not credentials.local:
            answer(Verdict(None, f"user '{name}' may log in from loopback only"))
            return
        if credentials.proven:
            if account is None:
                logs.info("login_refused", user=name, address=credentials.address, note="the name in a certificate, and no user's")
            answer(Verdict(None, f"user '{name}', whom a certificate names, is unknown") if account is None else Verdict(account.identity))
            return
        password_hash = self._decoy if account is None else account.password_hash
        mark = self._mark(name, credentials.password, password_hash)
        loop = asyncio.get_running_loop()
        if self._verified.get(mark, 0.0) > loop.time() and account is not None:
            answer(Verdict(account.identity))
        elif mark in self._checking:
            self._checking[mark].append(answer)
        elif len(self._checking) >= self._queue:
            answer(Verdict(None, "too many logins at once", busy=True))
        else:
            self._checking[mark] = [answer]
            self._pool.submit(self._hash, loop, mark, account, password_hash, credentials)

    def _account(self, name: str, proven: bool) -> Account | None:
        """One without a password can log in by a certificate only."""
        user = None if self.users is None or name in self._accounts else self.users.by_name.get(name)
        if user is None:
            return self._accounts.get(name)
        return Account(user, user.password_hash, False) if user.password_hash or proven else None

    def _mark(self, name: str, password: bytes, password_hash: str) -> bytes:
        """Says that credentials are the same, and nothing about what they are."""
        digest = hashlib.blake2b(key=self._secret, digest_size=32)
        for part in (name.encode(), password_hash.encode(), password):
            digest.update(len(part).to_bytes(4, "big") + part)
        return digest.digest()

    def _hash(self, loop: asyncio.AbstractEventLoop, mark: bytes, account: Account | None, password_hash: str,
              credentials: Credentials) -> None:
        """In a thread."""
        good = False
        try:
            good = verify(password_hash, credentials.password)
        finally:
            try:
                loop.call_soon_threadsafe(self._found, mark, account if good else None, credentials)
            except RuntimeError:
                pass  # The loop is closed: nobody waits any more.

    def _found(self, mark: bytes, account: Account | None, credentials: Credentials) -> None:
        self.hashed += 1
        if account is None:
            logs.info("login_refused", user=credentials.user, address=credentials.address)
        if account is not None and self._remember:
            self._verified.pop(mark, None)
            if len(self._verified) >= REMEMBERED:
                del self._verified[next(iter(self._verified))]
            self._verified[mark] = asyncio.get_running_loop().time() + self._remember
        verdict = Verdict(None, "unknown user or wrong password") if account is None else Verdict(account.identity)
        idle = not self._found_out
        self._found_out.extend((answer, verdict) for answer in self._checking.pop(mark))
        if idle:
            self._tell()

    def _tell(self) -> None:
        for _ in range(min(ANSWERS, len(self._found_out))):
            answer, verdict = self._found_out.popleft()
            answer(verdict)
        if self._found_out:
            asyncio.get_running_loop().call_soon(self._tell)

    @property
    def waiting(self) -> int:
        """Different credentials that are being checked, or wait for it."""
        return len(self._checking)

    def close(self) -> None:
        """No more hashing."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def stand_back() -> None:
    """Let the loop go first: on Linux each thread has a priority of its own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
