"""An authenticator that asks amqtt's authentication and topic plugins (optional extra `amqtt`).

A login:

    no authentication plugin -----------------------------> the accounts decide
    too many logins wait, or no answer in time -----------> busy
    every plugin is asked, in the plugins' thread:
        one returns False, or fails ----------------------> refused
        one returns True, none False ---------------------> accepted, with all permissions
        all return None ----------------------------------> the accounts decide

The permissions of a client after its login:

    no topic plugin --------> the permissions of its identity
    topic plugins ----------> PluginIdentity: all plugins must allow a topic, asked once for each
                              route and subscription

Answers are combined as in amqtt's broker (amqtt/broker.py: `_authenticate`, `_topic_filtering`),
with one difference: if every authentication plugin returns None, amqtt refuses the login, and
Trellis asks the accounts.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from broker.access.identity import (
    READ_ALL,
    READ_NONE,
    Authenticator,
    Credentials,
    Identity,
    Verdict,
)
from broker.eviction import evict_oldest
from trellis import logs
from trellis.auth.authenticate import VerdictCallback
from trellis.settings.errors import SettingsError
from trellis.settings.schema import Plugins

try:
    from amqtt.contexts import Action
    from amqtt.plugins.base import BaseAuthPlugin, BaseTopicPlugin
    from amqtt.session import Session
    from transitions import Machine

    from trellis.auth.amqtt_loading import PluginThread, error_location, path_of, post
except ImportError as error:  # This module is imported only where the settings name plugins.
    raise SettingsError(
        "amqtt.plugins", f"cannot import amqtt ({error}): pip install 'trellis-broker[amqtt]'"
    ) from error

#: Largest number of logins that wait for the plugins.
MAX_WAITING: Final = 1_024
#: Seconds that plugins may take for a login: less than the limit of a handshake, so that the client
#: gets the answer.
PLUGIN_SECONDS: Final = 8.0
#: Largest number of identities that are cached for clients that reconnect; the oldest are evicted.
#: A client that gets its previous identity also gets its publish context back, with the cached
#: routes.
MAX_IDENTITIES: Final = 1_000
#: User name of clients that give none.
ANONYMOUS_NAME: Final = "anonymous"


# -- topics


class PluginSession(Session):  # type: ignore[misc]  # amqtt ships no types
    """A Session object of amqtt, which describes a client to the plugins; always connected.

    All PluginSession objects share one state machine, because a state machine takes 24 KB of
    memory and 300 us to make. amqtt's counters of a client's traffic stay empty.
    """

    _connected: Final = Machine(states=Session.states, initial="connected")

    def _init_states(self) -> None:
        self.transitions = self._connected


def session_of(credentials: Credentials) -> PluginSession:
    """Return the Session object of amqtt for a client's credentials.

    Bytes of the password that are not UTF-8 become surrogates, which equal no valid password.
    """
    session = PluginSession()
    session.username = credentials.user
    session.password = credentials.password.decode("utf-8", "surrogateescape") or None
    session.client_id = credentials.client_id
    session.remote_address = credentials.address
    return session


class PluginTopicRules:
    """The topic plugins, which allow or deny a client to publish or subscribe to a topic.

    The plugins run in the broker's thread, which cannot wait: if a plugin waits for a result,
    access is denied.
    """

    def __init__(self, plugins: list[BaseTopicPlugin]) -> None:
        self._plugins = plugins
        self._reported: set[tuple[str, str]] = set()

    def __bool__(self) -> bool:
        return bool(self._plugins)

    def allow(self, session: PluginSession, topic: str, action: Action) -> bool:
        """True if every plugin allows the topic. The answer None is a denial, as in amqtt."""
        return all(self._ask(plugin, session, topic, action) for plugin in self._plugins)

    def _ask(
        self, plugin: BaseTopicPlugin, session: PluginSession, topic: str, action: Action
    ) -> bool:
        call = plugin.topic_filtering(session=session, topic=topic, action=action)
        try:
            call.send(None)
        except StopIteration as done:
            return bool(done.value)
        except Exception as error:  # noqa: BLE001  (every error is a denial)
            self._report(plugin, error_location(error))
            return False
        self._report(plugin, "topic_filtering must answer without an await; the topic is denied")
        with contextlib.suppress(Exception):
            call.close()
        return False

    def _report(self, plugin: BaseTopicPlugin, problem: str) -> None:
        """Log a problem of a plugin once, so that clients cannot flood the log by publishing to
        many topics.
        """
        if (path_of(plugin), problem) not in self._reported:
            self._reported.add((path_of(plugin), problem))
            logs.warning("amqtt_topic_denied", plugin=path_of(plugin), problem=problem)


class PluginApproved(Identity):
    """A client that the plugins accepted.

    The client has all permissions and needs no account.
    """


class PluginIdentity(Identity):
    """The permissions of a client, restricted by the topic plugins.

    Without these restrictions, the client has the permissions of its account, or all permissions
    if plugins have accepted its login. A publish context caches the answers of the plugins.
    """

    def __init__(
        self, name: str, rights: Identity | None, session: PluginSession, rules: PluginTopicRules
    ) -> None:
        super().__init__(name)
        self._rights = rights
        self._session = session
        self._rules = rules
        self._within: dict[str, tuple[Identity, PluginIdentity]] = {}
        if rights is not None:
            self.administrator, self.tags, self.anonymous = (
                rights.administrator,
                rights.tags,
                rights.anonymous,
            )

    def for_vhost(self, vhost: str, client_id: str = "") -> Identity | None:
        """Return the identity in a virtual host; None if the account has no permissions there.

        Each PluginIdentity belongs to one client, so results are cached by virtual host only.
        """
        if self._rights is None:
            return self
        rights = self._rights.for_vhost(vhost, client_id)
        if rights is None or rights is self._rights:
            return None if rights is None else self
        known = self._within.get(vhost)
        if known is None or known[0] is not rights:
            known = self._within[vhost] = (
                rights,
                PluginIdentity(self.name, rights, self._session, self._rules),
            )
        return known[1]

    def renewed(self, accounts: Authenticator) -> Identity | None:
        """Return the identity with the present permissions of its account.

        Return None if the account no longer exists.
        """
        if self._rights is None:
            return self
        rights = accounts.renew(self._rights)
        if rights is None or rights is self._rights:
            return None if rights is None else self
        return PluginIdentity(self.name, rights, self._session, self._rules)

    def fits(self, rights: Identity | None, session: PluginSession) -> bool:
        """True if a new login of the client may reuse this identity with its cached permissions.

        `rights` and `session`, the permissions and the Session of the new login, must equal the
        permissions and the Session of this identity.
        """
        known = self._session
        return (
            self._rights is rights
            and known.password == session.password
            and known.is_anonymous == session.is_anonymous
            and bool(known.attributes == session.attributes)
        )

    def may(self, operation: str, kind: str, name: str, vhost: str) -> None:
        if self._rights is None:
            super().may(operation, kind, name, vhost)
        else:
            self._rights.may(operation, kind, name, vhost)

    def may_route(self, exchange: str, key: str, topic: bytes) -> bool:
        allowed = self._rights is None or self._rights.may_route(exchange, key, topic)
        return allowed and self.may_publish(topic)

    def read_scope(self, exchange: str, key: str, topic_filter: str, hides_dollar: bool) -> int:
        if not self.may_subscribe(topic_filter):
            return READ_NONE
        if self._rights is None:
            return READ_ALL
        return self._rights.read_scope(exchange, key, topic_filter, hides_dollar)

    def may_publish_everything(self, exchange: str) -> bool:
        # The plugins decide about single topics, so no answer covers all topics.
        rights = self._rights
        return not self._rules and (rights is None or rights.may_publish_everything(exchange))

    def may_read_everything(self) -> bool:
        return not self._rules and (self._rights is None or self._rights.may_read_everything())

    def subscribe_rules(self) -> list[list[object]] | None:
        return None if self._rights is None else self._rights.subscribe_rules()

    def may_read(self, topic: bytes) -> bool:
        return self._rights is None or self._rights.may_read(topic)

    def may_publish(self, topic: bytes) -> bool:
        try:
            return self._rules.allow(self._session, topic.decode(), Action.PUBLISH)
        except UnicodeDecodeError:
            return False  # amqtt's topics are UTF-8 text, so no plugin can allow this topic.

    def may_subscribe(self, topic_filter: str) -> bool:
        return self._rules.allow(self._session, topic_filter, Action.SUBSCRIBE)


# -- logins


class PluginLogin:
    """A login that waits for the plugins."""

    __slots__ = ("answer", "answered", "credentials", "loop", "session", "task", "timer")

    def __init__(
        self, credentials: Credentials, answer: VerdictCallback, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.credentials = credentials
        self.answer = answer
        self.loop = loop
        self.answered = False
        self.session: PluginSession | None = None
        self.task: asyncio.Task[bool | None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class PluginAuthenticator(Authenticator):
    """An authenticator that asks the plugins, and then the accounts if no plugin has decided.

    `plugins` maps class paths to options. At most `queue` logins wait for the plugins, each up to
    `patience` seconds. The constructor raises SettingsError if a plugin cannot be started.
    """

    def __init__(
        self,
        plugins: Plugins,
        accounts: Authenticator,
        queue: int = MAX_WAITING,
        patience: float = PLUGIN_SECONDS,
    ) -> None:
        self._accounts = accounts
        self._queue = queue
        self._patience = patience
        self._thread = PluginThread(plugins)
        self._auth_plugins = [
            plugin for plugin in self._thread.plugins if isinstance(plugin, BaseAuthPlugin)
        ]
        self._rules = PluginTopicRules(
            [plugin for plugin in self._thread.plugins if isinstance(plugin, BaseTopicPlugin)]
        )
        self._identities: dict[tuple[str | None, str], Identity] = {}
        #: Number of logins that wait for the plugins now.
        self.waiting = 0
        #: Number of logins that have been passed to the plugins since the start.
        self.submitted = 0
        #: Number of logins that the plugins did not answer in time.
        self.late = 0

    def authenticate(self, credentials: Credentials, answer: VerdictCallback) -> None:
        # Plugins know passwords only: the accounts accept a client with a certificate.
        if credentials.proven or not self._auth_plugins:
            self._ask_accounts(credentials, session_of(credentials), answer)
        elif credentials.user is None and credentials.foreign:
            answer(Verdict(None, "a client in a web page of another host must give a user name"))
        elif self.waiting >= self._queue:
            answer(Verdict(None, "too many logins at once", busy=True))
        else:
            self.waiting += 1
            self.submitted += 1
            login = PluginLogin(credentials, answer, asyncio.get_running_loop())
            login.timer = login.loop.call_later(self._patience, self._give_up, login)
            post(self._thread.loop, self._begin, login)

    def close(self) -> None:
        """Close the plugins, and wait for them up to CLOSING_SECONDS."""
        self._thread.close()

    # -- in the plugins' thread

    def _begin(self, login: PluginLogin) -> None:
        if login.answered:  # The login has timed out meanwhile.
            post(login.loop, self._on_answer, login, None)
            return
        login.task = self._thread.loop.create_task(self._ask_plugins(login))
        login.task.add_done_callback(
            lambda task: post(
                login.loop, self._on_answer, login, not task.cancelled() and task.result()
            )
        )

    def _drop(self, login: PluginLogin) -> None:
        if login.task is not None:
            login.task.cancel()

    async def _ask_plugins(self, login: PluginLogin) -> bool | None:
        """Return the combined answer of the plugins: True, False, or None if no plugin decides."""
        session = login.session = session_of(login.credentials)
        answers = await asyncio.gather(*(_ask(plugin, session) for plugin in self._auth_plugins))
        opinions = [answer for answer in answers if answer is not None]
        return all(opinions) if opinions else None

    # -- in the broker's thread

    def _give_up(self, login: PluginLogin) -> None:
        """Answer a login with the verdict busy, because the plugins took too long.

        The login counts as waiting until the plugins' task for it has ended.
        """
        self.late += 1
        login.answered = True
        login.timer = None
        post(self._thread.loop, self._drop, login)
        logs.warning(
            "amqtt_login_late",
            user=login.credentials.user or ANONYMOUS_NAME,
            after=f"{self._patience:g}s",
            waiting=self.waiting,
        )
        login.answer(Verdict(None, "the amqtt plugins did not answer in time", busy=True))

    def _on_answer(self, login: PluginLogin, opinion: bool | None) -> None:
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
            login.answer(Verdict(None, "an amqtt plugin refused the login"))

    def renew(self, identity: Identity) -> Identity | None:
        if isinstance(identity, PluginApproved):
            return identity
        return (
            identity.renewed(self._accounts)
            if isinstance(identity, PluginIdentity)
            else self._accounts.renew(identity)
        )

    def identity_of(self, user: str) -> Identity | None:
        """Return a user's identity; None if the user is unknown or topic plugins are used."""
        return None if self._rules else self._accounts.identity_of(user)

    def reserved_for(self, vhost: str, client_id: str) -> list[str]:
        return self._accounts.reserved_for(vhost, client_id)

    def _ask_accounts(
        self, credentials: Credentials, session: PluginSession, answer: VerdictCallback
    ) -> None:
        def narrow(verdict: Verdict) -> None:
            if verdict.identity is not None:
                verdict.identity = self._identity(credentials, session, verdict.identity)
            answer(verdict)

        self._accounts.authenticate(credentials, narrow)

    def _identity(
        self, credentials: Credentials, session: PluginSession, rights: Identity | None
    ) -> Identity:
        """Return the identity of a client: the identity of its last login if nothing has changed.

        `rights` are the permissions of the account, None for all permissions.
        """
        if rights is not None and not self._rules:
            return rights
        key = credentials.user, credentials.client_id if self._rules else ""
        known = self._identities.pop(key, None)
        if known is None or isinstance(known, PluginIdentity) and not known.fits(rights, session):
            name = credentials.user or ANONYMOUS_NAME if rights is None else rights.name
            known = (
                PluginIdentity(name, rights, session, self._rules)
                if self._rules
                else PluginApproved(name)
            )
        if rights is None:
            known.anonymous = credentials.user is None
        while len(self._identities) >= MAX_IDENTITIES:
            evict_oldest(self._identities)
        self._identities[key] = known
        return known


async def _ask(plugin: BaseAuthPlugin, session: PluginSession) -> bool | None:
    try:
        return (
            bool(answer)
            if (answer := await plugin.authenticate(session=session)) is not None
            else None
        )
    except Exception as error:  # noqa: BLE001  (every error is a denial)
        logs.warning(
            "amqtt_login_refused",
            plugin=path_of(plugin),
            user=session.username or ANONYMOUS_NAME,
            problem=error_location(error),
        )
        return False
