"""Settings as TOML: the commented default file, and the values in force with where each came from."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from trellis.settings.errors import printable
from trellis.settings.options import OPTIONS, SECTIONS, USER_OPTIONS, Option
from trellis.settings.schema import Settings

MASK = "********"
LARGER = {
    "bytes": ((1 << 20, "MiB"), (1 << 10, "KiB")),
    "s": ((86_400, "days"),),
}  # units people read

HEADER = """\
# Trellis settings: every key with its default. Printed by `trellis config`.
#
# A file holds only what differs from the defaults. The key amqp.port is also the environment variable
# TRELLIS_AMQP_PORT and the flag --amqp-port; a file overrides the default, the environment the file, a flag both.
# `trellis check-config --config FILE` checks a file, `trellis config --effective` shows what holds and why.
"""

EXAMPLES = {
    "amqtt.plugins": """\
# [amqtt.plugins."amqtt.plugins.authentication.FileAuthPlugin"]
# password_file = "/etc/trellis/mqtt-passwords"
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
}


def default_file() -> str:
    """The text of config/broker.toml."""

    def heading(section: str) -> str:
        return f"[{section}]  # {title(section)}"

    users = "\n".join(_explained(OPTIONS["users"], ""))
    return f"{HEADER}\n{_document(Settings(), heading, _explained)}\n{users}\n"


def render(settings: Settings) -> str:
    """`settings` as TOML that loads back to the same, secrets included."""
    return _document(settings, "[{}]".format, lambda option, line: [line])


def effective(settings: Settings, sources: Mapping[str, str]) -> str:
    """`settings` as TOML with the source of each value as a comment; secrets are masked."""

    def with_source(option: Option, line: str) -> list[str]:
        return [f"{line}  # {printable(sources.get(option.key, 'default'))}"]

    return _document(_masked(settings), "[{}]".format, with_source)


def title(section: str) -> str:
    """What a section is about: the first line of its docstring."""
    return (SECTIONS[section].__doc__ or "").splitlines()[0].rstrip(".")


def _document(
    settings: Settings, heading: Callable[[str], str], write: Callable[[Option, str], list[str]]
) -> str:
    """TOML of every option; `heading` writes the head of a section, `write` the lines for one option."""
    lines: list[str] = []
    section = ""
    for option in OPTIONS.values():
        if option.key == "users":  # comes last: a list of tables ends all that is outside it
            continue
        if option.section != section:
            section = option.section
            lines += ["", heading(section)]
        value = getattr(getattr(settings, section) if section else settings, option.name)
        lines += write(option, f"{option.name} = {toml(value)}")
    for user in settings.users:
        lines += ["", *write(OPTIONS["users"], "[[users]]")]
        lines += [f"{name} = {toml(value)}" for name, value in msgspec.structs.asdict(user).items()]
    return "\n".join(lines) + "\n"


def _explained(option: Option, line: str) -> list[str]:
    """An option in the default file: what it is, what it may be, and its default or an example."""
    valid = " ".join(filter(None, (option.bounds, option.unit))) or ", ".join(option.words)
    comment = f"# {option.help} ({valid})" if valid else f"# {option.help}"
    if option.key in EXAMPLES:
        return [comment, *EXAMPLES[option.key].splitlines()]
    easier = quantity(option.default, option.unit)
    rounded = option.type is int and option.unit and easier != f"{option.default} {option.unit}"
    return [comment, f"{line}  # {easier}" if rounded else line]


def _masked(settings: Settings) -> Settings:
    """`settings` with every secret replaced, for reading only."""
    mask = {option.name: MASK for option in USER_OPTIONS.values() if option.secret}
    plugins = {
        path: dict.fromkeys(options, MASK) for path, options in settings.amqtt.plugins.items()
    }
    return msgspec.structs.replace(
        settings,
        password=MASK if settings.password else "",
        amqtt=msgspec.structs.replace(settings.amqtt, plugins=plugins),
        users=tuple(msgspec.structs.replace(user, **mask) for user in settings.users),
    )


def toml(value: Any) -> str:
    """One TOML value on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}" if abs(value) >= 100_000 else str(value)
    if isinstance(value, str):
        # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
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
    """A value for people: `16 MiB`, `14 days`, `60 s`, `200`, `true`."""
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
