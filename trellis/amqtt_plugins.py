"""amqtt's authentication and topic plugins as this broker's Authenticator (the optional extra `amqtt`).

    credentials --+-- no authentication plugin ------------------------------------------------> the accounts decide
                  +-- room: each is asked, in the --+-- one says False, or fails -------------> refused
                  |   plugins' own thread           +-- one says True, none False ------------> let in, with every right
                  |                                 +-- all say None -------------------------> the accounts decide
                  +-- too many wait, or no answer in time ------------------------------------> busy

    whoever was let in --+-- no topic plugin --> the identity as it is
                         +-- PluginIdentity: all topic plugins must say yes, once per route and subscription

Answers are combined as amqtt's own broker does (amqtt/broker.py: `_authenticate`, `_topic_filtering`), but for
one thing: where every authentication plugin says None, amqtt refuses and we ask the accounts.
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

from broker.access import Authenticator, Credentials, Identity, Verdict
from trellis import logs
from trellis.authenticate import Answer, stand_back
from trellis.settings.errors import SettingsError, nearest
from trellis.settings.schema import Plugins

try:
    import dacite
    from amqtt.contexts import Action, BaseContext
    from amqtt.plugins.base import BaseAuthPlugin, BasePlugin, BaseTopicPlugin
    from amqtt.session import Session
    from transitions import Machine
except ImportError as error:  # This module is imported only where the settings name plugins.
    raise SettingsError("amqtt.plugins", f"amqtt cannot be imported ({error}); pip install 'trellis-broker[amqtt]'") from error

KEY: Final = "amqtt.plugins"
#: Logins that may wait for the plugins.
QUEUE: Final = 1_024
#: Seconds that plugins may take over a login: less than a client's whole handshake may, so that it hears the answer.
PATIENCE: Final = 8.0
#: Seconds that the plugins may take to load, and to close.
LOADING: Final = 30.0
CLOSING: Final = 5.0
#: Identities remembered for clients that come back, so that they find their gate and its routes; the oldest go first.
IDENTITIES: Final = 1_000
#: The name of those who give none.
NOBODY: Final = "anonymous"


# -- topics


class PluginSession(Session):  # type: ignore[misc]  # amqtt ships no types
    """What a plugin is told of a client: amqtt's Session, always connected. A state machine for each would be
    most of its 24 KB and 300 us; what amqtt keeps there of a client's traffic stays empty."""

    _connected: Final = Machine(states=Session.states, initial="connected")

    def _init_states(self) -> None:
        self.transitions = self._connected


def session_of(credentials: Credentials) -> PluginSession:
    """Octets of a password that are no UTF-8 become surrogates: they equal no text that could be right."""
    session = PluginSession()
    session.username = credentials.user
    session.password = credentials.password.decode("utf-8", "surrogateescape") or None
    session.client_id = credentials.client_id
    session.remote_address = credentials.address
    return session


class TopicRules:
    """The topic plugins. They are asked on the broker's thread, which does not wait: what they need they must have."""

    def __init__(self, plugins: list[BaseTopicPlugin]) -> None:
        self._plugins = plugins
        self._reported: set[tuple[str, str]] = set()

    def __bool__(self) -> bool:
        return bool(self._plugins)

    def allow(self, session: PluginSession, topic: str, action: Action) -> bool:
        """Whether every plugin says yes. None is no, as in amqtt."""
        return all(self._ask(plugin, session, topic, action) for plugin in self._plugins)

    def _ask(self, plugin: BaseTopicPlugin, session: PluginSession, topic: str, action: Action) -> bool:
        question = plugin.topic_filtering(session=session, topic=topic, action=action)
        try:
            question.send(None)
        except StopIteration as done:
            return bool(done.value)
        except Exception as error:  # noqa: BLE001  (whatever a plugin raises is no yes)
            self._report(plugin, place_of(error))
            return False
        self._report(plugin, "its topic_filtering waits, and the broker does not")
        with contextlib.suppress(Exception):
            question.close()
        return False

    def _report(self, plugin: BaseTopicPlugin, problem: str) -> None:
        """Once for each problem: clients choose how many topics they publish to."""
        if (path_of(plugin), problem) not in self._reported:
            self._reported.add((path_of(plugin), problem))
            logs.warning("amqtt_topic_denied", plugin=path_of(plugin), problem=problem)


