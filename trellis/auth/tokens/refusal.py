"""Errors for refused tokens."""

from __future__ import annotations


class TokenRefused(ValueError):
    """Raised if a token is refused. `part` names the claim or header field that is the reason."""

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(reason)
        self.part = part


class UnknownKey(TokenRefused):
    """Raised if no fetched key has the key ID of the token. The provider may have new keys."""

    def __init__(self, reason: str) -> None:
        super().__init__("kid", reason)


class KeysUnavailable(TokenRefused):
    """Raised if a token cannot be verified now, because the provider's keys were not fetched.

    The client may try again later.
    """

    def __init__(self, reason: str) -> None:
        super().__init__("kid", reason)
