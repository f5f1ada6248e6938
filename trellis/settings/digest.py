"""The digest of the settings that must be the same on all nodes of a cluster."""

from __future__ import annotations

import hashlib

from broker.limits import BrokerLimits
from protocols.mqtt.options import MqttOptions
from trellis.settings.options import OPTIONS
from trellis.settings.schema import Settings


def shared_settings(settings: Settings) -> dict[str, object]:
    """Return the settings that decide which definitions or messages a broker refuses, by key.

    All nodes of a cluster must have the same values. A standby with lower limits than the active
    node may refuse some of the definitions when it takes over.
    """
    return {
        option.key: option.value_in(settings)
        for option in OPTIONS.values()
        if any(owner in (BrokerLimits, MqttOptions) for owner, _, _ in option.fills)
    }


def settings_digest(settings: Settings) -> bytes:
    """Return the SHA-256 of `shared_settings`."""
    shared = shared_settings(settings)
    lines = [f"{key}={shared[key]!r}\n" for key in sorted(shared)]
    return hashlib.sha256("".join(lines).encode()).digest()