class PluginIdentity(Identity):
    """The rights of an account, or every right, narrowed by the topic plugins. Gates keep what they answered."""

    def __init__(self, name: str, rights: Identity | None, session: PluginSession, rules: TopicRules) -> None:
        super().__init__(name)
        self._rights = rights
        self._session = session
        self._rules = rules

    def fits(self, rights: Identity | None, session: PluginSession) -> bool:
        """Whether a plugin asked about the two of them would see the same."""
        mine = self._session
        return (self._rights is rights and mine.password == session.password
                and mine.is_anonymous == session.is_anonymous and bool(mine.attributes == session.attributes))

    def may(self, operation: str, kind: str, name: str, vhost: str) -> None:
        if self._rights is None:
            super().may(operation, kind, name, vhost)
        else:
            self._rights.may(operation, kind, name, vhost)

    def may_publish(self, topic: bytes) -> bool:
        try:
            return self._rules.allow(self._session, topic.decode(), Action.PUBLISH)
        except UnicodeDecodeError:
            return False  # amqtt has no words for it.

    def may_subscribe(self, topic_filter: str) -> bool:
        return self._rules.allow(self._session, topic_filter, Action.SUBSCRIBE)


# -- logins


class Login:
    """Credentials on their way through the plugins' thread."""

    __slots__ = ("answer", "answered", "credentials", "loop", "session", "task", "timer")

    def __init__(self, credentials: Credentials, answer: Answer, loop: asyncio.AbstractEventLoop) -> None:
        self.credentials = credentials
        self.answer = answer
        self.loop = loop
        self.answered = False
        self.session: PluginSession | None = None
        self.task: asyncio.Task[bool | None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class PluginAuthenticator(Authenticator):
    """Loads the plugins (class path -> options), and asks them before the accounts. Raises SettingsError.

    At most `queue` logins wait for plugins, each `patience` seconds.
    """

    def __init__(self, plugins: Plugins, accounts: Authenticator, queue: int = QUEUE, patience: float = PATIENCE) -> None:
        self._accounts = accounts
        self._queue = queue
        self._patience = patience
        self._thread = PluginThread(plugins)
        self._judges = [plugin for plugin in self._thread.plugins if isinstance(plugin, BaseAuthPlugin)]
        self._rules = TopicRules([plugin for plugin in self._thread.plugins if isinstance(plugin, BaseTopicPlugin)])
        self._identities: dict[tuple[str | None, str], Identity] = {}
        #: Logins that wait for plugins now, that they were asked about so far, and that they left without an answer.
        self.waiting = 0
        self.asked = 0
        self.late = 0

    def authenticate(self, credentials: Credentials, answer: Answer) -> None:
        if credentials.proven or not self._judges:  # Of a certificate, plugins know nothing.
            self._ask_accounts(credentials, session_of(credentials), answer)
        elif credentials.user is None and credentials.foreign:
            answer(Verdict(None, "a page of another host must say for whom it speaks"))
        elif self.waiting >= self._queue:
            answer(Verdict(None, "too many logins at once", busy=True))
        else:
            self.waiting += 1
            self.asked += 1
            login = Login(credentials, answer, asyncio.get_running_loop())
            login.timer = login.loop.call_later(self._patience, self._give_up, login)
            post(self._thread.loop, self._begin, login)

    def close(self) -> None:
        """Close the plugins; waits for them, up to CLOSING seconds."""
        self._thread.close()

    # in the plugins' thread

    def _begin(self, login: Login) -> None:
        if login.answered:  # It took too long to come to it.
            post(login.loop, self._told, login, None)
            return
        login.task = self._thread.loop.create_task(self._judge(login))
        login.task.add_done_callback(lambda task: post(login.loop, self._told, login, not task.cancelled() and task.result()))

    def _drop(self, login: Login) -> None:
        if login.task is not None:
            login.task.cancel()

    async def _judge(self, login: Login) -> bool | None:
        """What the plugins say together: yes, no, or nothing at all."""
        session = login.session = session_of(login.credentials)
        answers = await asyncio.gather(*(_ask(plugin, session) for plugin in self._judges))
        opinions = [answer for answer in answers if answer is not None]
        return all(opinions) if opinions else None

    # on the broker's thread

    def _give_up(self, login: Login) -> None:
        """The plugins may still be at it: the login keeps its place among those that wait until they have ended."""
        self.late += 1
        login.answered = True
        login.timer = None
        post(self._thread.loop, self._drop, login)
        logs.warning("amqtt_login_late", user=login.credentials.user or NOBODY, after=f"{self._patience:g}s",
                     waiting=self.waiting)
        login.answer(Verdict(None, "no answer from the plugins in time", busy=True))

    def _told(self, login: Login, opinion: bool | None) -> None:
        self.waiting -= 1
        if login.answered:
            return
        login.answered = True
        assert login.timer is not None and login.session is not None
        login.timer.cancel()
        if opinion is None:
            self._ask_accounts(login.credentials, login.session, login.answer)
        elif opinion:
            login.answer(Verdict(self._identity(login.credentials, login.session, None)))
        else:
            login.answer(Verdict(None, "a plugin says no"))

    def _ask_accounts(self, credentials: Credentials, session: PluginSession, answer: Answer) -> None:
        def narrow(verdict: Verdict) -> None:
            rights = verdict.identity
            answer(verdict if rights is None else Verdict(self._identity(credentials, session, rights)))

        self._accounts.authenticate(credentials, narrow)

    def _identity(self, credentials: Credentials, session: PluginSession, rights: Identity | None) -> Identity:
        """The same object for the same client; `rights` is None for every right."""
        if rights is not None and not self._rules:
            return rights
        key = credentials.user, credentials.client_id if self._rules else ""
        known = self._identities.pop(key, None)
        if known is None or isinstance(known, PluginIdentity) and not known.fits(rights, session):
            name = credentials.user or NOBODY if rights is None else rights.name
            known = PluginIdentity(name, rights, session, self._rules) if self._rules else Identity(name)
        while len(self._identities) >= IDENTITIES:
            del self._identities[next(iter(self._identities))]
        self._identities[key] = known
        return known


async def _ask(plugin: BaseAuthPlugin, session: PluginSession) -> bool | None:
    try:
        return bool(answer) if (answer := await plugin.authenticate(session=session)) is not None else None
    except Exception as error:  # noqa: BLE001  (whatever a plugin raises is no yes)
        logs.warning("amqtt_login_refused", plugin=path_of(plugin), user=session.username or NOBODY, problem=place_of(error))
        return False


# -- the thread, and loading


class PluginThread:
    """Where plugins live: an event loop of their own. They may hash, or talk to a database, and ours never waits."""

    def __init__(self, wanted: Plugins) -> None:
        self.loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._loaded: Future[list[BasePlugin]] = Future()
        self._thread = threading.Thread(target=self._run, args=[wanted], name="trellis-amqtt", daemon=True)
        self._thread.start()
        try:
            self.plugins = self._loaded.result(LOADING)
        except TimeoutError:
            raise SettingsError(KEY, f"not loaded within {LOADING:g} s") from None

    def _run(self, wanted: Plugins) -> None:
        stand_back()
        asyncio.run(self._live(wanted))

    async def _live(self, wanted: Plugins) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            plugins = [load(path, options) for path, options in wanted.items()]
            for path, plugin in zip(wanted, plugins, strict=True):
                await _start(path, plugin)
        except BaseException as error:  # noqa: BLE001  (it is raised where the result is waited for)
            self._loaded.set_exception(error)
            return
        self._loaded.set_result(plugins)
        await self._stop.wait()
        for plugin in plugins:
            await _end(plugin)

    def close(self) -> None:
        post(self.loop, self._stop.set)
        self._thread.join(CLOSING)
        if self._thread.is_alive():
            logs.warning("amqtt_not_closed", after=f"{CLOSING:g}s")


async def _start(path: str, plugin: BasePlugin) -> None:
    """amqtt's event for plugins that prepare something, such as a database. Raises SettingsError."""
    try:
        if hasattr(plugin, "on_broker_pre_start"):
            await plugin.on_broker_pre_start()
    except Exception as error:
        raise SettingsError(key_of(path), f"cannot start: {told(error)}") from error


async def _end(plugin: BasePlugin) -> None:
    try:
        if hasattr(plugin, "on_broker_pre_shutdown"):
            await plugin.on_broker_pre_shutdown()
        await plugin.close()
    except Exception as error:  # noqa: BLE001  (we are leaving)
        logs.warning("amqtt_not_closed", plugin=path_of(plugin), problem=place_of(error))


def load(path: str, options: Mapping[str, object]) -> BasePlugin:
    """The plugin at `module.Class`, with its options. Raises SettingsError."""
    kind = _find(path)
    config = configure(path, kind, options)
    context = BaseContext()
    context.loop = asyncio.get_running_loop()
    context.logger = logging.getLogger(f"amqtt.broker.plugins.{kind.__name__}")
    context.config = config
    try:
        plugin = kind(context)
    except Exception as error:
        raise SettingsError(key_of(path), f"cannot be made: {told(error)}") from error
    roles = {"authenticate": isinstance(plugin, BaseAuthPlugin), "topic_filtering": isinstance(plugin, BaseTopicPlugin)}
    asked = [role for role, has in roles.items() if has]
    for role in asked:
        if not iscoroutinefunction(getattr(plugin, role)):
            raise SettingsError(key_of(path), f"its {role} is not an async function")
    logs.info("amqtt_plugin", plugin=path, asked=",".join(asked))
    return plugin


def _find(path: str) -> Any:
    module_path, _, name = path.rpartition(".")
    if not module_path:
        raise SettingsError(key_of(path), "must be the path of a class, written module.Class")
    try:
        module = import_module(module_path)
    except Exception as error:
        raise SettingsError(key_of(path), f"cannot be imported: {told(error)}") from error
    kind = getattr(module, name, None)
    if _is_plugin(kind):
        return kind
    if kind is None:
        known = [other for other, thing in vars(module).items() if _is_plugin(thing)]
        hint = f"; the nearest is {nearest(name, known)}" if known else ""
        raise SettingsError(key_of(path), f"there is no {name} in {module_path}{hint}")
    raise SettingsError(key_of(path), "is neither an authentication nor a topic plugin; others do nothing here")


def _is_plugin(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, (BaseAuthPlugin, BaseTopicPlugin))


def configure(path: str, kind: Any, options: Mapping[str, object]) -> object:
    """The plugin's own `Config` dataclass, made of the options; `-` in their names is `_`. Raises SettingsError.

    Values are not repeated in errors: some are secrets.
    """
    table: Any = kind.Config
    if not dataclasses.is_dataclass(kind.Config):
        raise SettingsError(key_of(path), "its Config is not a dataclass")
    fields = {field.name: field for field in dataclasses.fields(table) if field.init}
    given: dict[str, object] = {}
    for option, value in options.items():
        name, key = option.replace("-", "_"), f"{key_of(path)}.{option}"
        if name.startswith("receive_"):
            if name not in fields or not _required(fields[name]):
                raise SettingsError(key, "is not supported: plugins are asked at publish and subscribe, not at each delivery")
            logs.warning("amqtt_option_unused", plugin=path, option=name, note="plugins are not asked at each delivery")
        if name not in fields:
            hint = f"; the nearest is {nearest(name, fields)}" if fields else "; this plugin has none"
            raise SettingsError(key, f"unknown option{hint}")
        if name in given:
            raise SettingsError(key, "is given twice, with - and with _")
        given[name] = value
    for name, field in fields.items():
        if name not in given and _required(field):
            raise SettingsError(f"{key_of(path)}.{name}", "must be given")
    try:
        return dacite.from_dict(table, given, dacite.Config(strict=True, cast=[Enum]))
    except dacite.WrongTypeError as error:
        raise SettingsError(f"{key_of(path)}.{error.field_path}", f"must be {_written(error.field_type)}") from None
    except Exception as error:
        raise SettingsError(key_of(path), f"its options are refused: {told(error)}") from error


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _written(kind: Any) -> str:
    """A type as its declaration has it."""
    return str(kind.__name__) if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind).replace("pathlib.", "")


# -- words


def key_of(path: str) -> str:
    return f'{KEY}."{path}"'


def path_of(plugin: BasePlugin) -> str:
    return f"{type(plugin).__module__}.{type(plugin).__qualname__}"


def told(error: BaseException) -> str:
    """What went wrong with the settings, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


def place_of(error: BaseException) -> str:
    """What a plugin raised, and where; not its text, which may hold a password."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" in {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
    return f"{type(error).__name__}{where}"


def post(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    """Have it done in the loop's thread; a loop that is closed has nobody left who waits."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *arguments)
