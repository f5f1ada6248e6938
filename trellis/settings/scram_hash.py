"""Hashes of passwords for SCRAM-SHA-256 (RFC 5802, RFC 7677), in the form of PostgreSQL."""

import base64
import binascii
import re
from typing import Final

#: The beginning of each hash.
SCRAM_PREFIX: Final = "SCRAM-SHA-256$"
#: Smallest and largest number of iterations. The largest takes 0.3 s.
ITERATIONS: Final = (4_096, 1_000_000)
#: Smallest and largest size of a salt, in bytes.
SALT_SIZES: Final = (12, 64)


def parse_scram(password_hash: str) -> tuple[int, bytes, bytes, bytes]:
    """Return iterations, salt, StoredKey and ServerKey of a hash for SCRAM. Raises ValueError."""
    match = re.fullmatch(r"SCRAM-SHA-256\$(\d{1,10}):([^$:]+)\$([^$:]+):([^$:]+)", password_hash)
    if match is None:
        raise ValueError(
            "the hash is not SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY; make it with "
            "`trellis hash-password --scram`"
        )
    iterations = int(match[1])
    low, high = ITERATIONS
    if not low <= iterations <= high:
        raise ValueError(
            f"the SCRAM hash has {iterations} iterations (must be {low} to {high}); "
            "set a new password for the user"
        )
    try:
        salt, stored_key, server_key = (
            base64.b64decode(part, validate=True) for part in match.groups()[1:]
        )
    except (binascii.Error, ValueError):
        raise ValueError(
            "the salt or a key of the SCRAM hash is not base64; set a new password for the user"
        ) from None
    low, high = SALT_SIZES
    if not low <= len(salt) <= high or not len(stored_key) == len(server_key) == 32:
        raise ValueError(
            f"the salt of the SCRAM hash has {len(salt)} bytes (must be {low} to {high}), "
            f"the StoredKey {len(stored_key)} and the ServerKey {len(server_key)} bytes "
            "(must be 32 each); set a new password for the user"
        )
    return iterations, salt, stored_key, server_key
