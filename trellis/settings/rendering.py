"""Settings as TOML: the commented default file, or the values in force and their sources."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from textwrap import wrap
from typing import Any

import msgspec

from trellis.settings.errors import printable
from trellis.settings.options import OPTIONS, SECTIONS, TABLE_LISTS, Option
from trellis.settings.schema import Settings

MASK = "********"
#: Largest number of columns in a line of the default file.
WIDTH = 100
#: For each unit, its larger units. A value is shown in the largest unit of which it is a multiple.
LARGER = {
    "bytes": ((1 << 20, "MiB"), (1 << 10, "KiB")),
    "s": ((86_400, "days"),),
}

HEADER = """\
# Trellis settings: every key with its default. Printed by `trellis config`.
#
# A file needs only the keys that differ from their defaults. The key amqp.port is also the
# environment variable TRELLIS_AMQP_PORT and the flag --amqp-port. A file overrides the default, the
# environment overrides the file, and a flag overrides both. `trellis check-config --config FILE`
# checks a file; `trellis config --effective` prints the values in force and their sources.
"""

EXAMPLES = {
    "amqtt.plugins": """\
# [amqtt.plugins."amqtt.plugins.authentication.FileAuthPlugin"]
# password_file = "/etc/trellis/mqtt-passwords"
""",
    "cluster.options": """\
# [cluster.options]
# security.protocol = "SASL_SSL"
# ssl.ca.location = "/etc/trellis/kafka-ca.pem"
# sasl.mechanisms = "SCRAM-SHA-512"
# sasl.username = "trellis"
# sasl.password = "..."
""",
    "tls.names": """\
# [tls.names."mqtt.example.org"]
# certificate = "/etc/trellis/mqtt.example.org.pem"
# key = "/etc/trellis/mqtt.example.org-key.pem"
""",
    "users": """\
# [[users]]
# name = "sensors"
# password_hash = "$argon2id$v=19$m=19456,t=2,p=1$..."
# configure = "^$"
# write = "^amq\\\\.topic$"
# read = "^$"
# loopback_only = false
# administrator = false
# vhosts = ["/"]
# rules = ["deny all private/#", "allow publish sensors/{username}/#", "allow subscribe #"]
""",
    "bridge": """\
# [[bridge]]
# name = "head-office"
# remote = "mqtts://mqtt.example.org:8883"
# topics = ['sensors/# out 1 "" plant7/', 'commands/# in 1 "" plant7/']
# remote_user = "plant7"
# remote_password = "..."
""",
}


def default_file() -> str:
    """Return the text of config/broker.toml."""

    def heading(section: str) -> str:
        return f"[{section}]  # {title(section)}"

    lists = "\n\n".join("\n".join(_explained(OPTIONS[key], "")) for key in TABLE_LISTS)
    return f"{HEADER}\n{_document(Settings(), heading, _explained)}\n{lists}\n"


def render(settings: Settings) -> str:
    """Return `settings` as TOML that loads back to equal settings, secrets included."""
    return _document(settings, "[{}]".format, lambda option, line: [line])


def effective(settings: Settings, sources: Mapping[str, str]) -> str:
    """Return `settings` as TOML with the source of each value in a comment, and masked secrets."""

    def with_source(option: Option, line: str) -> list[str]:
        return [f"{line}  # {printable(sources.get(option.key, 'default'))}"]

    return _document(masked(settings), "[{}]".format, with_source)


def effective_rows(settings: Settings, sources: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the key, the value and the source of each setting, with masked secrets."""
    hidden = masked(settings)
    return [
        {"key": key, "value": option.value_in(hidden), "source": sources.get(key, "default")}
        for key, option in OPTIONS.items()
    ]


def title(section: str) -> str:
    """Return the heading of a section: its whole docstring in one line."""
    return " ".join((SECTIONS[section].__doc__ or "").split()).rstrip(".")


