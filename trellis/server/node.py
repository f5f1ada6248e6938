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
from trellis.server.alarms import Watch
from trellis.server.certificates import Certificates
from trellis.server.definitions_files import import_file
from trellis.server.gc_policy import GcPolicy
from trellis.server.listener_context import ListenerContext
from trellis.server.recovery import open_directory, restore
from trellis.server.store_writer import DurableStoreWriter, StoreWriter
from trellis.server.turn import LoopTurn
from trellis.settings import Settings, SettingsError

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
            limits_of(settings),
            settings.node.name,
        )
        self.storing = (
            StoreWriter(self.broker.store)
            if opened is None
            else DurableStoreWriter(opened.store, loop, failed)
        )
        self.turn = LoopTurn(loop, self.broker, self.storing)
        self.amqp = AmqpFront(self.broker, amqp_options(settings))
        self.mqtt = MqttFront(self.broker, mqtt_options(settings))
        connections = settings.limits.connections or int(SHARE * self.max_descriptors)
        self.admission = Admission(
            connections,
            settings.limits.unauthenticated_per_address,
            settings.limits.address_connections,
        )
        self.rates = PublishRates(settings.rates)
        #: Where clients come in, by listener.
        self.entrances = {
            name: ListenerContext(
                name,
                entry,
                settings,
                self.amqp if name.startswith("amqp") else self.mqtt,
                self.turn,
                self.admission,
                self.certificates.securities.get(name),
                self.rates,
            )
            for name, entry in settings.entries.items()
        }
        self.collector = GcPolicy()
        #: Listener -> HOST:PORT, once they are open; and when that began, by the monotonic clock.
        self.addresses: dict[str, str] = {}
        self.began = time.monotonic()
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
        self.watch = Watch(
            self.broker.alarms, settings.limits.memory, settings.limits.disk_free, directory
        )

    def use_profile(self, found: profile.MatchingProfile | None, serving: bool) -> None:
        """Match and remember as the profile says; `serving`: clients are here."""
        profile.apply(
            self.broker, found, self.settings.limits.routes, self.settings.matcher.default, serving
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


def limits_of(settings: Settings) -> BrokerLimits:
    limits = BrokerLimits()
    limits.message = settings.limits.message
    limits.routes = settings.limits.routes
    limits.retained = settings.mqtt.retained
    limits.retained_bytes = settings.mqtt.retained_bytes
    limits.queues = settings.limits.queues
    limits.exchanges = settings.limits.exchanges
    limits.user_connections = settings.limits.user_connections
    limits.vhost_connections = settings.limits.vhost_connections
    limits.user_channels = settings.limits.user_channels
    limits.channel_consumers = settings.limits.channel_consumers
    limits.matcher = settings.matcher.default
    limits.matchers = list(settings.matcher.allowed)
    return limits


def amqp_options(settings: Settings) -> AmqpOptions:
    options = AmqpOptions()
    options.version = trellis.__version__
    options.channel_max = settings.amqp.channel_max
    options.frame_max = settings.amqp.frame_max
    options.heartbeat = settings.amqp.heartbeat
    options.handshake_ms = int(settings.limits.handshake * 1000)
    return options


def mqtt_options(settings: Settings) -> MqttOptions:
    options = MqttOptions()
    options.handshake_ms = int(settings.limits.handshake * 1000)
    options.max_packet = settings.mqtt.max_packet
    options.max_levels = settings.mqtt.max_levels
    options.receive_maximum = settings.mqtt.receive_maximum
    options.session_expiry_s = settings.mqtt.session_expiry
    options.sessions = settings.mqtt.sessions
    options.subscriptions = settings.mqtt.subscriptions
    options.session_backlog = settings.mqtt.session_backlog
    options.topic_alias_maximum = settings.mqtt.topic_alias_maximum
    options.keep_alive_max = settings.mqtt.keep_alive_max
    options.response_prefix = settings.mqtt.response_prefix
    options.no_subscribe = list(settings.mqtt.no_subscribe)
    options.sys_interval_s = settings.mqtt.sys_interval
    options.version = trellis.__version__
    return options


def _authenticator(settings: Settings, accounts: Accounts) -> Authenticator:
    """The accounts, behind amqtt's plugins where there are some. Raises SettingsError."""
    if not settings.amqtt.plugins:
        return accounts
    from trellis.auth.amqtt_plugins import PATIENCE, PluginAuthenticator

    # A client must hear the answer before its handshake is over.
    return PluginAuthenticator(
        settings.amqtt.plugins,
        accounts,
        settings.auth.queue,
        min(PATIENCE, 0.8 * settings.limits.handshake),
    )
