"""The declaration of a setting.

A section is a frozen Struct, and a setting is one of its fields:

    frame_max: Annotated[
        int,                             <- type
        option(
            "largest frame",             <- help text
            ge=4096, le=131_072,         <- bounds
            unit="bytes",
            fills=AmqpOptions,           <- the core reads it as AmqpOptions.frame_max
        ),
    ] = AMQP.frame_max                   <- default

The key in files (`amqp.frame_max`), the environment variable, the flag, `--help` and the commented
default file all follow from this declaration; see options.py.

`protocols` and `broker` cannot import the settings. These packages read options objects of their
own (`AmqpOptions`, `MqttOptions`, `BrokerLimits`), whose attributes hold the defaults. A setting
that sets such an attribute takes its default from the attribute, and names the attribute in
`fills`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Meta, Struct

KIB, MIB = 1 << 10, 1 << 20
INT64 = (1 << 63) - 1


class CoreField(NamedTuple):
    """An attribute of an options object of `broker` or `protocols` that a setting fills."""

    #: Class of the options object.
    owner: type
    #: Name of the attribute; "" if it has the name of the setting.
    attribute: str = ""
    #: Converts the value of the setting for the attribute, such as seconds to milliseconds.
    convert: Callable[[Any], object] | None = None


#: The type of the argument `fills`. A class as an entry means its attribute with the name of the
#: setting.
Fills = type | CoreField | tuple[CoreField, ...]


def milliseconds(seconds: float) -> int:
    """Return `seconds` in whole milliseconds."""
    return int(seconds * 1000)


def option(
    text: str,
    *,
    ge: float | None = None,
    le: float | None = None,
    unit: str = "",
    check: Callable[[str], None] | None = None,
    choices: Callable[[], tuple[str, ...]] | None = None,
    secret: bool = False,
    fills: Fills = (),
) -> Meta:
    """Return the declaration of a setting, which stands beside its type.

    `text` is the help text. `ge` and `le` are inclusive bounds of a number; without
    `le`, the upper bound is INT64. `check` takes a text and raises ValueError with a message that
    begins with "must be". `choices` returns the allowed words if the type does not list them. The
    value of a `secret` setting is never printed. `fills` names the attributes in options objects
    of `broker` and `protocols` that get the value.
    """
    if ge is not None and le is None:
        le = INT64
    if isinstance(fills, type):
        fills = CoreField(fills)
    targets = (fills,) if isinstance(fills, CoreField) else fills
    return Meta(
        ge=ge,
        le=le,
        description=text,
        extra={
            "unit": unit,
            "check": check,
            "choices": choices,
            "secret": secret,
            "fills": targets,
        },
    )


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the settings file. Its docstring is its heading in that file and in `--help`."""
