"""Checks of a token: its header, its signature, and the claims that every token needs.

The checks, in their order:

    size, form, `crit`, `cty` ---> the broker understands the form of the token
    `alg` -----------------------> is one of `jwt.algorithms`; never `none`
    `kid` -----------------------> selects the key, whose type must fit `alg`
    signature -------------------> checked by joserfc
    `exp`, `nbf`, `iss`, `aud` --> times have the tolerance `jwt.leeway`
"""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from trellis.auth.tokens.claims import ClaimMapping
from trellis.auth.tokens.identity import TokenIdentity
from trellis.auth.tokens.keys import Key
from trellis.auth.tokens.refusal import TokenRefused, UnknownKey
from trellis.settings import SettingsError
from trellis.settings.tokens import Jwt

#: Size of the largest token that is read, in bytes.
MAX_TOKEN: Final = 16 << 10
#: Latest time at which a token may expire, in seconds since 1970: the end of the year 9999.
MAX_EXPIRES: Final = 253_402_300_799
#: Largest number of keys that are tried for one token, such as a token without a key ID (`kid`).
MAX_TRIED: Final = 8
#: The key type (`kty`) that each family of algorithms needs.
_KEY_TYPES: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP", "HS": "oct"}
#: Number of characters of a token's value that a reason shows.
_SHOWN: Final = 80


class DecodedToken:
    """The header and the claims of a token, before or after its signature is checked."""

    def __init__(self, header: dict[str, Any], claims: dict[str, Any]) -> None:
        self.header = header
        self.claims = claims


class TokenVerifier:
    """The verifier of tokens, by the settings of the section [jwt].

    Raises SettingsError if the package joserfc is not installed.
    """

    def __init__(self, settings: Jwt) -> None:
        try:
            from joserfc import jwt
            from joserfc.jws import JWSRegistry
        except ImportError:
            raise SettingsError(
                "jwt: tokens need the package joserfc, which is not installed: "
                "pip install 'trellis-broker[jwt]'"
            ) from None
        self._decode: Any = jwt.decode
        # RFC 7515, section 4: unknown header fields are ignored, unless `crit` names them.
        registry = JWSRegistry(algorithms=list(settings.algorithms), strict_check_header=False)
        # joserfc's limits would refuse headers with certificates (x5c), and signatures of RSA keys
        # with more than 6,144 bits. MAX_TOKEN limits all parts together.
        registry.max_header_length = registry.max_signature_length = MAX_TOKEN
        self._registry: Any = registry
        self._settings = settings
        self.mapping = ClaimMapping(settings)

    def identity(self, token: bytes, keys: Sequence[Key]) -> TokenIdentity:
        """Return the user of a token that one of the keys verifies. Raises TokenRefused."""
        header = self.header(token)
        claims = self._verified(token, header, keys)
        expires = self._check(claims)
        user = self.mapping.user(claims)
        return TokenIdentity(user, self.mapping.grants(user, claims), expires)

    def header(self, token: bytes) -> dict[str, Any]:
        """Return the header of a token whose form and algorithm are accepted.

        Raises TokenRefused.
        """
        if len(token) > MAX_TOKEN:
            raise TokenRefused("token", f"the token is longer than {MAX_TOKEN} bytes")
        parts = token.split(b".")
        if len(parts) == 5:
            raise TokenRefused(
                "token", "the token is encrypted (JWE); the broker accepts signed tokens only"
            )
        if len(parts) != 3:
            raise TokenRefused("token", "the token does not have three parts separated by dots")
        header = decode_part(parts[0], "header")
        if "crit" in header:
            raise TokenRefused(
                "crit",
                f"the header has critical fields that are not supported: {_text(header['crit'])}",
            )
        if str(header.get("cty", "")).upper() == "JWT":
            raise TokenRefused("cty", "the token contains another token (cty: JWT)")
        algorithm = header.get("alg")
        if algorithm not in self._settings.algorithms:
            raise TokenRefused(
                "alg",
                f"the algorithm {_text(algorithm)} is not in jwt.algorithms "
                f"({', '.join(self._settings.algorithms)})",
            )
        return header

    def _verified(
        self, token: bytes, header: dict[str, Any], keys: Sequence[Key]
    ) -> dict[str, Any]:
        """Return the claims of a token if its signature is valid. Raises TokenRefused."""
        tried = 0
        for key in self._candidates(header, keys):
            tried += 1
            try:
                claims = self._decode(token.decode(), key, registry=self._registry).claims
            except Exception:  # noqa: BLE001  (joserfc raises many kinds; another key may fit)
                if tried >= MAX_TRIED:
                    break
                continue
            if not isinstance(claims, dict):
                break
            return claims
        raise TokenRefused("signature", f"the signature is not valid (keys tried: {tried})")

    def _candidates(self, header: dict[str, Any], keys: Sequence[Key]) -> list[Key]:
        """Return the keys that may have signed a token with this header. Raises TokenRefused."""
        kid, algorithm = header.get("kid"), header["alg"]
        if kid is not None and not isinstance(kid, str):
            raise TokenRefused("kid", "the key ID (kid) must be a text")
        named = [key for key in keys if kid is None or key.kid is None or key.kid == kid]
        if not named:
            raise UnknownKey(f"no key has the token's key ID (kid) {_text(kid)}")
        kind = _KEY_TYPES[algorithm[:2]]
        fitting = [key for key in named if key.key_type == kind and _permits(key, algorithm)]
        if not fitting:
            named_kid = "" if kid is None else f" and its key ID (kid) {_text(kid)}"
            raise TokenRefused("alg", f"no key fits the token's algorithm {algorithm}{named_kid}")
        return fitting

    def _check(self, claims: dict[str, Any]) -> float:
        """Check times, issuer and audience; return when the token expires, in seconds since 1970.

        The result includes the tolerance `jwt.leeway`. Raises TokenRefused.
        """
        settings, now = self._settings, time.time()
        expires, begins = _time(claims, "exp"), _time(claims, "nbf")
        if expires is None:
            raise TokenRefused("exp", "the token has no expiration (claim exp)")
        if expires + settings.leeway <= now:
            raise TokenRefused("exp", f"the token expired at {_date(expires)} (claim exp)")
        if begins is not None and begins - settings.leeway > now:
            raise TokenRefused("nbf", f"the token is not valid before {_date(begins)} (claim nbf)")
        issuer, audience = claims.get("iss"), claims.get("aud")
        if settings.issuer and issuer != settings.issuer:
            raise TokenRefused(
                "iss", f"the issuer (claim iss) is {_text(issuer)}, must be '{settings.issuer}'"
            )
        audiences = audience if isinstance(audience, list) else [audience]
        if settings.audience and settings.audience not in audiences:
            raise TokenRefused(
                "aud",
                f"the audience (claim aud) is {_text(audience)}, must be '{settings.audience}'",
            )
        return expires + settings.leeway


