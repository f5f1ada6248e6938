"""The running broker: core, front ends, turn, and everything that listings and metrics ask."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import trellis
from broker.access.identity import Authenticator
from broker.broker import Broker
from broker.errors import BrokerError
from broker.limits import BrokerLimits
from broker.store.disk import Disk, RealDisk
from broker.store.memory import MemoryStore
from protocols.amqp.front import AmqpFront
from protocols.amqp.options import AmqpOptions
from protocols.mqtt.front import MqttFront
from protocols.mqtt.options import MqttOptions
from trellis.auth.authenticate import Accounts
from trellis.auth.jwt import TokenAuthenticator
from trellis.auth.rates import PublishRates
from trellis.process import raise_descriptor_limit
from trellis.server import matching_profile as profile
from trellis.server.admission import Admission
from trellis.server.alarms import AlarmWatch
from trellis.server.certificates import Certificates
from trellis.server.definitions_files import import_file
from trellis.server.gc_policy import GcPolicy
from trellis.server.listener_context import ListenerContext
from trellis.server.recovery import open_directory, restore
from trellis.server.store_writer import DurableStoreWriter, StoreWriter
from trellis.server.turn import LoopTurn
from trellis.settings import Settings, SettingsError, fill

#: The part of the descriptor limit that connections may have.
SHARE = 0.9


class BrokerNode:
    """Built once, on the loop that runs it. `directory` is where data is kept, None for nowhere."""

    def __init__(
        self,
        settings: Settings,
        accounts: Accounts,
        directory: Path | None,
        failed: Callable[[str], None],
        disk: Disk | None = None,
    ) -> None:
        """Reads what is in the directory. `failed` is told why nothing can be written there any
        more. Raises StoreError, SettingsError."""
        self.settings = settings
        self.accounts = accounts
        self.certificates = Certificates(settings)
        self.directory = directory
        self.max_descriptors = raise_descriptor_limit()
        loop = asyncio.get_running_loop()
        opened = (
            None
            if directory is None
            else open_directory(disk or RealDisk(), directory, settings.store)
        )
        authenticator = _authenticator(settings, accounts)
        #: Who judges tokens, where they are taken.
        self.tokens = TokenAuthenticator(settings.jwt, authenticator) if settings.jwt.keys else None
        self.broker = Broker(
            MemoryStore() if opened is None else opened.store,
            self.tokens or authenticator,
            lambda: uuid.uuid4().hex,
            fill(BrokerLimits(), settings),
            settings.node.name,
        )
        self.store_writer = (
            StoreWriter(self.broker.store)
            if opened is None
            else DurableStoreWriter(opened.store, loop, failed)
        )
        self.turn = LoopTurn(loop, self.broker, self.store_writer)
        self.amqp = AmqpFront(self.broker, fill(AmqpOptions(trellis.__version__), settings))
        self.mqtt = MqttFront(self.broker, fill(MqttOptions(trellis.__version__), settings))
        connections = settings.limits.connections or int(SHARE * self.max_descriptors)
        self.admission = Admission(
            connections,
            settings.limits.unauthenticated_per_address,
            settings.limits.address_connections,
        )
        self.rates = PublishRates(settings.rates)
        #: Where clients come in, by listener.
        self.listener_contexts = {
            name: ListenerContext(
                name,
                entry,
                settings,
                self.amqp if name.startswith("amqp") else self.mqtt,
                self.turn,
                self.admission,
                self.certificates.contexts.get(name),
                self.rates,
            )
            for name, entry in settings.protocol_listeners.items()
        }
        self.gc_policy = GcPolicy()
        #: Listener -> HOST:PORT, once they are open; and when that began, by the monotonic clock.
        self.addresses: dict[str, str] = {}
        self.started_at = time.monotonic()
        #: Whether clients may come: not while starting, and not while stopping.
        self.ready = False
        if opened is not None:
            restore(opened, self.broker, self.mqtt.sessions)
        accounts.users = self.broker.users
        if settings.definitions.file:
            import_file(self.broker, settings.definitions.file)
        set_journals(self.broker, settings.stream.journals)
        if settings.matcher.profile:
            self.use_profile(
                profile.read(settings.matcher.profile, settings.matcher.allowed), serving=False
            )
        self.broker.users.changed.append(self.review)
        self.mqtt.review()
        self.alarm_watch = AlarmWatch(
            self.broker.alarms, settings.limits.memory, settings.limits.disk_free, directory
        )

    def use_profile(self, matching_profile: profile.MatchingProfile | None, serving: bool) -> None:
        """Match and remember as the profile says; `serving`: clients are here."""
        profile.apply(
            self.broker,
            matching_profile,
            self.settings.limits.routes,
            self.settings.matcher.default,
            serving,
        )

    def review(self, user: str = "") -> None:
        """Somebody's rights changed: whoever is here, or has left a session, is looked at again."""
        for front in self.fronts:
            front.review()

    @property
    def logins(self) -> dict[str, dict[str, int]]:
        """Logins by outcome, of each protocol."""
        return {front.name: front.logins for front in self.fronts}

    @property
    def fronts(self) -> tuple[AmqpFront, MqttFront]:
        return self.amqp, self.mqtt


def set_journals(broker: Broker, journals: tuple[str, ...]) -> None:
    """Have the streams of these names, `VHOST=NAME`, record what is published in their virtual
    hosts. Raises SettingsError.
    """
    for journal in journals:
        vhost, _, name = journal.rpartition("=")
        try:
            broker.create_vhost(vhost).record_in(name)
        except BrokerError as error:
            raise SettingsError(f"stream.journals: {error}") from error


def _authenticator(settings: Settings, accounts: Accounts) -> Authenticator:
    """The accounts, behind amqtt's plugins where there are some. Raises SettingsError."""
    if not settings.amqtt.plugins:
        return accounts
    from trellis.auth.amqtt_plugins import PLUGIN_SECONDS, PluginAuthenticator

    # A client must hear the answer before its handshake is over.
    return PluginAuthenticator(
        settings.amqtt.plugins,
        accounts,
        settings.auth.queue,
        min(PLUGIN_SECONDS, 0.8 * settings.limits.handshake),
    )
