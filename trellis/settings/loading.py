"""Reads settings from files, environment and flags; a later source overrides an earlier one."""

import os
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from trellis.settings.checks import problems
from trellis.settings.errors import SettingsError, nearest
from trellis.settings.options import OPTIONS, SECTIONS, TABLE_LISTS, Option
from trellis.settings.schema import Settings

#: If no settings file is named, the first of these files that exists is read.
SEARCHED = (Path("broker.toml"), Path("/etc/trellis/broker.toml"))
PREFIX = "TRELLIS_"
#: Environment variables that begin with TRELLIS_ and are no settings: TRELLIS_CONFIG names settings
#: files; TRELLIS_URL is the broker that commands ask; TRELLIS_PURE and TRELLIS_REQUIRE* are for the
#: build and the tests.
OTHER_VARIABLES = re.compile(r"TRELLIS_(CONFIG|URL|PURE|REQUIRE.*)")
#: Variables in which Kubernetes and Docker links describe a service named `trellis...`.
SERVICE_LINK = re.compile(
    r"TRELLIS_(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)"
)
SERVICE_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://")


class Given(NamedTuple):
    """A value and the file, environment variable or flag that gave it."""

    value: Any
    where: str


class Loaded(NamedTuple):
    """The settings, and the file, environment variable or flag that gave each key.

    A key that is not in `sources` has its default.
    """

    settings: Settings
    sources: dict[str, str]


