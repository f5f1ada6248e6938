"""Public keys that verify tokens: a PEM file, or a JWKS (RFC 7517).

The package joserfc is an extra (`jwt`), so it is imported where keys are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from trellis.settings import SettingsError

#: Largest number of keys that are read from a file, or from the JWKS of a provider.
MAX_KEYS: Final = 64
#: Smallest and largest RSA key in bits. A larger key would make each check of a token slow.
RSA_BITS: Final = (2048, 8192)
#: Key types (`kty`) that are read from a provider: not `oct`, a shared secret, which is not public.
_PUBLIC: Final = ("RSA", "EC", "OKP")

#: A key: an RSAKey, ECKey, OKPKey or OctKey of joserfc.
Key = Any


def read_key_file(name: str) -> list[Key]:
    """Return the keys of the file that the setting `jwt.keys` names. Raises SettingsError."""
    path = Path(name).expanduser()
    try:
        text = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"jwt.keys: {path} cannot be read: {error.strerror}") from None
    try:
        keys = list(_from_jwks(text) if text.lstrip().startswith(b"{") else _from_pem(text))
    except Exception as error:  # noqa: BLE001  (joserfc raises many kinds)
        raise SettingsError(
            f"jwt.keys: {path}: the file must hold keys in PEM or as a JWKS "
            f"({error or type(error).__name__})"
        ) from None
    if not 0 < len(keys) <= MAX_KEYS:
        raise SettingsError(
            f"jwt.keys: {path}: the file must hold 1 to {MAX_KEYS} keys, not {len(keys)}"
        )
    for key in keys:
        if key.key_type == "RSA" and key.raw_value.key_size > RSA_BITS[1]:
            raise SettingsError(
                f"jwt.keys: {path}: the file has an RSA key of {key.raw_value.key_size} bits; the "
                f"limit is {RSA_BITS[1]} bits"
            )
    return keys


def parse_provider_keys(text: bytes) -> list[Key]:
    """Return the keys for signatures in the JWKS of a provider.

    Raises ValueError if no key can be used. Keys that cannot verify tokens are skipped: keys for
    encryption, shared secrets, keys of unknown types, and RSA keys outside RSA_BITS.
    """
    # For a document with very many small objects, json.loads holds the interpreter's lock twice as
    # long, and the event loop waits for the lock.
    document = msgspec.json.decode(text)
    rows = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise ValueError("the document has no list `keys`")
    if len(rows) > MAX_KEYS:
        raise ValueError(f"the document has {len(rows)} keys; the limit is {MAX_KEYS}")
    keys = [key for row in rows for key in _usable(row)]
    if not keys:
        raise ValueError(f"none of the {len(rows)} keys in the document can verify tokens")
    return keys


def key_ids(keys: Sequence[Key]) -> list[str]:
    """Return the key IDs (`kid`) of keys; "-" for a key without a key ID."""
    return [str(key.kid or "-") for key in keys]


def _usable(row: Any) -> Iterator[Key]:
    from joserfc.jwk import JWKRegistry

    if not isinstance(row, dict) or row.get("kty") not in _PUBLIC or row.get("use") == "enc":
        return
    try:
        key: Key = JWKRegistry.import_key(row)
        size = key.raw_value.key_size if key.key_type == "RSA" else RSA_BITS[0]
    except Exception:  # noqa: BLE001  (joserfc and cryptography raise many kinds)
        return
    if RSA_BITS[0] <= size <= RSA_BITS[1] and (key.kid is None or isinstance(key.kid, str)):
        yield key


def _from_jwks(text: bytes) -> list[Key]:
    from joserfc.jwk import KeySet

    document = json.loads(text)
    rows: Any = document if "keys" in document else {"keys": [document]}
    return list(KeySet.import_key_set(rows).keys)


def _from_pem(text: bytes) -> Iterator[Key]:
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    kinds: tuple[Any, ...] = (RSAKey, ECKey, OKPKey)
    for block in re.findall(rb"-----BEGIN [^-]+-----.+?-----END [^-]+-----", text, re.DOTALL):
        yield _pem(block, kinds)


def _pem(block: bytes, kinds: tuple[Any, ...]) -> Key:
    for kind in kinds:
        try:
            return kind.import_key(block + b"\n")
        except Exception:  # noqa: BLE001  (a key of another kind)
            continue
    raise ValueError("a key in PEM form is not a valid RSA, EC or OKP key")
