"""Copies settings into options objects of `broker` and `protocols`, which import no settings."""

from typing import TypeVar

from trellis.settings.options import OPTIONS
from trellis.settings.schema import Settings

CoreOptions = TypeVar("CoreOptions")


def fill(target: CoreOptions, settings: Settings) -> CoreOptions:
    """Set every attribute of `target` that a setting fills, and return `target`.

    `target` is an options object of the core, such as `BrokerLimits()`. An attribute that no
    setting fills keeps its default.
    """
    for option in OPTIONS.values():
        for owner, attribute, convert in option.fills:
            if isinstance(target, owner):
                value = option.value_in(settings)
                setattr(target, attribute, value if convert is None else convert(value))
    return target
