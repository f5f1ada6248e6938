"""Settings of the broker: declared once, read from files, environment and flags.

    schema.py    what can be set: every option with default, type, bounds, unit, help
       |
    options.py   the same seen from outside: key, environment variable, flag; reads one value
       |
    loading.py   default < file < environment < flag -> Settings      rendering.py   Settings -> TOML, default file
       |
    checks.py    rules over more than one option      values.py   what is valid text      errors.py   how it is told

Read them in this order. `Settings()` is all defaults; `load()` is what a command uses.
"""

from trellis.settings.errors import SettingsError
from trellis.settings.loading import Loaded, load, load_with_sources
from trellis.settings.schema import (
    Amqp,
    Amqps,
    AmqttSettings,
    Auth,
    Data,
    Http,
    Limits,
    Listener,
    Log,
    MatcherSettings,
    Metrics,
    Mqtt,
    Mqtts,
    NodeSettings,
    Open,
    ProtocolListener,
    RatesSettings,
    Secured,
    Settings,
    Shutdown,
    Tls,
    UserSettings,
    Ws,
    Wss,
)

__all__ = [
    "Amqp",
    "Amqps",
    "AmqttSettings",
    "Auth",
    "Data",
    "Http",
    "Limits",
    "Listener",
    "Loaded",
    "Log",
    "MatcherSettings",
    "Metrics",
    "Mqtt",
    "Mqtts",
    "NodeSettings",
    "Open",
    "ProtocolListener",
    "RatesSettings",
    "Secured",
    "Settings",
    "SettingsError",
    "Shutdown",
    "Tls",
    "UserSettings",
    "Ws",
    "Wss",
    "load",
    "load_with_sources",
]
