"""Authentication by user name and password. Threads hash passwords, so the event loop never waits.

Passwords are hashed with argon2id (24 ms and 19 MiB each). The first line that applies decides how
a login is handled:

    the password is remembered (remembered_passwords.py) -----------> verdict at once
    the same credentials are being checked already -----------------> the same verdict, later
    many logins of the same address are checked (login_throttle.py) > waits for its turn
    too many logins failed before (login_throttle.py) --------------> throttled: checked later
    fewer than `auth.queue` credentials are being checked ----------> a thread hashes: verdict later
    otherwise ------------------------------------------------------> busy

The logins of one address wait in a line. If too many logins wait in all lines, the newest login of
the longest line is answered as busy, so that one address does not keep the users at other addresses
out.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import struct
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from broker.access.identity import (
    AuthConversation,
    Authenticator,
    Credentials,
    Identity,
    Verdict,
)
from broker.access.reservations import Reservations
from broker.access.users import User, Users
from protocols.peer import network_of
from trellis.auth.account import Account, AccountIdentity
from trellis.auth.login_throttle import (
    LINE_SECONDS,
    MAX_NAME,
    LoginLine,
    LoginThrottle,
    PendingLogin,
)
from trellis.auth.passwords import decoy_hash, lower_priority, verify
from trellis.auth.remembered_passwords import RememberedPasswords
from trellis.auth.scram import METHOD, ScramConversation

#: Largest number of verdicts delivered in one turn of the event loop. After each
#: verdict, a connection handles the input that waited for it.
VERDICTS_PER_TURN: Final = 5
#: The sizes of a user name, a password hash and a password.
_SIZES: Final = struct.Struct(">III")

VerdictCallback = Callable[[Verdict], None]


class Accounts(Authenticator):
    """The authenticator that checks user names and passwords.

    `anonymous` is the identity of clients without a user name; None if such clients are refused.
    Such clients may connect from anywhere if `anonymous_remote` is True, else from loopback only.
    `threads` is the number of threads that hash passwords. At most `queue` different credentials
    wait for these threads. Verified passwords are remembered for `remember` seconds
    (remembered_passwords.py). The SCRAM salts of unknown users are derived from `scram_secret`.
    """

    def __init__(
        self,
        accounts: list[Account],
        anonymous: Identity | None,
        anonymous_remote: bool,
        threads: int,
        queue: int,
        remember: float,
        scram_secret: bytes,
    ) -> None:
        #: Users that the broker stores. A user that the settings define takes precedence over a
        #: stored user of the same name.
        self.users: Users | None = None
        self._accounts = {account.identity.name: account for account in accounts}
        self._connect_accounts()
        self.anonymous_identity = anonymous
        self._anonymous_remote = anonymous_remote
        self._queue = queue
        #: A keyed hash without input, which `_digest` copies.
        self._keyed = hashlib.blake2b(key=secrets.token_bytes(32), digest_size=32)
        self.scram_secret = scram_secret
        self._remembered = RememberedPasswords(remember)
        self._checking: dict[bytes, list[PendingLogin]] = {}
        self.login_throttle = LoginThrottle()
        #: Login lines by address and user name (`_line`); at most `queue` logins wait in all.
        self._lines: dict[tuple[str, str], LoginLine] = {}
        #: Number of logins that wait now for their turn, or because earlier logins failed.
        self._throttled = 0
        #: Logins whose verdict is not delivered yet, with the verdict; None for a right password.
        self._verdicts: deque[tuple[PendingLogin, Verdict | None]] = deque()
        self._pool = ThreadPoolExecutor(threads, "trellis-login", initializer=lower_priority)
        #: Number of passwords hashed so far.
        self.passwords_hashed = 0
        self._closed = False

    @property
    def serves_other_machines(self) -> bool:
        """True if a client on another machine can log in, with a password or anonymously."""
        stored = () if self.users is None else self.users.by_name.values()
        return (
            self.anonymous_identity is not None
            and self._anonymous_remote
            or any(not account.loopback_only for account in self._accounts.values())
            or any(user.password_hash for user in stored)
        )

    def replace(
        self, accounts: list[Account], anonymous: Identity | None, anonymous_remote: bool
    ) -> None:
        """Replace the users that the settings define, and the rules for anonymous clients.

        The class explains `anonymous` and `anonymous_remote`. After the call, the caller must renew
        the identities of connected clients.
        """
        self._accounts = {account.identity.name: account for account in accounts}
        self._connect_accounts()
        self.anonymous_identity = anonymous
        self._anonymous_remote = anonymous_remote

    @property
    def settings_accounts(self) -> dict[str, Account]:
        """Return the accounts of the users that the settings define, by user name."""
        return self._accounts

    def authenticate(self, credentials: Credentials, answer: VerdictCallback) -> None:
        """Check the credentials of a client, and call `answer` with the verdict, now or later."""
        name = credentials.user
        if name is None:
            allowed = (
                self.anonymous_identity is not None
                and (credentials.local or self._anonymous_remote)
                and not credentials.foreign
            )
            answer(
                Verdict(self.anonymous_identity)
                if allowed
                else Verdict(None, "anonymous access is not allowed: give a user and a password")
            )
            return
        account = self.find_account(name, credentials.proven)
        details = "" if account is not None else f"no user is named '{name}'"
        if account is not None and account.loopback_only and not credentials.local:
            # The refusal and its duration are the same as for an unknown user name.
            details = "this user may log in from loopback only"
            account = None
        if credentials.proven:
            answer(
                Verdict(None, f"user '{name}', named by a certificate, is unknown", details=details)
                if account is None
                else Verdict(account.identity)
            )
            return
        password_hash = decoy_hash() if account is None else account.password_hash
        digest = self._digest(name, credentials.password, password_hash)
        record = self._remembered.find(digest)
        if record is not None and account is not None:
            answer(Verdict(account.identity, record=record))
            return
        login = PendingLogin(
            digest,
            None if account is None else account.identity,
            password_hash,
            credentials,
            answer,
            asyncio.get_running_loop().time() + LINE_SECONDS,
            details or "the password is wrong",
        )
        self.submit(login)

    def submit(self, login: PendingLogin) -> None:
        """Check a login when its turn comes; call `login.answer` with the verdict, now or later."""
        if login.digest in self._checking:
            self._checking[login.digest].append(login)
            return
        line = login.line = self._line(login.credentials)
        if not line.waiting and line.running < self.login_throttle.places(line, _now()):
            self._begin(login, line)
        elif self._has_room(line):
            line.waiting.append(login)
            self._throttled += 1
        else:
            login.answer(_busy())
        self._drop_empty(line)

    def start_conversation(self, method: str, credentials: Credentials) -> AuthConversation | None:
        return ScramConversation.begin(self, credentials) if method == METHOD else None

    def _line(self, credentials: Credentials) -> LoginLine:
        """Return the login line of the client's address; for loopback, of its user name."""
        user = (credentials.user or "")[:MAX_NAME] if credentials.local else ""
        key = network_of(credentials.address), user
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = LoginLine(*key)
        return line

    def _drop_empty(self, line: LoginLine) -> None:
        """Remove a login line from the table if none of its logins waits or is checked."""
        if not line.running and not line.waiting:
            self._lines.pop((line.address, line.user), None)

    def _has_room(self, line: LoginLine) -> bool:
        """True if one more login may wait in `line`.

        If too many logins wait in all lines, the newest login of the longest line is answered as
        busy, to make room. If no line is longer than `line`, there is no room.
        """
        if self._throttled < self._queue:
            return True
        longest = max(self._lines.values(), key=_waiting)
        if len(longest.waiting) <= len(line.waiting):
            return False
        self._throttled -= 1
        longest.waiting.pop().answer(_busy())
        return True

    def _begin(self, login: PendingLogin, line: LoginLine) -> None:
        """Check a login whose turn in its login line has come.

        The check begins at once, or after a wait if too many earlier logins with this user name or
        address failed. If too many logins wait or are checked, the login is answered as busy.
        """
        loop = asyncio.get_running_loop()
        credentials = login.credentials
        seconds = self.login_throttle.wait(
            credentials.user or "", credentials.address, credentials.local, loop.time()
        )
        if seconds == 0:
            line.running += self._check(login)
        elif self._has_room(line):
            line.running += 1
            self._throttled += 1
            loop.call_later(seconds, self._check_throttled, login, line)
        else:
            login.answer(_busy())

    def _check_throttled(self, login: PendingLogin, line: LoginLine) -> None:
        """Check the credentials of a throttled login, after its wait."""
        self._throttled -= 1
        if not self._closed and not self._check(login):
            self._leave(line)

    def _leave(self, line: LoginLine) -> None:
        """Record the end of one check of a login line, and check the next logins of the line."""
        line.running -= 1
        now = asyncio.get_running_loop().time()
        places = self.login_throttle.places(line, now)
        expired: list[tuple[PendingLogin, Verdict | None]] = []
        while line.waiting and line.running < places:
            login = line.waiting.popleft()
            self._throttled -= 1
            if login.expires <= now:
                expired.append((login, _busy()))
            else:
                self._begin(login, line)
        self._drop_empty(line)
        self._deliver(expired)

    def _check(self, login: PendingLogin) -> bool:
        """Begin a check of the login's password, or share a running check of equal credentials.

        Return False if too many credentials are being checked: the login is answered as busy.
        """
        digest = login.digest
        if digest in self._checking:
            self._checking[digest].append(login)
            return True
        if len(self._checking) >= self._queue:
            login.answer(_busy())
            return False
        self._checking[digest] = [login]
        self._pool.submit(self._hash, asyncio.get_running_loop(), login)
        return True

    def renew(self, identity: Identity) -> Identity | None:
        if identity.anonymous:
            return self.anonymous_identity
        present = self.identity_of(identity.name)
        if isinstance(identity, AccountIdentity) and isinstance(present, User):
            # The settings no longer define the user. A stored user without a password only held
            # further permissions of the user.
            return present if present.password_hash else None
        return present

    def identity_of(self, user: str) -> Identity | None:
        account = self._accounts.get(user)
        if account is not None:
            return account.identity
        return None if self.users is None else self.users.by_name.get(user)

    def reserved_for(self, vhost: str, client_id: str) -> list[str]:
        if self._reservations.empty and (self.users is None or self.users.reservations.empty):
            return []  # The usual case: this look-up is a part of each MQTT login.
        rank, users = self._reservations.find(vhost, client_id)
        if self.users is None:
            return users
        stored_rank, stored = self.users.reservations.find(vhost, client_id)
        if rank == stored_rank:
            return users + stored
        return users if rank > stored_rank else stored

    def _connect_accounts(self) -> None:
        """Prepare the users that the settings define for logins.

        Collect their rules about client identifiers. Connect each identity with this object, so
        that the user also gets the permissions that the broker stores.
        """
        self._reservations = Reservations()
        for name, account in self._accounts.items():
            if isinstance(account.identity, AccountIdentity):
                account.identity.accounts = self
            for vhost, rules in account.rules.items():
                self._reservations.replace(name, vhost, rules)

    def find_account(self, name: str, proven: bool) -> Account | None:
        """Return the account of a user name; None if there is none.

        `proven` is True if a certificate has proved the client's identity. If `proven` is False, a
        stored user that has no password counts as unknown.
        """
        stored = {} if self.users is None or name in self._accounts else self.users.by_name
        user = stored.get(name)
        if user is None:
            return self._accounts.get(name)
        return Account(user, user.password_hash, False) if user.password_hash or proven else None

    def hash_of(self, name: str) -> str:
        """Return the stored hash of a user's password; "" if there is no such user or password."""
        account = self.find_account(name, False)
        return "" if account is None else account.password_hash

    def _digest(self, name: str, password: bytes, password_hash: str) -> bytes:
        """Return a keyed digest that identifies credentials without revealing them."""
        user, stored = name.encode(), password_hash.encode()
        # The sizes before the texts tell where each text ends.
        sizes = _SIZES.pack(len(user), len(stored), len(password))
        digest = self._keyed.copy()
        digest.update(b"%b%b%b%b" % (sizes, user, stored, password))
        return digest.digest()

    def _hash(self, loop: asyncio.AbstractEventLoop, login: PendingLogin) -> None:
        """Compare a password with its hash, in a hashing thread; the event loop gets the result."""
        good = False
        password_hash, password = login.password_hash, login.credentials.password
        try:
            if login.proof is not None:
                good = login.proof()
                return
            good = verify(password_hash, password)
            if not password_hash.startswith("$argon2"):
                # Other hashes, such as those of RabbitMQ, are fast: the duration would reveal which
                # users have such a hash.
                verify(decoy_hash(), password)
        finally:
            try:
                loop.call_soon_threadsafe(
                    self._on_hashed, login.digest, login.identity if good else None, login
                )
            except RuntimeError:
                pass  # The loop is closed, so the result is not needed.

    def _on_hashed(self, digest: bytes, identity: Identity | None, checked: PendingLogin) -> None:
        self.passwords_hashed += checked.proof is None
        if identity is not None and checked.proof is None:
            self._remembered.add(digest)
        waiting = self._checking.pop(digest)
        now = asyncio.get_running_loop().time()
        for login in waiting:
            if identity is None:
                waited = login.credentials
                self.login_throttle.on_failure(waited.user or "", waited.address, waited.local, now)
        if identity is not None:
            self.login_throttle.on_success(identity.name)
        self._deliver(
            [(login, _refused(login.details) if identity is None else None) for login in waiting]
        )
        for login in waiting:
            if login.line is not None and not self._closed:
                self._leave(login.line)

    def _deliver(self, verdicts: list[tuple[PendingLogin, Verdict | None]]) -> None:
        """Deliver verdicts, VERDICTS_PER_TURN of them now and in each later turn."""
        idle = not self._verdicts
        self._verdicts.extend(verdicts)
        if idle:
            self._deliver_verdicts()

    def _deliver_verdicts(self) -> None:
        for _ in range(min(VERDICTS_PER_TURN, len(self._verdicts))):
            login, verdict = self._verdicts.popleft()
            if verdict is None:
                self._accept(login)
            else:
                login.answer(verdict)
        if self._verdicts:
            asyncio.get_running_loop().call_soon(self._deliver_verdicts)

    def _accept(self, login: PendingLogin) -> None:
        """Answer a login with the right password: log its user in, with the present permissions.

        If the user was changed or deleted during the login, check the login again.
        """
        given = login.credentials
        account = self.find_account(given.user or "", False)
        same = account is not None and account.password_hash == login.password_hash
        if account is not None and same and (given.local or not account.loopback_only):
            record = self._remembered.find(login.digest)
            login.answer(Verdict(account.identity, record=record))
        elif login.proof is not None:
            login.answer(_refused("the user was changed during the login"))
        elif not self._closed:
            self.authenticate(given, login.answer)

    @property
    def waiting(self) -> int:
        """Return the number of credentials that wait for a verdict.

        Such credentials are being checked, wait for a thread, or are throttled.
        """
        return len(self._checking) + self._throttled

    def close(self) -> None:
        """Stop the hashing threads; logins that wait get no verdict."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _refused(details: str) -> Verdict:
    return Verdict(None, "unknown user or wrong password", details=details)


def _busy() -> Verdict:
    return Verdict(None, "too many logins at once", busy=True)


def _waiting(line: LoginLine) -> int:
    return len(line.waiting)
