"""The authentication method SCRAM-SHA-256 of MQTT 5 (RFC 5802, RFC 7677).

Client and broker prove to each other that they know the password, and the password is not sent:

    CONNECT: user, nonce ----> AUTH: nonce, salt, iterations
    AUTH: proof -------------> CONNACK: proof of the broker, or the refusal

The broker stores no password but two keys derived from it, as a hash in the form of PostgreSQL
(`trellis hash-password --scram`). A user with another kind of hash cannot log in by this method.
For such a user, and for an unknown user, the exchange continues with an invented salt and
SCRAM_ITERATIONS iterations, so that the exchange does not show which users exist. The salt is
derived from the user name and a secret in the data directory (private_files.py), so it stays the
same after a restart. Three differences can still show which users exist: a hash with another number
of iterations or another size of the salt, a salt that changes because the user got another hash,
and an invented salt that changes with the secret, which each node of a cluster has for itself.

The package scramp, an extra (`scram`), reads and writes the messages. A wrong proof counts as a
wrong password, so it may delay the next logins (login_throttle.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Any, Final, Protocol

from broker.access.identity import AuthConversation, AuthStep, Credentials, Verdict
from trellis.auth.account import Account
from trellis.auth.login_throttle import LINE_SECONDS, PendingLogin
from trellis.auth.passwords import SCRAM_ITERATIONS, SCRAM_SALT
from trellis.settings.scram_hash import SCRAM_PREFIX, parse_scram

METHOD: Final = "SCRAM-SHA-256"
#: Largest message of a client in bytes.
MAX_MESSAGE: Final = 2_048


class ScramAccounts(Protocol):
    """The part of the class Accounts that a conversation uses.

    The salts of unknown users are derived from `scram_secret`, so an unknown user gets the same
    salt in each attempt, as an existing user does.
    """

    scram_secret: bytes

    def find_account(self, name: str, proven: bool) -> Account | None:
        """Return the account of a user name; None if there is none.

        If `proven` is False, a user without a password counts as unknown.
        """

    def submit(self, login: PendingLogin) -> None:
        """Queue a login, and check it when its turn has come."""


class ScramConversation(AuthConversation):
    """The SCRAM exchange of a client that logs in or re-authenticates."""

    def __init__(self, accounts: ScramAccounts, credentials: Credentials, mechanism: Any) -> None:
        self._accounts = accounts
        self._credentials = credentials
        self._server = mechanism.make_server(self._keys_of)
        self._began = False
        self._user = ""
        self._account: Account | None = None
        self._details = "the password is wrong (SCRAM proof)"

    @classmethod
    def begin(cls, accounts: ScramAccounts, credentials: Credentials) -> ScramConversation | None:
        """Return a new conversation; None if the package scramp is not installed."""
        try:
            from scramp import ScramMechanism
        except ImportError:
            return None
        return cls(accounts, credentials, ScramMechanism(METHOD))

    def respond(self, data: bytes, answer: Callable[[AuthStep], None]) -> None:
        from scramp import ScramException

        try:
            if len(data) > MAX_MESSAGE:
                raise ValueError(f"{len(data)} bytes; the limit is {MAX_MESSAGE} bytes")
            message = data.decode()
            if self._began:
                self._check(message, answer)
                return
            self._began = True
            self._server.set_client_first(message)
            reply = self._server.get_server_first().encode()
        except (ScramException, ValueError) as error:
            reason = f"invalid SCRAM message: {str(error)[:200]}"
            answer(AuthStep(Verdict(None, reason), b""))
            return
        answer(AuthStep(None, reply))

    def _check(self, message: str, answer: Callable[[AuthStep], None]) -> None:
        """Check the client's last message, a proof, when the login's turn has come.

        Then call `answer` with the next step of the exchange.
        """
        given = self._credentials
        credentials = Credentials(
            self._user, b"", given.vhost, given.address, given.local, given.client_id
        )
        given.user = self._user  # The log names the user of a refused login.
        # The user may have been changed or deleted since the first message.
        known, account = self._account, self._accounts.find_account(self._user, False)
        if known is not None and (account is None or account.password_hash != known.password_hash):
            self._account, self._details = None, "the user was changed during the login"

        def on_verdict(verdict: Verdict) -> None:
            final = b"" if verdict.identity is None else self._server.get_server_final().encode()
            answer(AuthStep(verdict, final))

        self._accounts.submit(
            PendingLogin(
                secrets.token_bytes(32),
                None if self._account is None or account is None else account.identity,
                "" if account is None else account.password_hash,
                credentials,
                on_verdict,
                asyncio.get_running_loop().time() + LINE_SECONDS,
                self._details,
                lambda: self._proves(message),
            )
        )

    def _proves(self, message: str) -> bool:
        """True if the client's last message proves that it knows the password of its account."""
        from scramp import ScramException

        try:
            self._server.set_client_final(message)
        except ScramException:
            return False
        return self._account is not None

    def _keys_of(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        """Return salt, stored key, server key and iterations of a user; called by scramp.

        For a user that cannot log in by SCRAM, return invented values, which no proof fits.
        """
        self._user = user
        account = self._accounts.find_account(user, False)
        given = self._credentials
        if given.user not in (None, user):
            self._details = (
                f"the CONNECT packet names the user '{given.user}', but the SCRAM message names "
                f"'{user}'"
            )
        elif account is None:
            self._details = f"no user is named '{user}'"
        elif account.loopback_only and not given.local:
            self._details = "this user may log in from loopback only"
        elif not account.password_hash.startswith(SCRAM_PREFIX):
            self._details = (
                "the user's password hash is not for SCRAM; make a new hash with "
                "`trellis hash-password --scram`"
            )
        else:
            self._account = account
            iterations, salt, stored_key, server_key = parse_scram(account.password_hash)
            return salt, stored_key, server_key, iterations
        secret = self._accounts.scram_secret
        salt = hmac.digest(secret, user.encode(), "sha256")[:SCRAM_SALT]
        key = hashlib.sha256(salt + secret).digest()
        return salt, key, key, SCRAM_ITERATIONS
