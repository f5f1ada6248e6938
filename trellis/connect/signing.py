"""Signatures of requests by the rules of Standard Webhooks 1.0.

    webhook-signature: v1,BASE64(HMAC-SHA256(key, "ID.TIMESTAMP.BODY"))

Source: https://github.com/standard-webhooks/standard-webhooks, sections "Signature scheme" and
"Webhook metadata".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import Final

#: A message identifier that is sent unchanged. Other identifiers are hashed, because an identifier
#: is part of a header and of the signed text.
_SAFE: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


def signed_headers(
    identifier: str, timestamp: int, body: bytes, keys: Sequence[bytes]
) -> dict[str, str]:
    """Return the headers that identify and sign a request.

    `timestamp` is in seconds since 1970. The headers have one signature for each key: while a
    key is replaced, the receiver can verify the old or the new signature.
    """
    text = f"{identifier}.{timestamp}.".encode() + body
    signatures = [
        "v1," + base64.b64encode(hmac.digest(key, text, hashlib.sha256)).decode() for key in keys
    ]
    return {
        "webhook-id": identifier,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signatures),
    }


def safe_identifier(text: str) -> str:
    """Return an identifier for the header: `text`, or a hash if `text` does not match _SAFE."""
    if _SAFE.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
    return f"msg_{digest[:32]}"
