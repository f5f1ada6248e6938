"""Password hashes: argon2id for new passwords, other formats for users imported from other brokers.

$argon2id$v=19$...                       argon2id, also of Mosquitto 2.1
$7$ITERATIONS$SALT$HASH                  Mosquitto: PBKDF2 with SHA-512, in base64
$6$SALT$HASH                             Mosquitto: sha512(password + salt), in base64
rabbit_password_hashing_sha256:BASE64    RabbitMQ: a salt of 4 bytes, then hash(salt + password)
SCRAM-SHA-256$ITERATIONS:SALT$KEY:KEY    PostgreSQL: PBKDF2 with SHA-256, for logins by SCRAM

The cost of an imported hash is bounded, because each login computes the hash once.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import os
import secrets
import sys
import threading
from typing import Final

import argon2
from argon2.low_level import ARGON2_VERSION

from trellis.settings.scram_hash import SCRAM_PREFIX, parse_scram

#: Nice value of the threads that hash passwords, which gives them a lower priority than the event
#: loop (Linux).
NICE: Final = 5
#: Parameters of new hashes: the minimum that OWASP recommends. A hash takes 24 ms and 19 MiB.
HASHER: Final = argon2.PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
_PREFIX: Final = "rabbit_password_hashing_"
#: Size in bytes of the hashes of each of RabbitMQ's algorithms.
_SIZES: Final = {"sha256": 32, "sha512": 64, "md5": 16}
_SALT: Final = 4
#: Prefixes of Mosquitto's password hashes: SHA-512 and PBKDF2.
_SHA512: Final = "$6$"
_PBKDF2: Final = "$7$"
#: Name of the hashing algorithm in definitions, for users with one of Mosquitto's hashes.
MOSQUITTO: Final = "mosquitto"
#: Size in bytes of the hashes of SHA-512, and of the longest salt that Mosquitto makes.
_SHA512_SIZE: Final = 64
_SHA512_SALT_MAX: Final = 64
#: Largest number of iterations of an imported PBKDF2 hash (about 0.6 s). Mosquitto makes hashes
#: with 101 or 1,000 iterations.
ITERATIONS_MAX: Final = 1_000_000
#: Name of the hashing algorithm in definitions, for users with a hash for SCRAM-SHA-256.
SCRAM: Final = "scram-sha-256"
#: Iterations and salt (bytes) of new SCRAM hashes. RFC 7677 asks for at least 4,096 iterations.
#: Each client computes them, too.
SCRAM_ITERATIONS: Final = 15_000
SCRAM_SALT: Final = 16
#: Limits of imported argon2 hashes: memory in KiB, memory in KiB multiplied by passes (about 0.7 s
#: of work), and lanes.
ARGON2_MEMORY_MAX: Final = 262_144
ARGON2_WORK_MAX: Final = 524_288
ARGON2_LANES_MAX: Final = 16


def verify(password_hash: str, password: bytes) -> bool:
    """True if the password matches the hash, and is not empty.

    Takes 24 ms for argon2id, less for other formats. An imported hash may be that of an empty
    password, with which a client cannot log in.
    """
    if password_hash.startswith(_PREFIX):
        algorithm, salted = _parse(password_hash)
        digest = hashlib.new(algorithm, salted[:_SALT] + password, usedforsecurity=False).digest()
        return bool(password) and hmac.compare_digest(digest, salted[_SALT:])
    if password_hash.startswith(SCRAM_PREFIX):
        iterations, salt, stored_key, _ = parse_scram(password_hash)
        client_key, _ = _scram_keys(_prepared(password), salt, iterations)
        given = hashlib.sha256(client_key).digest()
        return bool(password) and hmac.compare_digest(given, stored_key)
    if password_hash.startswith((_SHA512, _PBKDF2)):
        iterations, salt, expected = _parse_mosquitto(password_hash)
        digest = (
            hashlib.pbkdf2_hmac("sha512", password, salt, iterations)
            if iterations
            else hashlib.sha512(password + salt).digest()
        )
        return bool(password) and hmac.compare_digest(digest, expected)
    try:
        return HASHER.verify(password_hash, password) and bool(password)
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
        return False


@functools.cache
def decoy_hash() -> str:
    """Return a hash that no password has, which is checked for unknown user names.

    So the refusal of an unknown user takes as long as the refusal of a wrong password. Salt and
    hash are random bytes: a computed hash would delay the start of each broker by 24 ms.
    """
    salt, digest = (
        base64.b64encode(secrets.token_bytes(size)).decode().rstrip("=")
        for size in (HASHER.salt_len, HASHER.hash_len)
    )
    cost = f"m={HASHER.memory_cost},t={HASHER.time_cost},p={HASHER.parallelism}"
    return f"$argon2id$v={ARGON2_VERSION}${cost}${salt}${digest}"


def check_hash(password_hash: str, algorithm: str) -> str:
    """Check the password hash of an imported user, and return the hash in its stored form.

    `algorithm` is RabbitMQ's name of the hashing algorithm; "" is SHA-256. Hashes that begin with
    `$` name their algorithm themselves. A user with an empty hash cannot log in with a password.
    Raises ValueError if the hash is malformed, or if its check would cost too much.
    """
    if password_hash.startswith("$argon2"):
        _check_argon2(argon2.extract_parameters(password_hash))
        return password_hash
    if password_hash.startswith((_SHA512, _PBKDF2)):
        _parse_mosquitto(password_hash)
        return password_hash
    if password_hash.startswith(SCRAM_PREFIX):
        parse_scram(password_hash)
        return password_hash
    if not password_hash and algorithm in (MOSQUITTO, SCRAM, "argon2id"):
        algorithm = ""
    kept = f"{algorithm or _PREFIX + 'sha256'}:{password_hash}"
    if password_hash:
        _parse(kept)
    return kept


def show_hash(password_hash: str) -> tuple[str, str]:
    """Return a stored hash as in a definitions file: the hash, and the name of its algorithm."""
    if password_hash.startswith((_SHA512, _PBKDF2)):
        return password_hash, MOSQUITTO
    if password_hash.startswith(SCRAM_PREFIX):
        return password_hash, SCRAM
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
        raise ValueError("the password_hash must be base64") from None
    if text and len(salted) != _SALT + _SIZES[algorithm]:
        raise ValueError(
            f"the password_hash has {len(salted)} bytes instead of the "
            f"{_SALT + _SIZES[algorithm]} bytes of {name}"
        )
    return algorithm, salted


def _check_argon2(parameters: argon2.Parameters) -> None:
    """Raise ValueError if a check of a password with these parameters costs too much."""
    memory, passes, lanes = (
        parameters.memory_cost,
        parameters.time_cost,
        parameters.parallelism,
    )
    if memory > ARGON2_MEMORY_MAX or memory * passes > ARGON2_WORK_MAX or lanes > ARGON2_LANES_MAX:
        raise ValueError(
            "each login would need too much memory or time: the argon2 hash has "
            f"m={memory} KiB, t={passes}, p={lanes}; "
            f"the limits are m={ARGON2_MEMORY_MAX} KiB, m*t={ARGON2_WORK_MAX} KiB, "
            f"p={ARGON2_LANES_MAX}; set a new password for the user"
        )


def _parse_mosquitto(password_hash: str) -> tuple[int, bytes, bytes]:
    """Return iterations, salt and hash of a password hash of Mosquitto.

    The iterations are 0 for the format `$6$`, a single SHA-512. Raises ValueError.
    """
    parts = password_hash.split("$")[1:]
    iterations = 0
    if parts[0] == "7" and len(parts) == 4:
        if not parts[1].isascii() or not parts[1].isdigit() or len(parts[1]) > 10:
            raise ValueError(
                f"the iterations of the $7$ hash must be a number, not '{parts[1][:20]}'"
            )
        iterations = int(parts[1])
        if not 1 <= iterations <= ITERATIONS_MAX:
            raise ValueError(
                f"the $7$ hash has {iterations} iterations; the limit is {ITERATIONS_MAX}; "
                "set a new password for the user"
            )
        del parts[1]
    if len(parts) != 3:
        raise ValueError("the hash must be $6$SALT$HASH or $7$ITERATIONS$SALT$HASH")
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in parts[1:])
    except (binascii.Error, ValueError):
        raise ValueError("the salt and the hash must be base64") from None
    if not 1 <= len(salt) <= _SHA512_SALT_MAX or len(digest) != _SHA512_SIZE:
        raise ValueError(
            f"the salt has {len(salt)} bytes and the hash {len(digest)} bytes, instead of 1 to "
            f"{_SHA512_SALT_MAX} and {_SHA512_SIZE}"
        )
    return iterations, salt, digest


def scram_hash(password: bytes) -> str:
    """Return a new hash of a password for SCRAM-SHA-256, in the form of PostgreSQL."""
    salt = secrets.token_bytes(SCRAM_SALT)
    client_key, server_key = _scram_keys(_prepared(password), salt, SCRAM_ITERATIONS)
    stored_key = hashlib.sha256(client_key).digest()
    texts = [base64.b64encode(part).decode() for part in (salt, stored_key, server_key)]
    return f"{SCRAM_PREFIX}{SCRAM_ITERATIONS}:{texts[0]}${texts[1]}:{texts[2]}"


def _scram_keys(password: bytes, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    """Return ClientKey and ServerKey of a password (RFC 5802, section 3)."""
    salted = hashlib.pbkdf2_hmac("sha256", password, salt, iterations)
    return hmac.digest(salted, b"Client Key", "sha256"), hmac.digest(
        salted, b"Server Key", "sha256"
    )


def _prepared(password: bytes) -> bytes:
    """Return a password in the form that clients of SCRAM use: SASLprep (RFC 4013).

    A password that SASLprep forbids is used unchanged, as in PostgreSQL. Without the package
    scramp, letters outside ASCII are used unchanged.
    """
    if password.isascii():
        return password
    try:
        from scramp.utils import ScramException, saslprep
    except ImportError:
        return password
    try:
        return str(saslprep(password.decode())).encode() or password
    except (UnicodeDecodeError, ScramException):
        return password


def lower_priority() -> None:
    """Lower the priority of this thread below the event loop's. Does nothing except on Linux."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
