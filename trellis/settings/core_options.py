"""Copies settings into options objects of `broker` and `protocols`, which import no settings."""

from functools import cache
from typing import Any, TypeVar

from trellis.settings.declaration import CoreField
from trellis.settings.options import OPTIONS, Option
from trellis.settings.schema import Settings

CoreOptions = TypeVar("CoreOptions")


def fill(target: CoreOptions, settings: Settings) -> CoreOptions:
    """Set every attribute of `target` that a setting fills, and return `target`.

    `target` is an options object of the core, such as `BrokerLimits()`. An attribute that no
    setting fills keeps its default.
    """
    kind: Any = type(target)
    for option, field in _filling(kind):
        value = option.value_in(settings)
        setattr(target, field.attribute, value if field.convert is None else field.convert(value))
    return target


@cache
def _filling(kind: type) -> list[tuple[Option, CoreField]]:
    """Return each setting that fills an attribute of the class `kind`, with that attribute.

    The result is cached: most settings fill no attribute of a given class.
    """
    return [
        (option, field)
        for option in OPTIONS.values()
        for field in option.fills
        if issubclass(kind, field.owner)
    ]
