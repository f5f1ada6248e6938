"""Password hashes: argon2id for new ones, and RabbitMQ's formats for imported users.

$argon2id$v=19$...                       argon2id
rabbit_password_hashing_sha256:BASE64    RabbitMQ: a salt of 4 bytes, then hash(salt + password)
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

import argon2

#: Parameters of new hashes: the minimum that OWASP recommends. A hash takes 24 ms and 19 MiB.
HASHER: Final = argon2.PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
_PREFIX: Final = "rabbit_password_hashing_"
#: Size in bytes of the hashes of each of RabbitMQ's algorithms.
_SIZES: Final = {"sha256": 32, "sha512": 64, "md5": 16}
_SALT: Final = 4


def verify(password_hash: str, password: bytes) -> bool:
    """True if the password matches the hash. Takes 24 ms for argon2id, less for other formats."""
    if password_hash.startswith(_PREFIX):
        algorithm, salted = _parse(password_hash)
        digest = hashlib.new(algorithm, salted[:_SALT] + password, usedforsecurity=False).digest()
        return bool(password) and hmac.compare_digest(digest, salted[_SALT:])
    try:
        return HASHER.verify(password_hash, password)
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
        return False


def check_hash(password_hash: str, algorithm: str) -> str:
    """Check the password hash of an imported user, and return the hash in its stored form.

    `algorithm` is RabbitMQ's name of the hashing algorithm; "" is SHA-256. A user with an empty
    hash cannot log in with a password. Raises ValueError.
    """
    if password_hash.startswith("$argon2"):
        argon2.extract_parameters(password_hash)
        return password_hash
    kept = f"{algorithm or _PREFIX + 'sha256'}:{password_hash}"
    if password_hash:
        _parse(kept)
    return kept


def show_hash(password_hash: str) -> tuple[str, str]:
    """Return a stored hash as in a definitions file: the hash, and the name of its algorithm."""
    algorithm, colon, encoded = password_hash.partition(":")
    return (encoded, algorithm) if colon else (password_hash, "argon2id")


def _parse(password_hash: str) -> tuple[str, bytes]:
    name, _, text = password_hash.partition(":")
    algorithm = name.removeprefix(_PREFIX)
    if algorithm not in _SIZES:
        raise ValueError(
            f"unknown hashing algorithm '{name}'; "
            f"known are {', '.join(_PREFIX + one for one in _SIZES)}"
        )
    try:
        salted = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("the password_hash is not base64") from None
    if text and len(salted) != _SALT + _SIZES[algorithm]:
        raise ValueError(
            f"the password_hash has {len(salted)} bytes, "
            f"but {name} makes {_SALT + _SIZES[algorithm]} bytes"
        )
    return algorithm, salted
