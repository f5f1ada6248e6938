"""Password hashes as `mosquitto_passwd` writes them."""

from __future__ import annotations

import base64
import hashlib


def mosquitto_hash(password: bytes, salt: bytes, iterations: int) -> str:
    """Return the hash of a password in Mosquitto's format; 0 iterations give the older format."""
    if iterations:
        digest = hashlib.pbkdf2_hmac("sha512", password, salt, iterations)
        head = f"$7${iterations}"
    else:
        digest, head = hashlib.sha512(password + salt).digest(), "$6"
    return f"{head}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"
