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
    Amqtt,
    Auth,
    Data,
    Entry,
    Http,
    Limits,
    Listener,
    Log,
    Matcher,
    Metrics,
    Mqtt,
    Mqtts,
    Node,
    Open,
    Secured,
    Settings,
    Shutdown,
    Tls,
    User,
    Ws,
    Wss,
)

__all__ = [
    "Amqp",
    "Amqps",
    "Amqtt",
    "Auth",
    "Data",
    "Entry",
    "Http",
    "Limits",
    "Listener",
    "Loaded",
    "Log",
    "Matcher",
    "Metrics",
    "Mqtt",
    "Mqtts",
    "Node",
    "Open",
    "Secured",
    "Settings",
    "SettingsError",
    "Shutdown",
    "Tls",
    "User",
    "Ws",
    "Wss",
    "load",
    "load_with_sources",
]
