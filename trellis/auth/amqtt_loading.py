"""The thread of amqtt's plugins: imports, configures, starts and closes the plugins.

Needs the optional extra `amqtt`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from enum import Enum
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Final

import dacite
from amqtt.contexts import BaseContext
from amqtt.plugins.base import BaseAuthPlugin, BasePlugin, BaseTopicPlugin

from trellis import logs
from trellis.auth.passwords import lower_priority
from trellis.settings.errors import SettingsError, nearest
from trellis.settings.schema import Plugins

KEY: Final = "amqtt.plugins"
#: Seconds that the plugins may take to load.
LOADING_SECONDS: Final = 30.0
#: Seconds that the plugins may take to close.
CLOSING_SECONDS: Final = 5.0


class PluginThread:
    """The thread in which amqtt's plugins run, with an event loop.

    Plugins may hash passwords or query a database; the broker's event loop does not wait for them.
    """

    def __init__(self, wanted: Plugins) -> None:
        self.loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._loaded: Future[list[BasePlugin]] = Future()
        self._thread = threading.Thread(
            target=self._run, args=[wanted], name="trellis-amqtt", daemon=True
        )
        self._thread.start()
        try:
            self.plugins = self._loaded.result(LOADING_SECONDS)
        except TimeoutError:
            raise SettingsError(
                KEY,
                f"the plugins did not load within {LOADING_SECONDS:g} s: find out what they wait "
                "for, such as a database",
            ) from None

    def _run(self, wanted: Plugins) -> None:
        lower_priority()
        asyncio.run(self._live(wanted))

    async def _live(self, wanted: Plugins) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            plugins = [load(path, options) for path, options in wanted.items()]
            for path, plugin in zip(wanted, plugins, strict=True):
                await _start(path, plugin)
        except BaseException as error:  # noqa: BLE001  (raised by __init__)
            self._loaded.set_exception(error)
            return
        self._loaded.set_result(plugins)
        await self._stop.wait()
        for plugin in plugins:
            await _end(plugin)

    def close(self) -> None:
        """Close the plugins and end the thread, within CLOSING_SECONDS."""
        post(self.loop, self._stop.set)
        self._thread.join(CLOSING_SECONDS)
        if self._thread.is_alive():
            logs.warning("amqtt_not_closed", after=f"{CLOSING_SECONDS:g}s")


async def _start(path: str, plugin: BasePlugin) -> None:
    """Call the plugin's start handler, if the plugin has one. (Some plugins open a database there.)

    Raises SettingsError.
    """
    try:
        if hasattr(plugin, "on_broker_pre_start"):
            await plugin.on_broker_pre_start()
    except Exception as error:
        raise SettingsError(
            key_of(path), f"the plugin's on_broker_pre_start failed: {error_text(error)}"
        ) from error


async def _end(plugin: BasePlugin) -> None:
    try:
        if hasattr(plugin, "on_broker_pre_shutdown"):
            await plugin.on_broker_pre_shutdown()
        await plugin.close()
    except Exception as error:  # noqa: BLE001  (the broker stops)
        logs.warning("amqtt_not_closed", plugin=path_of(plugin), problem=error_location(error))


def load(path: str, options: Mapping[str, object]) -> BasePlugin:
    """Create the plugin with the class path `module.Class`. Raises SettingsError."""
    kind = _find(path)
    config = configure(path, kind, options)
    context = BaseContext()
    context.loop = asyncio.get_running_loop()
    context.logger = logging.getLogger(f"amqtt.broker.plugins.{kind.__name__}")
    context.config = config
    try:
        plugin = kind(context)
    except Exception as error:
        raise SettingsError(
            key_of(path), f"the plugin's constructor failed: {error_text(error)}"
        ) from error
    roles = {
        "authenticate": isinstance(plugin, BaseAuthPlugin),
        "topic_filtering": isinstance(plugin, BaseTopicPlugin),
    }
    used = [role for role, has in roles.items() if has]
    for role in used:
        if not iscoroutinefunction(getattr(plugin, role)):
            raise SettingsError(key_of(path), f"the plugin's {role} must be an async function")
    logs.info("amqtt_plugin", plugin=path, asked=",".join(used))
    return plugin


def _find(path: str) -> Any:
    module_path, _, name = path.rpartition(".")
    if not module_path:
        raise SettingsError(key_of(path), "the plugin must be a class, written module.Class")
    try:
        module = import_module(module_path)
    except Exception as error:
        raise SettingsError(
            key_of(path), f"the import of {module_path} failed: {error_text(error)}"
        ) from error
    kind = getattr(module, name, None)
    if _is_plugin(kind):
        return kind
    if kind is None:
        known = [other for other, thing in vars(module).items() if _is_plugin(thing)]
        hint = f"; the nearest is {nearest(name, known)}" if known else ""
        raise SettingsError(key_of(path), f"there is no class {name} in {module_path}{hint}")
    raise SettingsError(
        key_of(path),
        "the class must be an authentication plugin (BaseAuthPlugin) or a topic plugin "
        "(BaseTopicPlugin)",
    )


def _is_plugin(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, (BaseAuthPlugin, BaseTopicPlugin))


def configure(path: str, kind: Any, options: Mapping[str, object]) -> object:
    """Return an object of the dataclass `Config` of a plugin class, with the given options.

    `path` is the class path of the plugin class `kind`, for errors. The character `-` in an
    option's name becomes `_`. Raises SettingsError, whose text never contains a value, since some
    values are secret.
    """
    table: Any = kind.Config
    if not dataclasses.is_dataclass(kind.Config):
        raise SettingsError(key_of(path), "the plugin's Config must be a dataclass")
    fields = {field.name: field for field in dataclasses.fields(table) if field.init}
    given: dict[str, object] = {}
    for option, value in options.items():
        name, key = option.replace("-", "_"), f"{key_of(path)}.{option}"
        if name.startswith("receive_"):
            if name not in fields or not _required(fields[name]):
                raise SettingsError(
                    key,
                    "the option would have no effect, because plugins are called at publish and "
                    "subscribe, not at each delivery: remove the option",
                )
            logs.warning(
                "amqtt_option_unused",
                plugin=path,
                option=name,
                note="the option has no effect: plugins are called at publish and subscribe, not "
                "at each delivery",
            )
        if name not in fields:
            known = f"the nearest is {nearest(name, fields)}" if fields else "no option is known"
            raise SettingsError(key, f"unknown option; {known}")
        if name in given:
            raise SettingsError(key, "the option is given twice, with - and with _; remove one")
        given[name] = value
    for name, field in fields.items():
        if name not in given and _required(field):
            raise SettingsError(f"{key_of(path)}.{name}", "the plugin requires this option: set it")
    try:
        return dacite.from_dict(table, given, dacite.Config(strict=True, cast=[Enum]))
    except dacite.WrongTypeError as error:
        raise SettingsError(
            f"{key_of(path)}.{error.field_path}", f"must be {_type_name(error.field_type)}"
        ) from None
    except Exception as error:
        raise SettingsError(
            key_of(path), f"the plugin refuses its options: {error_text(error)}"
        ) from error


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _type_name(kind: Any) -> str:
    """Return the text of a type annotation, for an error message."""
    return (
        str(kind.__name__)
        if isinstance(kind, type) and not hasattr(kind, "__args__")
        else str(kind).replace("pathlib.", "")
    )


def key_of(path: str) -> str:
    """Return the settings key of a plugin, such as `amqtt.plugins."module.Class"`."""
    return f'{KEY}."{path}"'


def path_of(plugin: BasePlugin) -> str:
    """Return the class path of a plugin, as `module.Class`."""
    return f"{type(plugin).__module__}.{type(plugin).__qualname__}"


def error_text(error: BaseException) -> str:
    """Return the type and the text of an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


def error_location(error: BaseException) -> str:
    """Return the type, file and line of an error, without its text, which may hold a password."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = (
        ""
        if trace is None
        else f" in {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
    )
    return f"{type(error).__name__}{where}"


def post(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    """Call a function in the thread of an event loop, unless the loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *arguments)