def decode_part(part: bytes, name: str) -> dict[str, Any]:
    """Return the JSON object in a part of a token. Raises TokenRefused.

    `name` is the name of the part, "header" or "claims", for the reason of a refusal.
    """
    try:
        decoded = json.loads(base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)))
    except (ValueError, RecursionError, binascii.Error):
        decoded = None
    if not isinstance(decoded, dict):
        raise TokenRefused("token", f"the {name} of the token must be a JSON object in base64url")
    return decoded


def unverified_claims(token: bytes) -> dict[str, Any]:
    """Return the claims of a token without a check of its signature; {} if they are unreadable.

    Callers may show these claims in the text of a refusal, but must not grant permissions by them.
    """
    parts = token.split(b".") if len(token) <= MAX_TOKEN else []
    try:
        return decode_part(parts[1], "claims") if len(parts) == 3 else {}
    except TokenRefused:
        return {}


def _permits(key: Key, algorithm: str) -> bool:
    """True if a key's fields `alg` and `use` permit signatures with an algorithm."""
    row = key.dict_value
    return row.get("alg") in (None, algorithm) and row.get("use") in (None, "sig")


def _time(claims: dict[str, Any], name: str) -> float | None:
    """Return the time in a claim, in seconds since 1970; None if the claim is missing.

    Raises TokenRefused.
    """
    value = claims.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TokenRefused(name, f"the claim '{name}' must be a number of seconds")
    if not 0 <= value <= MAX_EXPIRES:
        raise TokenRefused(
            name, f"the claim '{name}' must be 0 to {MAX_EXPIRES} seconds (the year 9999)"
        )
    return float(value)


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")


def _text(value: Any) -> str:
    """Return the text of a value in a token, for the reason of a refusal.

    The text is printable ASCII, and is cut after _SHOWN characters.
    """
    if value is None:
        return "missing"
    text = ascii(value) if isinstance(value, str) else ascii(str(value)[: 2 * _SHOWN])
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
