"""The reason why a token is refused."""

from __future__ import annotations


class TokenRefused(ValueError):
    """A token is refused. `part` names the claim or the header field that decided."""

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(reason)
        self.part = part


class UnknownKey(TokenRefused):
    """No known key has the key ID of the token: the provider may have new keys."""

    def __init__(self, reason: str) -> None:
        super().__init__("kid", reason)


class KeysUnavailable(TokenRefused):
    """There are no keys, or only keys that are too old: the provider did not answer."""

    def __init__(self, reason: str) -> None:
        super().__init__("kid", reason)
