"""Who may come in: users with argon2id hashes, checked in threads so that the loop never waits.

credentials --+-- remembered (keyed hash, five minutes) ------------------------------> verdict at
once
              +-- after many failures (trellis/auth/login_throttle.py): wait, then go on here
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

from broker.access.identity import Authenticator, Credentials, Identity, Verdict
from broker.access.users import Users
from broker.eviction import evict_oldest
from trellis import logs
from trellis.auth.login_throttle import LoginThrottle
from trellis.auth.passwords import HASHER, verify

#: Verified credentials remembered; the oldest go first.
MAX_VERIFIED: Final = 10_000
#: Verdicts told in one turn of the loop: each makes its connection go on.
VERDICTS_PER_TURN: Final = 5
#: How much less than the loop the hashing threads get of a busy processor (nice levels, Linux).
NICE: Final = 5

VerdictCallback = Callable[[Verdict], None]


class Account:
    """A user who may log in, with a hash of the password.

    A `loopback_only` one from this machine alone.
    """

    def __init__(self, identity: Identity, password_hash: str, loopback_only: bool) -> None:
        self.identity = identity
        self.password_hash = password_hash
        self.loopback_only = loopback_only


class Accounts(Authenticator):
    """Checks names and passwords. `anonymous` is whose rights they get who give no name: from
    loopback only, or from anywhere; None is nobody."""

    def __init__(
        self,
        accounts: list[Account],
        anonymous: Identity | None,
        anonymous_remote: bool,
        threads: int,
        queue: int,
        remember: float,
    ) -> None:
        self._accounts = {account.identity.name: account for account in accounts}
        self._anonymous = anonymous
        self._anonymous_remote = anonymous_remote
        self._queue = queue
        self._remember = remember
        self._secret = secrets.token_bytes(32)
        self._verified: dict[bytes, float] = {}
        self._checking: dict[bytes, list[tuple[VerdictCallback, Credentials]]] = {}
        self.login_throttle = LoginThrottle()
        #: Attempts that wait because of failures before them.
        self._throttled = 0
        #: Verdicts that nobody has been told yet.
        self._verdicts: deque[tuple[VerdictCallback, Verdict]] = deque()
        #: Hashed for names that nobody has, so that those take as long as wrong passwords.
        self._decoy = HASHER.hash(secrets.token_urlsafe())
        self._pool = ThreadPoolExecutor(threads, "trellis-login", initializer=lower_priority)
        #: Users that the broker keeps itself; those of the settings come first.
        self.users: Users | None = None
        #: Passwords hashed so far.
        self.passwords_hashed = 0
        self._closed = False

    def replace(
        self, accounts: list[Account], anonymous: Identity | None, anonymous_remote: bool
    ) -> None:
        """From now on these may log in. Who is in already is to be looked at again."""
        self._accounts = {account.identity.name: account for account in accounts}
        self._anonymous = anonymous
        self._anonymous_remote = anonymous_remote

    @property
    def settings_accounts(self) -> dict[str, Account]:
        """Users of the settings, by their names."""
        return self._accounts

    def authenticate(self, credentials: Credentials, answer: VerdictCallback) -> None:
        name = credentials.user
        if name is None:
            allowed = (
                self._anonymous is not None
                and (credentials.local or self._anonymous_remote)
                and not credentials.foreign
            )
            answer(
                Verdict(self._anonymous)
                if allowed
                else Verdict(None, "anonymous access is not allowed here")
            )
            return
        account = self._find_account(name, credentials.proven)
        if account is not None and account.loopback_only and not credentials.local:
            # As slow as a name that nobody has: it is nobody there.
            logs.info(
                "login_refused",
                user=name,
                address=credentials.address,
                note="may log in from loopback only",
            )
            account = None
        if credentials.proven:
            if account is None:
                logs.info(
                    "login_refused",
                    user=name,
                    address=credentials.address,
                    note="the name in a certificate, and no user's",
                )
            answer(
                Verdict(None, f"user '{name}', whom a certificate names, is unknown")
                if account is None
                else Verdict(account.identity)
            )
            return
        password_hash = self._decoy if account is None else account.password_hash
        mark = self._digest(name, credentials.password, password_hash)
        loop = asyncio.get_running_loop()
        if self._verified.get(mark, 0.0) > loop.time() and account is not None:
            answer(Verdict(account.identity))
            return
        seconds = self.login_throttle.wait(
            name, credentials.address, credentials.local, loop.time()
        )
        if seconds == 0:
            self._check(mark, account, password_hash, credentials, answer)
        elif self._throttled >= self._queue:
            answer(Verdict(None, "too many logins at once", busy=True))
        else:
            self._throttled += 1
            loop.call_later(
                seconds, self._check_throttled, mark, account, password_hash, credentials, answer
            )

    def _check_throttled(
        self,
        mark: bytes,
        account: Account | None,
        password_hash: str,
        credentials: Credentials,
        answer: VerdictCallback,
    ) -> None:
        """It has waited long enough."""
        self._throttled -= 1
        if not self._closed:
            self._check(mark, account, password_hash, credentials, answer)

    def _check(
        self,
        mark: bytes,
        account: Account | None,
        password_hash: str,
        credentials: Credentials,
        answer: VerdictCallback,
    ) -> None:
        if mark in self._checking:
            self._checking[mark].append((answer, credentials))
        elif len(self._checking) >= self._queue:
            answer(Verdict(None, "too many logins at once", busy=True))
        else:
            self._checking[mark] = [(answer, credentials)]
            self._pool.submit(
                self._hash, asyncio.get_running_loop(), mark, account, password_hash, credentials
            )

    def renew(self, identity: Identity) -> Identity | None:
        if identity.anonymous:
            return self._anonymous
        return self.identity_of(identity.name)

    def identity_of(self, user: str) -> Identity | None:
        account = self._accounts.get(user)
        if account is not None:
            return account.identity
        return None if self.users is None else self.users.by_name.get(user)

    def _find_account(self, name: str, proven: bool) -> Account | None:
        """One without a password can log in by a certificate only."""
        user = (
            None if self.users is None or name in self._accounts else self.users.by_name.get(name)
        )
        if user is None:
            return self._accounts.get(name)
        return Account(user, user.password_hash, False) if user.password_hash or proven else None

    def _digest(self, name: str, password: bytes, password_hash: str) -> bytes:
        """Says that credentials are the same, and nothing about what they are."""
        digest = hashlib.blake2b(key=self._secret, digest_size=32)
        for part in (name.encode(), password_hash.encode(), password):
            digest.update(len(part).to_bytes(4, "big") + part)
        return digest.digest()

    def _hash(
        self,
        loop: asyncio.AbstractEventLoop,
        mark: bytes,
        account: Account | None,
        password_hash: str,
        credentials: Credentials,
    ) -> None:
        """In a thread."""
        good = False
        try:
            good = verify(password_hash, credentials.password)
            if not password_hash.startswith("$argon2"):
                verify(
                    self._decoy, credentials.password
                )  # A hash of RabbitMQ's takes no time, and would tell who has one.
        finally:
            try:
                loop.call_soon_threadsafe(
                    self._on_hashed, mark, account if good else None, credentials
                )
            except RuntimeError:
                pass  # The loop is closed: nobody waits any more.

    def _on_hashed(self, mark: bytes, account: Account | None, credentials: Credentials) -> None:
        self.passwords_hashed += 1
        if account is None:
            logs.info("login_refused", user=credentials.user, address=credentials.address)
        if account is not None and self._remember:
            self._verified.pop(mark, None)
            if len(self._verified) >= MAX_VERIFIED:
                evict_oldest(self._verified)
            self._verified[mark] = asyncio.get_running_loop().time() + self._remember
        waiting = self._checking.pop(mark)
        now = asyncio.get_running_loop().time()
        for _, waited in waiting:
            if account is None:
                self.login_throttle.on_failure(waited.user or "", waited.address, waited.local, now)
        if account is not None:
            self.login_throttle.on_success(account.identity.name)
        verdict = (
            Verdict(None, "unknown user or wrong password")
            if account is None
            else Verdict(account.identity)
        )
        idle = not self._verdicts
        self._verdicts.extend((answer, verdict) for answer, _ in waiting)
        if idle:
            self._deliver_verdicts()

    def _deliver_verdicts(self) -> None:
        for _ in range(min(VERDICTS_PER_TURN, len(self._verdicts))):
            answer, verdict = self._verdicts.popleft()
            answer(verdict)
        if self._verdicts:
            asyncio.get_running_loop().call_soon(self._deliver_verdicts)

    @property
    def waiting(self) -> int:
        """Different credentials that are being checked, or wait for it."""
        return len(self._checking) + self._throttled

    def close(self) -> None:
        """No more hashing."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)


def lower_priority() -> None:
    """Let the loop go first: on Linux each thread has a priority of its own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
