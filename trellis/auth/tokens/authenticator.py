"""Logins with JSON Web Tokens (RFC 7519), verified with public keys.

A client gives its token as the password (its user name is then ignored), as the user name without a
password, as authentication data of the MQTT 5 method `JWT`, or as an HTTP Bearer token. The token
names the user and an expiration, and its claims grant permissions (claims.py).

A connection is closed when its token expires, unless the client sends a new token in time, with
connection.update-secret of AMQP or AUTH of MQTT 5.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final

from broker.access.identity import (
    AuthConversation,
    Authenticator,
    AuthStep,
    Credentials,
    Identity,
    Verdict,
)
from broker.access.roles import Role
from trellis.auth.tokens.identity import TokenIdentity, no_role
from trellis.auth.tokens.provider import KeySource, ProviderKeys, key_source
from trellis.auth.tokens.refusal import KeysUnavailable, TokenRefused, UnknownKey
from trellis.auth.tokens.verifier import TokenVerifier, unverified_claims
from trellis.settings.tokens import Jwt

#: Name of the authentication method in MQTT 5.
METHOD: Final = "JWT"
#: Largest number of characters of a refusal's reason, and of the user name in its details.
REASON_MAX: Final = 240
USER_MAX: Final = 60

_TOKEN: Final = re.compile(rb"eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")

Answer = Callable[[Verdict], None]


class Tokens:
    """The verifier of tokens and its source of keys, made from the settings.

    An instance can be created in any thread. The keys of a provider are not fetched until
    `source.start` is called. The constructor raises SettingsError, for example for a bad key file.
    """

    def __init__(self, settings: Jwt) -> None:
        self.settings = settings
        self._verifier = TokenVerifier(settings)
        self.source: KeySource = key_source(settings)

    def identity(self, token: bytes) -> TokenIdentity:
        """Return the user of a token.

        Raises TokenRefused, and KeysUnavailable if there are no keys.
        """
        keys = self.source.keys()
        self._verifier.header(token)
        if not keys:
            problem = self.source.problem if isinstance(self.source, ProviderKeys) else ""
            problem = problem or "the first fetch of the keys has not finished"
            raise KeysUnavailable(f"there are no keys to verify the token: {problem}")
        return self._verifier.identity(token, keys)

    def user_of(self, token: bytes) -> str:
        """Return the user that a refused token names, for the log; "" if the token names none."""
        user = unverified_claims(token).get(self.settings.user)
        return user[:USER_MAX] if isinstance(user, str) else ""


class TokenAuthenticator(Authenticator):
    """An authenticator for clients that give a token.

    Clients without a token are passed to the authenticator `others`. The constructor raises
    SettingsError, for example for a bad key file.
    """

    def __init__(self, settings: Jwt, others: Authenticator) -> None:
        self.tokens = Tokens(settings)
        self._others = others
        #: A function that returns the broker's role with a given name, or None.
        self.find_role: Callable[[str], Role | None] = no_role
        #: Number of accepted tokens.
        self.accepted = 0
        #: Number of refused tokens, by the claim or header field that decided.
        self.refused: dict[str, int] = {}

    def start(self) -> None:
        """Begin to fetch the keys of a provider; called on the broker's event loop."""
        self.tokens.source.start()

    def use(self, tokens: Tokens) -> None:
        """Verify tokens by the settings of `tokens` from now on, after a reload.

        If the settings still name the same provider, its keys that were fetched before the reload
        are used until the next fetch.
        """
        former, self.tokens = self.tokens, tokens
        old, new = former.source, tokens.source
        if isinstance(old, ProviderKeys) and isinstance(new, ProviderKeys):
            if _provider(former.settings) == _provider(tokens.settings):
                new.resume(old)
        new.start()
        old.close()

    def authenticate(self, credentials: Credentials, answer: Answer) -> None:
        if not self.judge_token(credentials, answer):
            self._others.authenticate(credentials, answer)

    def judge_token(self, credentials: Credentials, answer: Answer) -> bool:
        """Judge the token that the credentials contain (`judge`); return False if there is none."""
        token = token_of(credentials)
        if token:
            self.judge(token, credentials, answer)
        return bool(token)

    def judge(self, token: bytes, credentials: Credentials, answer: Answer) -> None:
        """Verify a token and pass the verdict to `answer`, now or when the keys are fetched.

        An MQTT client whose CONNECT names no virtual host enters the first virtual host of its
        token.
        """
        try:
            verdict = self._accept(token, credentials)
        except (UnknownKey, KeysUnavailable) as refusal:
            if self.tokens.source.request(lambda: self._judge_finally(token, credentials, answer)):
                return
            verdict = self._refuse(token, refusal)
        except TokenRefused as refusal:
            verdict = self._refuse(token, refusal)
        answer(verdict)

    def _judge_finally(self, token: bytes, credentials: Credentials, answer: Answer) -> None:
        """Verify a token again after the fetch of keys for which its login waited."""
        try:
            verdict = self._accept(token, credentials)
        except TokenRefused as refusal:
            verdict = self._refuse(token, refusal)
        answer(verdict)

    def _accept(self, token: bytes, credentials: Credentials) -> Verdict:
        identity = self.tokens.identity(token)
        identity.find_role = self.find_role
        self.accepted += 1
        if credentials.vhost == "/":
            credentials.vhost = identity.grants.vhosts[0]
        return Verdict(identity)

    def _refuse(self, token: bytes, refusal: TokenRefused) -> Verdict:
        """Count a refused token, and return its verdict, whose details name the claimed user.

        If no fetched key has the token's key ID, but the provider may have such a key, the verdict
        is busy.
        """
        doubt = self.tokens.source.doubt
        if doubt and isinstance(refusal, UnknownKey):
            refusal = KeysUnavailable(f"{refusal}, and {doubt}")
        self.refused[refusal.part] = self.refused.get(refusal.part, 0) + 1
        reason = f"invalid token: {str(refusal)[:REASON_MAX]}"
        user = self.tokens.user_of(token)
        details = f"{reason} (the token names the user {user!a})" if user else reason
        return Verdict(None, reason, isinstance(refusal, KeysUnavailable), details)

    def start_conversation(self, method: str, credentials: Credentials) -> AuthConversation | None:
        return (
            TokenConversation(self, credentials)
            if method == METHOD
            else self._others.start_conversation(method, credentials)
        )

    def renew(self, identity: Identity) -> Identity | None:
        if isinstance(identity, TokenIdentity):
            return identity if identity.expires > time.time() else None
        return self._others.renew(identity)

    def identity_of(self, user: str) -> Identity | None:
        return self._others.identity_of(user)

    def reserved_for(self, vhost: str, client_id: str) -> list[str]:
        return self._others.reserved_for(vhost, client_id)

    def close(self) -> None:
        self.tokens.source.close()
        self._others.close()


class TokenConversation(AuthConversation):
    """The exchange of an MQTT 5 authentication with the method JWT: one step, with the token."""

    def __init__(self, authenticator: TokenAuthenticator, credentials: Credentials) -> None:
        self._authenticator = authenticator
        self._credentials = credentials

    def respond(self, data: bytes, answer: Callable[[AuthStep], None]) -> None:
        self._authenticator.judge(
            data, self._credentials, lambda verdict: answer(AuthStep(verdict, b""))
        )


def token_of(credentials: Credentials) -> bytes:
    """Return the token that the credentials contain; b"" if there is none."""
    if credentials.proven:
        return b""
    if _TOKEN.fullmatch(credentials.password):
        return credentials.password
    user = (credentials.user or "").encode("utf-8", "surrogateescape")
    return user if not credentials.password and _TOKEN.fullmatch(user) else b""


def _provider(settings: Jwt) -> tuple[object, ...]:
    """Return the settings that decide from which provider the keys are fetched."""
    return settings.jwks_url, settings.discovery, settings.issuer
