"""Time limit and login error of AMQP and MQTT clients in tests."""

from __future__ import annotations

from typing import Final

#: Seconds that one call of a client may take.
PATIENCE: Final = 20.0


class LoginRefused(Exception):
    """Raised if the client library reports, in its own words, a wrong user name or password."""
