"""Logins with JSON Web Tokens (RFC 7519), verified with public keys from a file.

A client gives its token as the password (its user name is then ignored), as the user name without a
password, as authentication data of the MQTT 5 method `JWT`, or as an HTTP Bearer token. The token
names the user and an expiration, and its scopes grant permissions, written as in RabbitMQ:

    read:VHOST/NAME/ROUTING-KEY    also write: and configure:   `*` matches any text, `%2F` is `/`
                                   without the third part: every routing key
    tag:administrator              a tag for the HTTP API

A connection is closed when its token expires, unless the client sends a new one in time, with
connection.update-secret of AMQP or AUTH of MQTT 5.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from broker.access.identity import (
    READ_ALL,
    READ_NONE,
    AuthConversation,
    Authenticator,
    AuthStep,
    Credentials,
    Identity,
    Verdict,
)
from broker.errors import AccessRefused
from broker.names import fault_of
from trellis.settings import SettingsError
from trellis.settings.schema import Jwt

#: Name of the authentication method in MQTT 5.
METHOD: Final = "JWT"
#: Size of the largest token that is read, in bytes.
MAX_TOKEN: Final = 16 << 10
#: Latest time at which a token may expire, in seconds since 1970: the end of the year 9999.
MAX_EXPIRES: Final = 253_402_300_799
#: Largest number of keys that are read from the file of keys.
MAX_KEYS: Final = 64
#: Largest number of scopes that are read from a token.
MAX_SCOPES: Final = 200
#: Largest number of `#` in a binding key. A binding key with more `#` is refused before the
#: scopes are examined.
MAX_WILDCARDS: Final = 3

_TOKEN: Final = re.compile(rb"eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_VERBS: Final = ("configure", "write", "read")

Answer = Callable[[Verdict], None]


class Scope:
    """A parsed scope of a token: VERB:VHOST/NAME[/KEY]. Raises ValueError for any other text."""

    def __init__(self, text: str) -> None:
        self.verb, colon, rest = text.partition(":")
        parts = rest.split("/")
        if self.verb not in _VERBS or not colon or not 2 <= len(parts) <= 3:
            raise ValueError(text)
        self.vhost, self.name, self.key = (_glob(part) for part in [*parts, "*"][:3])


def _glob(part: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(unquote(piece)) for piece in part.split("*")), re.DOTALL)


class TokenIdentity(Identity):
    """The user of a token, with an identity in each virtual host that a scope names."""

    def __init__(self, name: str, scopes: list[Scope], tags: list[str], expires: float) -> None:
        super().__init__(name, "^$", "^$", "^$")
        self.scopes = scopes
        self.tags = tags
        self.administrator = "administrator" in tags
        self.expires = expires
        self._within: dict[str, ScopedIdentity | None] = {}

    def for_vhost(self, vhost: str, client_id: str = "") -> Identity | None:
        if vhost not in self._within:
            scopes = [scope for scope in self.scopes if scope.vhost.fullmatch(vhost)]
            self._within[vhost] = ScopedIdentity(self.name, scopes) if scopes else None
        return self._within[vhost]


class ScopedIdentity(Identity):
    """The user of a token in one virtual host, with the scopes that apply there."""

    def __init__(self, name: str, scopes: list[Scope]) -> None:
        super().__init__(name, "^$", "^$", "^$")
        self._scopes = scopes
        self.weight = 1 + len(scopes)

    def may(self, operation: str, kind: str, name: str, vhost: str) -> None:
        if not any(
            scope.verb == operation and scope.name.fullmatch(name) for scope in self._scopes
        ):
            raise AccessRefused(
                f"{operation} access to {kind} '{name}' in vhost '{vhost}' refused "
                f"for user '{self.name}': no scope of the token allows this access"
            )

    def may_route(self, exchange: str, key: str, topic: bytes) -> bool:
        return self._allows("write", exchange, key)

    def may_publish_everything(self, exchange: str) -> bool:
        return any(
            scope.verb == "write" and scope.name.fullmatch(exchange) and scope.key.pattern == ".*"
            for scope in self._scopes
        )

    def may_read_everything(self) -> bool:
        return any(
            scope.verb == "read" and scope.name.pattern == ".*" == scope.key.pattern
            for scope in self._scopes
        )

    def read_scope(self, exchange: str, key: str, topic_filter: str, hides_dollar: bool) -> int:
        """Return READ_ALL if the token's scopes allow to read by a binding key, else READ_NONE.

        Scopes are compared with the binding key as text. A `#` in the key also matches zero words.
        So the scopes must allow the key, and each shorter key without one or more of its `#`. The
        shorter keys are not checked if a scope names exactly this binding key.
        """
        words = key.split(".")
        gaps = words.count("#")
        if gaps > MAX_WILDCARDS:
            return READ_NONE
        for kept in product((True, False), repeat=gaps):
            left = iter(kept)
            spelled = ".".join([word for word in words if word != "#" or next(left)])
            if not self._allows("read", exchange, spelled) and not self._names(
                "read", exchange, key
            ):
                return READ_NONE
        return READ_ALL

    def _allows(self, verb: str, exchange: str, key: str) -> bool:
        return any(
            scope.verb == verb and scope.name.fullmatch(exchange) and scope.key.fullmatch(key)
            for scope in self._scopes
        )

    def _names(self, verb: str, exchange: str, key: str) -> bool:
        """True if a scope of this verb names the exchange and exactly this binding key."""
        return any(
            scope.verb == verb
            and scope.name.fullmatch(exchange)
            and scope.key.pattern == re.escape(key)
            for scope in self._scopes
        )


class Tokens:
    """The verifier of tokens, with the keys and claims of the settings. Raises SettingsError."""

    def __init__(self, settings: Jwt) -> None:
        try:
            from joserfc import jwt
        except ImportError:
            raise SettingsError(
                "jwt.keys: tokens need a package that is not installed: "
                "pip install 'trellis-broker[jwt]'"
            ) from None
        self._decode: Any = jwt.decode
        self._settings = settings
        self._keys: list[Any] = _keys(Path(settings.keys).expanduser())
        wanted: dict[str, Any] = {"exp": {"essential": True}}
        if settings.issuer:
            wanted["iss"] = {"essential": True, "value": settings.issuer}
        if settings.audience:
            wanted["aud"] = {"essential": True, "value": settings.audience}
        self._claims: Any = jwt.JWTClaimsRegistry(leeway=settings.leeway, **wanted)

    def identity(self, token: bytes) -> TokenIdentity:
        """Return the user of a token. Raises ValueError with the reason if the token is invalid."""
        from joserfc.errors import JoseError

        if len(token) > MAX_TOKEN:
            raise ValueError(f"the token is longer than {MAX_TOKEN} bytes")
        try:
            decoded = self._verified(token)
            claims: dict[str, Any] = decoded.claims
            self._claims.validate(claims)
        except (
            JoseError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
        ) as error:
            raise ValueError(str(error) or type(error).__name__) from None
        user, scopes, expires = (
            claims.get(self._settings.user),
            claims.get(self._settings.scopes, ""),
            claims["exp"],
        )
        if not isinstance(user, str) or not user:
            raise ValueError(f"the claim '{self._settings.user}' names no user")
        if fault_of(user):
            raise ValueError(
                f"the claim '{self._settings.user}' is not a valid user name: {fault_of(user)}"
            )
        if not isinstance(expires, int | float) or isinstance(expires, bool):
            raise ValueError("the claim 'exp' is not a number of seconds")
        if not 0 <= expires <= MAX_EXPIRES:
            raise ValueError(f"the claim 'exp' is not from 0 to {MAX_EXPIRES} (the year 9999)")
        words = (
            scopes.split()
            if isinstance(scopes, str)
            else scopes
            if isinstance(scopes, list)
            else []
        )
        return self._granted(
            user, [str(word) for word in words[:MAX_SCOPES]], float(expires) + self._settings.leeway
        )

    def _verified(self, token: bytes) -> Any:
        """Return the decoded token if its signature is valid.

        The key is the one that the token names; without a name, each key is tried. Raises
        JoseError, ValueError.
        """
        header = json.loads(_unpadded(token.split(b".", 1)[0]))
        name = header.get("kid") if isinstance(header, dict) else None
        keys = [key for key in self._keys if name is None or key.kid is None or key.kid == name]
        failure: Exception = ValueError("jwt.keys has no key with the token's key ID (kid)")
        for key in keys:
            try:
                return self._decode(token.decode(), key, algorithms=list(self._settings.algorithms))
            except Exception as error:  # noqa: BLE001  (another key may fit)
                failure = error
        raise ValueError(str(failure) or type(failure).__name__)

    def _granted(self, user: str, words: list[str], expires: float) -> TokenIdentity:
        scopes: list[Scope] = []
        tags: list[str] = []
        for word in words:
            if not word.startswith(self._settings.prefix):
                continue
            word = word.removeprefix(self._settings.prefix)
            if word.startswith("tag:"):
                tags.append(word[4:])
                continue
            try:
                scopes.append(Scope(word))
            except ValueError:
                continue  # The scope is for another application.
        return TokenIdentity(user, scopes, tags, expires)


def _unpadded(part: bytes) -> bytes:
    from base64 import urlsafe_b64decode

    return urlsafe_b64decode(part + b"=" * (-len(part) % 4))


def _keys(path: Path) -> list[Any]:
    """Return the public keys of a PEM file, or of a JWKS (RFC 7517). Raises SettingsError."""
    from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey

    try:
        text = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"jwt.keys: {path}: {error.strerror}") from None
    try:
        if text.lstrip().startswith(b"{"):
            document = json.loads(text)
            keys = list(
                KeySet.import_key_set(document if "keys" in document else {"keys": [document]}).keys
            )
        else:
            blocks = re.findall(rb"-----BEGIN [^-]+-----.+?-----END [^-]+-----", text, re.DOTALL)
            keys = [_pem(block, (RSAKey, ECKey, OKPKey)) for block in blocks]
    except Exception as error:  # noqa: BLE001  (the package raises many kinds)
        raise SettingsError(
            f"jwt.keys: {path}: holds no keys, in PEM or as a JWKS "
            f"({error or type(error).__name__})"
        ) from None
    if not 0 < len(keys) <= MAX_KEYS:
        raise SettingsError(f"jwt.keys: {path}: holds {len(keys)} keys, must be 1 to {MAX_KEYS}")
    return keys


def _pem(block: bytes, kinds: tuple[Any, ...]) -> Any:
    for kind in kinds:
        try:
            return kind.import_key(block + b"\n")
        except Exception:  # noqa: BLE001  (a key of another kind)
            continue
    raise ValueError("a key in PEM form is not a valid RSA, EC or OKP key")


class TokenAuthenticator(Authenticator):
    """An authenticator for clients that give a token.

    The authenticator `others` logs all other clients in.
    """

    def __init__(self, settings: Jwt, others: Authenticator) -> None:
        self._tokens = Tokens(settings)
        self._others = others
        #: Number of accepted tokens.
        self.accepted = 0
        #: Number of tokens refused.
        self.refused = 0

    def use(self, tokens: Tokens) -> None:
        """Verify tokens with new keys and required claims from now on, after a reload."""
        self._tokens = tokens

    def authenticate(self, credentials: Credentials, answer: Answer) -> None:
        token = token_of(credentials)
        if token:
            answer(self.judge(token, credentials))
        else:
            self._others.authenticate(credentials, answer)

    def judge(self, token: bytes, credentials: Credentials) -> Verdict:
        """Verify a token, count it as accepted or refused, and return the verdict."""
        try:
            identity = self._tokens.identity(token)
        except ValueError as error:
            self.refused += 1
            return Verdict(None, f"invalid token: {str(error)[:200]}")
        self.accepted += 1
        return Verdict(identity)

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
        self._others.close()


class TokenConversation(AuthConversation):
    """The exchange of an MQTT 5 authentication with the method JWT: one step, with the token."""

    def __init__(self, authenticator: TokenAuthenticator, credentials: Credentials) -> None:
        self._authenticator = authenticator
        self._credentials = credentials

    def respond(self, data: bytes, answer: Callable[[AuthStep], None]) -> None:
        answer(AuthStep(self._authenticator.judge(data, self._credentials), b""))


def token_of(credentials: Credentials) -> bytes:
    """Return the token that the credentials contain; b"" if there is none."""
    if credentials.proven:
        return b""
    if _TOKEN.fullmatch(credentials.password):
        return credentials.password
    user = (credentials.user or "").encode("utf-8", "surrogateescape")
    return user if not credentials.password and _TOKEN.fullmatch(user) else b""
