"""The Authorization header of a request: basic authentication, or a Bearer token."""

from __future__ import annotations

import base64
import binascii


def parse_bearer(header: bytes) -> bytes:
    """Return the token of an Authorization header (RFC 6750); b"" if the header has none."""
    scheme, _, token = header.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def parse_basic(header: bytes) -> tuple[str | None, bytes]:
    """Return user and password of an Authorization header (RFC 7617).

    Return (None, b"") if the header is of another kind, or is malformed.
    """
    scheme, _, token = header.partition(b" ")
    if scheme.lower() != b"basic":
        return None, b""
    try:
        user, colon, password = base64.b64decode(token.strip(), validate=True).partition(b":")
        return (user.decode(), password) if colon else (None, b"")
    except (binascii.Error, UnicodeDecodeError):
        return None, b""
