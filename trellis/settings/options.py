"""One option seen from outside: its key, its names in environment and flags, and how a given value
is read.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from trellis.settings.errors import nearest, shown
from trellis.settings.schema import INT64, Settings, UserSettings


class Option(Struct, frozen=True):
    """One declared option. `key` is `amqp.port`, or `password` for those outside every section."""

    key: str
    type: Any
    meta: Meta
    default: Any  # msgspec.NODEFAULT when it must be given

    @property
    def section(self) -> str:
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    @property
    def variable(self) -> str:
        return "TRELLIS_" + self.key.upper().replace(".", "_")

    @property
    def flag(self) -> str:
        return "--" + self.key.replace(".", "-").replace("_", "-")

    @property
    def help(self) -> str:
        return self.meta.description or ""

    @property
    def unit(self) -> str:
        return str((self.meta.extra or {})["unit"])

    @property
    def secret(self) -> bool:
        return bool((self.meta.extra or {})["secret"])

    @property
    def choices(self) -> tuple[str, ...]:
        """The words allowed, for an option or a list of words; else ().

        May look through installed packages: milliseconds.
        """
        named: Callable[[], tuple[str, ...]] | None = (self.meta.extra or {})["choices"]
        return self.words if named is None else named()

    @property
    def words(self) -> tuple[str, ...]:
        """Those of `choices` that do not depend on what is installed."""
        item = get_args(self.type)[0] if get_origin(self.type) is tuple else self.type
        return get_args(item) if get_origin(item) is Literal else ()

    @property
    def in_files_only(self) -> bool:
        """Lists and tables have no environment variable and no flag."""
        return get_origin(self.type) in (tuple, dict)

    @property
    def bounds(self) -> str:
        """`0..65535`, `at least 1`, or "" where there are none."""
        low, high = self.meta.ge, self.meta.le
        if low is None:
            return ""
        return f"at least {low}" if high == INT64 else f"{low}..{high}"

    @property
    def expected(self) -> str:
        """What a value looks like, for error messages and comments."""
        return self._expected(self.choices)

    def _expected(self, choices: tuple[str, ...]) -> str:
        unit = f" {self.unit}" if self.unit else ""
        if choices:
            listed = get_origin(self.type) is tuple
            return ("a list of one or more of " if listed else "one of ") + ", ".join(choices)
        if self.type is int or self.type is float:
            return (
                " ".join(
                    filter(
                        None, ("a whole number" if self.type is int else "a number", self.bounds)
                    )
                )
                + unit
            )
        if get_origin(self.type) is tuple:
            return f"a list of tables, written [[{self.key}]]"
        if get_origin(self.type) is dict:
            return (
                "a table of tables"
                if get_args(get_args(self.type)[1])[1] is object
                else "a table of tables of text"
            )
        return "true or false" if self.type is bool else "text"

    def read(self, value: object, *, text: bool = False) -> Any:
        """`value` from a file, or from environment or flag when `text`, as this option's type.

        ValueError says what is expected; it repeats the value unless that is secret.
        """
        choices = self.choices
        if isinstance(value, bool) and "true" in choices:
            value = str(value).lower()
        try:
            read = msgspec.convert(value, Annotated[self.type, self.meta], strict=not text)
        except msgspec.ValidationError:
            raise ValueError(self._problem(self._expected(choices), value, choices)) from None
        for one in [read] if isinstance(read, str) else read if isinstance(read, tuple) else ():
            if isinstance(one, str):
                self._check(one, choices)
        if choices and (
            not read
            or any(word not in choices for word in ([read] if isinstance(read, str) else read))
        ):
            raise ValueError(self._problem(self._expected(choices), value, choices))
        return read

    def _check(self, value: str, choices: tuple[str, ...]) -> None:
        check: Callable[[str], None] | None = (self.meta.extra or {})["check"]
        try:
            value.encode()
            if "\0" in value:
                raise ValueError("text without NUL")
            if check is not None:
                check(value)
        except UnicodeEncodeError:
            raise ValueError("must be UTF-8") from None
        except ValueError as error:
            raise ValueError(self._problem(str(error), value, choices)) from None

    def _problem(self, expected: str, value: object, choices: tuple[str, ...]) -> str:
        got = "" if self.secret else f", got {shown(value)}"
        words = value if isinstance(value, list) else [value]
        wrong = next((w for w in words if isinstance(w, str) and w not in choices), None)
        hint = f"; the nearest is {nearest(wrong, choices)}" if choices and wrong else ""
        return f"must be {expected}{got}{hint}"


def _options(table: type[Struct], prefix: str = "") -> dict[str, Option]:
    """Key -> option, in the order of declaration."""
    found: dict[str, Option] = {}
    for field in msgspec.structs.fields(table):
        key = prefix + field.name
        if isinstance(field.type, type) and issubclass(field.type, Struct):
            found |= _options(field.type, key + ".")
            continue
        kind, meta = get_args(field.type)
        default = (
            field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        )
        found[key] = Option(key=key, type=kind, meta=meta, default=default)
    return found


OPTIONS = _options(Settings)
USER_OPTIONS = _options(UserSettings)
SECTIONS: dict[str, type[Struct]] = {
    field.name: field.type
    for field in msgspec.structs.fields(Settings)
    if isinstance(field.type, type) and issubclass(field.type, Struct)
}
