"""Errors for refused tokens."""

from __future__ import annotations


class TokenRefused(ValueError):
    """The token is refused. `part` names the claim or the header field that is the reason."""

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(reason)
        self.part = part


class UnknownKey(TokenRefused):
    """No known key has the key ID of the token. The provider may have new keys."""

    def __init__(self, reason: str) -> None:
        super().__init__("kid", reason)


class KeysUnavailable(TokenRefused):
    """The token cannot be judged now: its key is missing, and may be among the provider's keys.

    The client may try again later.
    """

    def __init__(self, reason: str) -> None:
        super().__init__("kid", reason)