def _document(
    settings: Settings, heading: Callable[[str], str], write: Callable[[Option, str], list[str]]
) -> str:
    """Return all settings as TOML.

    `heading` returns the line above a section. `write` gets a setting and its line of TOML, and
    returns the lines of the document for this setting.
    """
    lines: list[str] = []
    section = ""
    for option in OPTIONS.values():
        # Lists of tables are written last: later keys would belong to the last table.
        if option.key in TABLE_LISTS:
            continue
        if option.section != section:
            section = option.section
            lines += ["", heading(section)]
        lines += write(option, f"{option.name} = {toml(option.value_in(settings))}")
    for key in TABLE_LISTS:
        for table in OPTIONS[key].value_in(settings):
            lines += ["", *write(OPTIONS[key], f"[[{key}]]")]
            values = msgspec.structs.asdict(table)
            lines += [f"{name} = {toml(value)}" for name, value in values.items()]
    return "\n".join(lines) + "\n"


def _explained(option: Option, line: str) -> list[str]:
    """Return the lines of a setting in the default file: help, bounds, and default or example."""
    valid = " ".join(filter(None, (option.bounds, option.unit))) or ", ".join(option.words)
    text = f"{option.help} ({valid})" if valid else option.help
    comment = [f"# {line}" for line in wrap(text, WIDTH - 2, break_on_hyphens=False)]
    if option.key in EXAMPLES:
        return [*comment, *EXAMPLES[option.key].splitlines()]
    easier = quantity(option.default, option.unit)
    rounded = option.type is int and option.unit and easier != f"{option.default} {option.unit}"
    return [*comment, f"{line}  # {easier}" if rounded else line]


def masked(settings: Settings) -> Settings:
    """Return `settings` with a mask in place of every secret that is set."""
    changes: dict[str, dict[str, Any]] = {"": {}}
    for option in OPTIONS.values():
        if option.secret:
            secrets = changes.setdefault(option.section, {})
            secrets[option.name] = _mask(option.value_in(settings))
    # The names of Kafka's options are printed as Kafka knows them, with dots.
    changes["cluster"]["options"] = _mask(settings.cluster.client_options)
    return msgspec.structs.replace(
        settings,
        **changes.pop(""),
        **{
            section: msgspec.structs.replace(getattr(settings, section), **secrets)
            for section, secrets in changes.items()
        },
        **{key: _masked_tables(key, settings) for key in TABLE_LISTS},
    )


def _mask(value: Any) -> Any:
    """Return a secret with each text and number in it replaced by a mask; empty texts remain."""
    if isinstance(value, Mapping):
        return {key: _mask(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(_mask, value))
    return "" if value == "" else MASK


def _masked_tables(key: str, settings: Settings) -> tuple[msgspec.Struct, ...]:
    """Return the tables of the setting `key`, with a mask in place of every secret that is set."""
    _, options = TABLE_LISTS[key]
    secrets = [name for name, option in options.items() if option.secret]
    return tuple(
        msgspec.structs.replace(table, **{name: _mask(getattr(table, name)) for name in secrets})
        for table in OPTIONS[key].value_in(settings)
    )


def toml(value: Any) -> str:
    """Return `value` in TOML notation on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}" if abs(value) >= 100_000 else str(value)
    if isinstance(value, str):
        # A JSON string is a TOML basic string, except for DEL, which must be escaped in TOML.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(_pairs(value)) + "}"
    return repr(value) if isinstance(value, float) else str(value.isoformat())


def _pairs(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        yield f"{key if re.fullmatch('[A-Za-z0-9_-]+', key) else toml(key)} = {toml(value)}"


def quantity(value: object, unit: str) -> str:
    """Return a value in its most readable unit: `16 MiB`, `14 days`, `60 s`, `200`, `true`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g} {unit}".rstrip()
    if not isinstance(value, int):
        return str(value)
    for size, name in LARGER.get(unit, ()):
        if value and value % size == 0:
            return f"{value // size} {name}"
    return f"{value} {unit}".rstrip()
