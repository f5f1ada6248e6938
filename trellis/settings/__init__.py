"""Settings of the broker: each is declared once, and read from files, environment and flags.

    declaration.py   how a setting is declared
    listeners.py     settings of ports and TLS
    cluster.py       settings of the replicated log
    schema.py        all other settings; `Settings`, the whole
       |
    options.py       key, environment variable and flag of a setting; reads its value
       |
    loading.py       default < file < environment < flag -> Settings
    rendering.py     Settings -> TOML, and the commented default file
    core_options.py  Settings -> the options objects that `broker` and `protocols` read
       |
    checks.py        rules over several settings
    values.py        rules for the text of one setting
    errors.py        the text of an error

Read them in this order. `Settings()` is all defaults; `load()` is what a command uses.
"""

from trellis.settings.core_options import fill
from trellis.settings.errors import SettingsError
from trellis.settings.limits import Limits, RatesSettings
from trellis.settings.listeners import (
    Amqp,
    Amqps,
    Http,
    Listener,
    Metrics,
    Mqtt,
    Mqtts,
    PlainListener,
    ProtocolListener,
    Tls,
    TlsListener,
    Ws,
    Wss,
)
from trellis.settings.loading import Loaded, load, load_with_sources
from trellis.settings.schema import (
    AmqttSettings,
    Auth,
    Data,
    Log,
    MatcherSettings,
    NodeSettings,
    Settings,
    Shutdown,
    UserSettings,
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
    "PlainListener",
    "ProtocolListener",
    "RatesSettings",
    "Settings",
    "SettingsError",
    "Shutdown",
    "Tls",
    "TlsListener",
    "UserSettings",
    "Ws",
    "Wss",
    "fill",
    "load",
    "load_with_sources",
]
