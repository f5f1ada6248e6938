"""The settings of logins with JSON Web Tokens: section jwt."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from trellis.settings.declaration import Section, option
from trellis.settings.values import check_rule

JwtAlgorithm = Literal[
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
    "HS256",
    "HS384",
    "HS512",
]

#: Matches a placeholder such as `${sub}`, which the value of a claim replaces; the group is the
#: path of the claim.
PLACEHOLDER = re.compile(r"\$\{([^{}]{1,100})\}")
_SCOPE = re.compile(r"(?:configure|write|read):[^/\s]+/[^/\s]*(?:/[^/\s]*)?|tag:\S+")


def url_fault(url: str) -> str:
    """Return why the URL of a provider is not accepted, such as "must be ..."; "" if it is
    accepted.

    Keys decide which clients can log in, so a URL that begins with http:// must name a loopback
    address of this machine.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "must be a URL such as https://id.example/keys"
    if not host or not url.isascii() or not url.isprintable() or " " in url or port == 0:
        return "must be a URL such as https://id.example/keys"
    if parts.scheme == "https" or parts.scheme == "http" and _is_loopback(host):
        return ""
    return "must begin with https:// (http:// only for this machine)"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_url(url: str) -> None:
    """Raise ValueError if a text is neither empty nor the URL of a provider."""
    fault = url_fault(url) if url else ""
    if fault:
        raise ValueError(fault)


def check_scope(text: str) -> None:
    """Raise ValueError unless a text is a scope or a tag."""
    if not _SCOPE.fullmatch(text):
        raise ValueError(
            "must be a scope such as read:%2F/orders or write:*/amq.topic/sensors.*, or tag:NAME"
        )


def check_token_rule(text: str) -> None:
    """Raise ValueError unless a text is a topic rule, which may have placeholders of claims."""
    check_rule(text, PLACEHOLDER.sub("claim", text))


def check_alias(text: str) -> None:
    """Raise ValueError unless a text has the form NAME=SCOPES."""
    name, equals, scopes = text.partition("=")
    if not name.strip() or not equals or not scopes.split():
        raise ValueError("must be NAME=SCOPES, with spaces between the scopes")
    for scope in scopes.split():
        try:
            check_scope(scope)
        except ValueError as error:
            raise ValueError(f"has the scope '{scope}', which {error}") from None


class Jwt(Section, frozen=True, kw_only=True):
    """Logins with JSON Web Tokens (install the extra `jwt`). SIGHUP reads these settings again."""

    keys: Annotated[
        str,
        option(
            "PEM or JWKS file of the public keys that verify tokens; without keys, jwks_url and "
            "discovery, no tokens are accepted"
        ),
    ] = ""
    jwks_url: Annotated[
        str, option("URL of the public keys (JWKS), instead of a file", check=check_url)
    ] = ""
    discovery: Annotated[
        bool,
        option(
            "fetch the URL of the keys from the provider that jwt.issuer names (OpenID Connect "
            "Discovery)"
        ),
    ] = False
    ca: Annotated[
        str,
        option(
            'PEM file of the authorities that sign the provider\'s certificate; "" is the '
            "system's authorities"
        ),
    ] = ""
    refresh: Annotated[
        int,
        option(
            "seconds after which the keys are fetched from the provider again",
            ge=10,
            le=86_400,
            unit="s",
        ),
    ] = 300
    refetch: Annotated[
        int,
        option(
            "shortest time in seconds between two fetches of the keys for tokens with an unknown "
            "key ID",
            ge=1,
            le=3600,
            unit="s",
        ),
    ] = 10
    keep: Annotated[
        int,
        option(
            "seconds for which fetched keys are used while the provider does not answer",
            ge=10,
            le=2_592_000,
            unit="s",
        ),
    ] = 86_400
    algorithms: Annotated[
        tuple[JwtAlgorithm, ...], option("signature algorithms that tokens may use")
    ] = ("RS256", "PS256", "ES256", "EdDSA", "Ed25519")
    issuer: Annotated[str, option('required issuer (claim iss); "" accepts any')] = ""
    audience: Annotated[str, option('required audience (claim aud); "" accepts any')] = "trellis"
    user: Annotated[str, option("claim that holds the user name")] = "sub"
    scopes: Annotated[
        str,
        option(
            "names of the claims that hold the permissions, separated by spaces; a dot leads into "
            "an object, as in realm_access.roles. The value of a claim is a list of scopes, or a "
            "text of scopes separated by spaces"
        ),
    ] = "scope"
    prefix: Annotated[
        str,
        option('prefix of scopes for this broker, such as "trellis."; other scopes are ignored'),
    ] = ""
    leeway: Annotated[
        int, option("tolerated difference between clocks in seconds", ge=0, le=600, unit="s")
    ] = 10
    aliases: Annotated[
        tuple[str, ...],
        option(
            "NAME=SCOPES for each alias: the word NAME in a claim of scopes stands for the SCOPES, "
            "which are separated by spaces",
            check=check_alias,
        ),
    ] = ()
    grants: Annotated[
        tuple[str, ...],
        option(
            "scopes of every token; ${CLAIM} is replaced by the value of a claim", check=check_scope
        ),
    ] = ()
    tags: Annotated[str, option('claim that holds tags for the HTTP API; "" is none')] = ""
    vhost: Annotated[
        str,
        option(
            "claim that holds the virtual hosts in which the token's role and topic rules apply; "
            'an MQTT client that names no virtual host enters the first of them; "" is the '
            'virtual host "/"'
        ),
    ] = ""
    role: Annotated[
        str, option('claim that holds the name of a role (`trellis roles`); "" is none')
    ] = ""
    rules: Annotated[
        str,
        option('claim that holds topic rules: texts, or the form of EMQX; "" is none'),
    ] = ""
    topic_rules: Annotated[
        tuple[str, ...],
        option(
            "topic rules of every token, which apply before the rules in the token's claim",
            check=check_token_rule,
        ),
    ] = ()

    @property
    def enabled(self) -> bool:
        """True if the broker accepts tokens."""
        return bool(self.keys or self.fetches)

    @property
    def fetches(self) -> bool:
        """True if the keys come from a provider."""
        return bool(self.jwks_url or self.discovery)