def load(
    files: Iterable[str | Path] | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings from files, environment and flags.

    A flag overrides the environment, and the environment overrides the files. If no `files` are
    given, the files that the environment variable TRELLIS_CONFIG names are read. If the variable is
    not set either, the first existing file of SEARCHED is read. `environ` is os.environ by default.
    `flags` maps keys such as `amqp.port` to their values as text. Raises SettingsError.
    """
    return load_with_sources(files, environ, flags).settings


def load_with_sources(
    files: Iterable[str | Path] | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    used: Collection[str] = (),
) -> Loaded:
    """Return the settings as `load` does, with the source of each value. Raises SettingsError.

    `used` has the keys of the settings that the program uses; () if the program uses all settings.
    A rule over several settings is not checked if the program uses only some of these settings.
    """
    environ = os.environ if environ is None else environ
    given: dict[str, Given] = {}
    for file in config_files(files, environ):
        given |= read_file(file)
    given |= read_environment(environ)
    given |= read_flags(flags or {})

    tree: dict[str, Any] = {section: {} for section in SECTIONS}
    for key, (value, _) in given.items():
        option = OPTIONS[key]
        (tree[option.section] if option.section else tree)[option.name] = value
    settings = msgspec.convert(tree, Settings)
    sources = {key: where for key, (_, where) in given.items()}
    for keys, problem in problems(settings):
        if 0 < len(set(keys) & set(used)) < len(set(keys)):
            continue
        key = next((key for key in keys if key in sources), keys[0])
        raise SettingsError(sources.get(key, "default"), key, problem)
    if settings.password_file:
        try:
            password = read_password(settings.password_file)
        except ValueError as error:
            raise SettingsError(sources["password_file"], "password_file", str(error)) from None
        settings = msgspec.structs.replace(settings, password=password)
        sources["password"] = settings.password_file
    return Loaded(settings, sources)


def config_files(files: Iterable[str | Path] | None, environ: Mapping[str, str]) -> Sequence[Path]:
    """Return the files to read, in order. Only the files of SEARCHED may be missing."""
    chosen = [Path(file) for file in files or ()]
    chosen = chosen or [
        Path(file) for file in environ.get("TRELLIS_CONFIG", "").split(os.pathsep) if file
    ]
    return chosen or [path for path in SEARCHED if os.path.exists(path)][:1]


def read_file(path: Path) -> dict[str, Given]:
    """Return the checked values of a TOML file, by key. Raises SettingsError."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise SettingsError(str(path), f"the file cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise SettingsError(str(path), "the file must be UTF-8 text") from None
    return read_text(text, str(path))


def read_text(text: str, where: str) -> dict[str, Given]:
    """Return the checked values of a TOML text, by key. Raises SettingsError.

    `where` is the source of the text, for errors.
    """
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise SettingsError(where, "is not valid TOML: it is nested too deeply") from None
    except ValueError as error:
        line, problem = _line_of(error, text)
        raise SettingsError(f"{where}:{line}", f"is not valid TOML: {problem}") from None

    given: dict[str, Given] = {}
    for key, value in tables.items():
        if key not in SECTIONS:
            given[key] = Given(_read_in_file(key, value, where), where)
            continue
        if not isinstance(value, dict):
            raise SettingsError(where, key, f"must be a table, written [{key}]")
        for name, item in value.items():
            full = f"{key}.{name}"
            given[full] = Given(_read_in_file(full, item, where), where)
    return given


def _line_of(error: ValueError, text: str) -> tuple[int, str]:
    """Return the line of a TOML syntax error, and the error's text with a lowercase initial."""
    message, line = str(error), text.count("\n") + 1
    if place := re.fullmatch(
        r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", message, re.DOTALL
    ):
        message, line = place[1], int(place[2] or line)
    return line, message[:1].lower() + message[1:]


def _read_in_file(key: str, value: object, where: str) -> Any:
    if key in TABLE_LISTS:
        return _read_tables(key, value, where)
    if key not in OPTIONS:
        raise SettingsError(
            where, key, f"unknown key; the nearest is {nearest(key, [*OPTIONS, *SECTIONS])}"
        )
    return _read(OPTIONS[key], value, where, key)


def _read_tables(key: str, value: object, where: str) -> tuple[msgspec.Struct, ...]:
    """Return the tables of a list of tables, such as the users. Raises SettingsError.

    `key` is the key of the list; `where` is the source of the value, for errors.
    """
    if not (isinstance(value, list) and all(isinstance(table, dict) for table in value)):
        raise SettingsError(where, key, f"must be {OPTIONS[key].expected}")
    kind, options = TABLE_LISTS[key]
    tables = []
    for number, table in enumerate(value, 1):
        place = f"{key}[{number}]"
        for name in table:
            if name not in options:
                problem = f"unknown key; the nearest is {nearest(name, options)}"
                raise SettingsError(where, f"{place}.{name}", problem)
        for name, option in options.items():
            if option.default is msgspec.NODEFAULT and not table.get(name):
                owner = key.removesuffix("s")
                problem = (
                    f"the key '{name}' of this {owner} is missing; set it to the {option.help}"
                )
                raise SettingsError(where, f"{place}.{name}", problem)
        tables.append(
            kind(
                **{
                    name: _read(options[name], item, where, f"{place}.{name}")
                    for name, item in table.items()
                }
            )
        )
    return tuple(tables)


def read_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    """Return the checked values of the TRELLIS_ variables, by key. Raises SettingsError."""
    known = {option.variable: option for option in OPTIONS.values()}
    given: dict[str, Given] = {}
    for variable, value in environ.items():
        if not variable.startswith(PREFIX) or OTHER_VARIABLES.fullmatch(variable):
            continue
        if SERVICE_LINK.fullmatch(variable) or (
            variable.endswith("_PORT") and SERVICE_LINK_VALUE.match(value)
        ):
            continue
        option = known.get(variable)
        if option is None:
            raise SettingsError(
                variable, f"unknown environment variable; the nearest is {nearest(variable, known)}"
            )
        given[option.key] = Given(_read_as_text(option, value, variable), variable)
    return given


def read_flags(flags: Mapping[str, str]) -> dict[str, Given]:
    """Return the checked values of flags, by key. Raises SettingsError.

    `flags` has the keys of settings, such as `amqp.port`.
    """
    return {
        key: Given(_read_as_text(OPTIONS[key], value, OPTIONS[key].flag), OPTIONS[key].flag)
        for key, value in flags.items()
    }


def _read_as_text(option: Option, value: str, where: str) -> Any:
    if option.in_files_only:
        raise SettingsError(
            where, option.key, "can be set in a file only, because it is a list or a table"
        )
    return _read(option, value, where, option.key, text=True)


def _read(option: Option, value: object, where: str, key: str, *, text: bool = False) -> Any:
    try:
        return option.read(value, text=text)
    except ValueError as error:
        raise SettingsError(where, key, str(error)) from None


def read_password(file: str) -> str:
    """Return the first line of a password file.

    Raises ValueError with the name of the file and the problem.
    """
    try:
        password = Path(file).expanduser().read_text(encoding="utf-8").partition("\n")[0]
    except UnicodeDecodeError:
        raise ValueError(f"{file} must be UTF-8 text") from None
    except (OSError, RuntimeError) as error:
        raise ValueError(f"{file} cannot be read ({getattr(error, 'strerror', error)})") from None
    if not password:
        raise ValueError(f"the first line of {file} is empty, and must be the password")
    return password
