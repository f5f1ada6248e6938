"""The names of a setting in files, environment and flags, and how a given value is read."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from trellis.settings.bridge import BridgeSettings
from trellis.settings.declaration import INT64, CoreField
from trellis.settings.errors import nearest, shown
from trellis.settings.schema import Settings, UserSettings

LIST = "a list of texts"


class Option(Struct, frozen=True):
    """A declared setting. Examples of `key`: `amqp.port`, and `password`, which has no section."""

    key: str
    type: Any
    meta: Meta
    default: Any  # msgspec.NODEFAULT if the setting is required

    @property
    def section(self) -> str:
        """The section of the setting; "" for a setting outside all sections."""
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The key without its section."""
        return self.key.rpartition(".")[2]

    @property
    def variable(self) -> str:
        """The name of the setting's environment variable, such as TRELLIS_AMQP_PORT."""
        return "TRELLIS_" + self.key.upper().replace(".", "_")

    @property
    def flag(self) -> str:
        """The name of the setting's flag, such as --amqp-port."""
        return "--" + self.key.replace(".", "-").replace("_", "-")

    @property
    def help(self) -> str:
        """The help text of the setting."""
        return self.meta.description or ""

    @property
    def unit(self) -> str:
        """The unit of a number, "" if it has none."""
        return str(self._extra["unit"])

    @property
    def secret(self) -> bool:
        """True if the value is never printed."""
        return bool(self._extra["secret"])

    @property
    def fills(self) -> list[CoreField]:
        """The attributes of options objects in `broker` and `protocols` that this setting sets."""
        return [field._replace(attribute=field.attribute or self.name) for field in self._fills]

    @property
    def check(self) -> Callable[[str], None] | None:
        """The function that checks a text value, None if every text is valid."""
        checker: Callable[[str], None] | None = self._extra["check"]
        return checker

    @property
    def choices(self) -> tuple[str, ...]:
        """The words to which the value, or each item of a list, is limited; () without a limit.

        May look through installed packages, which takes milliseconds.
        """
        named: Callable[[], tuple[str, ...]] | None = self._extra["choices"]
        return self.words if named is None else named()

    @property
    def words(self) -> tuple[str, ...]:
        """The words that the setting's type allows; () if the type does not list words."""
        item = get_args(self.type)[0] if get_origin(self.type) is tuple else self.type
        return get_args(item) if get_origin(item) is Literal else ()

    @property
    def in_files_only(self) -> bool:
        """True for lists and tables, which have no environment variable and no flag."""
        return get_origin(self.type) in (tuple, dict)

    @property
    def bounds(self) -> str:
        """The bounds of a number, such as `0..65535` or `at least 1`; "" if it has none."""
        low, high = self.meta.ge, self.meta.le
        if low is None:
            return ""
        return f"at least {low}" if high == INT64 else f"{low}..{high}"

    @property
    def expected(self) -> str:
        """A phrase that describes valid values and completes "must be"."""
        return self._expected(self.choices)

    @property
    def _extra(self) -> dict[str, Any]:
        return self.meta.extra or {}

    @property
    def _fills(self) -> tuple[CoreField, ...]:
        core_fields: tuple[CoreField, ...] = self._extra["fills"]
        return core_fields

    def value_in(self, settings: Settings) -> Any:
        """Return the value of this setting in `settings`."""
        return getattr(getattr(settings, self.section) if self.section else settings, self.name)

    def _expected(self, choices: tuple[str, ...]) -> str:
        if choices:
            listed = get_origin(self.type) is tuple
            return ("a list of one or more of " if listed else "one of ") + ", ".join(choices)
        if self.type is int or self.type is float:
            kind = "a whole number" if self.type is int else "a number"
            return " ".join(filter(None, (kind, self.bounds, self.unit)))
        if get_origin(self.type) is tuple:
            item = get_args(self.type)[0]
            return f"a list of tables, written [[{self.key}]]" if item is not str else LIST
        if get_origin(self.type) is dict:
            inner = get_args(get_args(self.type)[1])
            if not inner:
                return "a table"
            content = "" if inner[1] is object else " whose values are text"
            return f"a table of tables{content}"
        return "true or false" if self.type is bool else "text"

    def read(self, value: object, *, text: bool = False) -> Any:
        """Convert a given value to the type of this setting, check it, and return it.

        `text` is True for a value from the environment or a flag. Raises ValueError with a message
        about the valid values. The message repeats the given value, except for a secret setting.
        """
        choices = self.choices
        if isinstance(value, bool) and "true" in choices:
            value = str(value).lower()
        try:
            read = msgspec.convert(value, Annotated[self.type, self.meta], strict=not text)
        except msgspec.ValidationError:
            problem = f"must be {self._expected(choices)}"
            raise ValueError(self._problem(problem, value, choices)) from None
        except UnicodeEncodeError:
            raise ValueError("must be UTF-8") from None
        for one in [read] if isinstance(read, str) else read if isinstance(read, tuple) else ():
            if isinstance(one, str):
                self._check(one, choices)
        if choices and (
            not read
            or any(word not in choices for word in ([read] if isinstance(read, str) else read))
        ):
            raise ValueError(self._problem(f"must be {self._expected(choices)}", value, choices))
        return read

    def _check(self, value: str, choices: tuple[str, ...]) -> None:
        try:
            value.encode()
            if "\0" in value:
                raise ValueError("must be text without NUL")
            if self.check is not None:
                self.check(value)
        except UnicodeEncodeError:
            raise ValueError("must be UTF-8") from None
        except ValueError as error:
            raise ValueError(self._problem(str(error), value, choices)) from None

    def _problem(self, problem: str, value: object, choices: tuple[str, ...]) -> str:
        words = value if isinstance(value, list) else [value]
        wrong = next((w for w in words if isinstance(w, str) and w not in choices), None)
        hint = f"; the nearest is {nearest(wrong, choices)}" if choices and wrong else ""
        got = "" if self.secret else f", got {shown(wrong if hint else value)}"
        return f"{problem}{got}{hint}"


def _options(table: type[Struct], prefix: str = "") -> dict[str, Option]:
    """Return the settings of a table by key, in the order of declaration."""
    options: dict[str, Option] = {}
    for field in msgspec.structs.fields(table):
        key = prefix + field.name
        if isinstance(field.type, type) and issubclass(field.type, Struct):
            options |= _options(field.type, key + ".")
            continue
        kind, meta = get_args(field.type)
        default = (
            field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        )
        options[key] = Option(key=key, type=kind, meta=meta, default=default)
    return options


OPTIONS = _options(Settings)
USER_OPTIONS = _options(UserSettings)
BRIDGE_OPTIONS = _options(BridgeSettings)
#: The settings that are lists of tables: the class and the options of each table.
TABLE_LISTS: dict[str, tuple[type[Struct], dict[str, Option]]] = {
    "users": (UserSettings, USER_OPTIONS),
    "bridge": (BridgeSettings, BRIDGE_OPTIONS),
}
SECTIONS: dict[str, type[Struct]] = {
    field.name: field.type
    for field in msgspec.structs.fields(Settings)
    if isinstance(field.type, type) and issubclass(field.type, Struct)
}
