"""Tests of forged, oversized and confusing tokens against the verifier."""

from __future__ import annotations

import base64
import hmac
import json
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc import jwe
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from tests.top.providers import rsa_key, signed
from trellis.auth.tokens.keys import parse_provider_keys
from trellis.auth.tokens.refusal import TokenRefused, UnknownKey
from trellis.auth.tokens.verifier import MAX_TOKEN, MAX_TRIED, TokenVerifier
from trellis.settings.tokens import Jwt

KEY, OTHER = rsa_key("one"), rsa_key("one")
VERIFIER = TokenVerifier(Jwt(keys="unused", algorithms=("RS256", "ES256", "HS256")))


def refused(token: str | bytes, *keys: Any, verifier: TokenVerifier = VERIFIER) -> TokenRefused:
    """Check that the verifier refuses a token, and return the error.

    Without `keys`, the verifier knows KEY only.
    """
    data = token if isinstance(token, bytes) else token.encode()
    with pytest.raises(TokenRefused) as caught:
        verifier.identity(data, keys or [KEY])
    return caught.value


def encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def with_header(**header: object) -> str:
    """Return a token of KEY whose header is replaced by another header."""
    return f"{encoded(header)}.{signed(KEY).split('.', 1)[1]}"


@pytest.mark.parametrize(
    ("token", "part"),
    [
        (with_header(alg="none"), "alg"),
        (with_header(alg="nOnE"), "alg"),
        (with_header(alg=["RS256"]), "alg"),
        (with_header(alg={"a": 1}), "alg"),
        (with_header(kid="one"), "alg"),
        (with_header(alg="RS512"), "alg"),
        (with_header(alg="ES256", kid="one"), "alg"),
        (with_header(alg="HS256", kid="one"), "alg"),
        (with_header(alg="RS256", kid=7), "kid"),
        (with_header(alg="RS256", kid=["one"]), "kid"),
        (with_header(alg="RS256", kid="../../etc/passwd"), "kid"),
        (with_header(alg="RS256", kid="one", crit=["exp"]), "crit"),
        (with_header(alg="RS256", kid="one", crit=["b64"], b64=False), "crit"),
        (with_header(alg="RS256", kid="one", cty="JWT"), "cty"),
        (with_header(alg="RS256", kid="one", x="changed"), "signature"),
        (signed(OTHER), "signature"),
        (signed(KEY, cty="x") + "A", "signature"),
        ("a.b", "token"),
        ("....", "token"),
        ("a.b.c.d.e", "token"),
        ("", "token"),
        (f"{encoded([])}.e30.AA", "token"),
        (f"{encoded('text')}.e30.AA", "token"),
        ("eyJ" + "[" * 8_000 + ".e30.AA", "token"),
        (base64.urlsafe_b64encode(b"[" * 9_000).decode() + ".e30.AA", "token"),
        ("x" * (MAX_TOKEN + 1), "token"),
    ],
)
def test_a_forged_token_is_refused_with_the_part_that_decided(token: str, part: str) -> None:
    assert refused(token).part == part


def test_the_key_in_the_token_itself_is_not_used() -> None:
    attacker = rsa_key("one")
    public = attacker.as_dict(private=False)
    for header in ({"jwk": public}, {"jku": "https://evil.example/keys"}, {"x5u": "https://e/"}):
        assert refused(signed(attacker, header=header)).part == "signature"


def test_a_public_key_is_not_a_shared_secret() -> None:
    text = f"{encoded({'alg': 'HS256', 'kid': 'one'})}.{signed(KEY).split('.')[1]}"
    digest = hmac.digest(KEY.as_pem(private=False), text.encode(), "sha256")
    assert refused(f"{text}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}").part == "alg"
    secret = OctKey.generate_key(256, {"kid": "one"})
    # A secret in the file of keys works, if the settings permit the algorithm.
    assert VERIFIER.identity(signed(secret, "HS256").encode(), [secret]).name == "ann"
    assert refused(signed(secret, "HS256"), secret, verifier=TokenVerifier(Jwt())).part == "alg"


def test_an_encrypted_token_is_refused() -> None:
    token = jwe.encrypt_compact({"alg": "RSA-OAEP", "enc": "A128GCM"}, signed(KEY).encode(), KEY)
    assert "encrypted" in str(refused(token))


def test_a_key_is_used_for_its_purpose_only() -> None:
    for more in ({"use": "enc"}, {"alg": "PS256"}):
        key = RSAKey.import_key({**KEY.as_dict(private=True), **more})
        assert refused(signed(KEY), key).part == "alg"


def test_many_keys_without_a_name_are_not_all_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = [ECKey.generate_key("P-256") for _ in range(3)]
    keys = [RSAKey.generate_key(2048) for _ in range(MAX_TRIED + 2)]
    token = signed(keys[-1], header={"kid": "unnamed"}).encode()
    assert refused(token, *curve, *keys).part == "signature"
    assert VERIFIER.identity(token, [*curve, *keys[3:]]).name == "ann"


def test_fields_of_a_header_that_are_not_known_are_ignored() -> None:
    header = {"nonce": "x", "x5c": ["A" * 4_000], "typ": "at+jwt"}
    assert VERIFIER.identity(signed(KEY, header=header).encode(), [KEY]).name == "ann"


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (RSAKey.generate_key(4096, {"kid": "k"}), "RS256"),
        (RSAKey.generate_key(2048, {"kid": "k"}), "PS256"),
        (ECKey.generate_key("P-256", {"kid": "k"}), "ES256"),
        (OKPKey.generate_key("Ed25519", {"kid": "k"}), "Ed25519"),
    ],
)
def test_each_default_algorithm_is_accepted(key: Any, algorithm: str) -> None:
    published = parse_provider_keys(json.dumps({"keys": [key.as_dict(private=False)]}).encode())
    verifier = TokenVerifier(Jwt())
    assert verifier.identity(signed(key, algorithm).encode(), published).name == "ann"


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_changed_token_is_refused(data: Any) -> None:
    token = signed(KEY)
    at = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.sampled_from(string.ascii_letters + string.digits + "-_.=é"))
    changed = token[:at] + letter + token[at + 1 :]
    # The last letters of base64 have bits that mean nothing.
    if letter == token[at] or changed.rpartition(".")[0] == token.rpartition(".")[0]:
        changed = token[: len(token) // 2]
    assert refused(changed)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    assert refused(data)


def test_an_unknown_key_is_a_reason_to_fetch_keys() -> None:
    assert isinstance(refused(with_header(alg="RS256", kid="new")), UnknownKey)
    assert not isinstance(refused(signed(OTHER)), UnknownKey)
