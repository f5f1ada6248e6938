"""The broker node: the broker with its front ends, event loop turn, store, logins and limits."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trellis
from broker.access.identity import Authenticator
from broker.broker import Broker
from broker.errors import BrokerError
from broker.limits import BrokerLimits
from broker.routing.topic_groups import TopicGroups
from broker.store.audit import Actor, AuditTrail
from broker.store.disk import Disk, RealDisk
from broker.store.memory import MemoryStore
from protocols.amqp.front import AmqpFront
from protocols.amqp.options import AmqpOptions
from protocols.mqtt.front import MqttFront
from protocols.mqtt.options import MqttOptions
from trellis import logs
from trellis.auth.authenticate import Accounts
from trellis.auth.rates import PublishRates
from trellis.bridge.contract import SHOVEL
from trellis.bridge.definitions import cluster_name, local_amqp, mqtt_bridge
from trellis.bridge.service import BridgeService
from trellis.process import raise_descriptor_limit
from trellis.server import matching_profile as profile
from trellis.server.admission import Admission
from trellis.server.alarms import AlarmWatch
from trellis.server.audit_log import AuditLog
from trellis.server.certificates import Certificates
from trellis.server.clock_floor import ClockFloor
from trellis.server.definitions_files import import_file
from trellis.server.descriptors import DescriptorShares
from trellis.server.disk_reserve import CATALOG_BYTES, SEGMENTS, DiskReserve
from trellis.server.gc_policy import GcPolicy
from trellis.server.listener_context import ListenerContext
from trellis.server.memory import MemoryAccount
from trellis.server.refusals import RefusalLog
from trellis.server.settings_in_force import SettingsInForce
from trellis.server.store_writer import StoreWriter, pause_writer
from trellis.server.topic_collector import TopicCollector
from trellis.server.turn import LoopTurn
from trellis.settings import Loaded, Settings, SettingsError, fill
from trellis.topic_summaries.service import TopicSummaries

if TYPE_CHECKING:
    from broker.replication.figures import ClusterFigures
    from broker.store.opening import OpenedStore
    from trellis.archive.service import ArchiveService
    from trellis.auth.tokens.authenticator import TokenAuthenticator
    from trellis.telemetry.service import TelemetryService

#: Largest number of filters in `metrics.topics`: each is compared with each unroutable topic.
TOPIC_GROUPS_MAX: Final = 100
#: After a change of a role, 1 / ROLE_SHARE of the usual number of connections and sessions is
#: reviewed in a turn, because the permissions of each user are made anew, in 50 to 150 us.
ROLE_SHARE: Final = 16
#: Free bytes, beyond `limits.disk_free`, that files fetched from the archive must leave on the
#: disk, so that these files do not raise the disk alarm.
ARCHIVE_DISK_FREE: Final = 512 << 20
#: An HTTP request waits for the archive for at most this share of the time that the gateway has for
#: its answer.
HTTP_SHARE: Final = 0.8


class BrokerNode:
    """A broker with all its parts except HTTP.

    The constructor runs in the event loop of the broker.
    """

    def __init__(
        self,
        settings: Settings,
        accounts: Accounts,
        directory: Path | None,
        failed: Callable[[str], None],
        disk: Disk | None = None,
        opened: OpenedStore | None = None,
    ) -> None:
        """Build the parts, and restore the broker's state from the data directory.

        `directory` is None if nothing is stored on disk. `failed` is called with the reason when
        the store can no longer be written. `opened` is the store of the directory if the caller has
        opened the store. Raises StoreError, SettingsError.
        """
        self.settings = settings
        self.settings_in_force = SettingsInForce(Loaded(settings, {}))
        self.accounts = accounts
        self.certificates = Certificates(settings)
        self.directory = directory
        self.max_descriptors = raise_descriptor_limit()
        self.descriptors = DescriptorShares(self.max_descriptors)
        loop = asyncio.get_running_loop()
        self.disk = disk = disk or RealDisk(
            0 if directory is None else self.descriptors.spares, pause_writer
        )
        # The modules of the durable store are imported where they are needed, because a broker in
        # memory does not need them.
        if opened is None and directory is not None:
            from trellis.server.recovery import open_directory

            opened = open_directory(disk, directory, settings.store)
        authenticator = _authenticator(settings, accounts)
        #: The authenticator for tokens; None if the settings name no keys.
        self.tokens = _tokens(settings, authenticator)
        self.broker = Broker(
            MemoryStore() if opened is None else opened.store,
            self.tokens or authenticator,
            lambda: uuid.uuid4().hex,
            fill(BrokerLimits(), settings),
            settings.node.name,
        )
        #: The reserve of disk space for settlements; None if nothing is stored on disk.
        self.reserve = (
            None
            if directory is None
            else DiskReserve(
                disk,
                directory,
                SEGMENTS * settings.store.segment + CATALOG_BYTES if settings.store.reserve else 0,
            )
        )
        #: The archive of streams; None if the settings name none.
        self.archive = _archive(settings, directory, disk)
        self.broker.streams.archive = self.archive
        #: The summaries of the topics of streams; None if the streams are not in files.
        self.topic_summaries = (
            TopicSummaries() if directory is not None and isinstance(disk, RealDisk) else None
        )
        self.broker.streams.full_segments = self.topic_summaries
        #: The links to other brokers.
        self.bridges = BridgeService(self.broker, self._end_shovel)
        if settings.bridge and find_spec("paho") is None:
            raise SettingsError(
                "bridge: paho-mqtt is not installed; pip install 'trellis-broker[bridge]'"
            )
        #: The telemetry, for distributed tracing; None without `telemetry.enabled`.
        self.telemetry = _telemetry(settings, self.broker)
        self.store_writer = StoreWriter(self.broker.store)
        if opened is not None:
            from trellis.server.durable_store_writer import DurableStoreWriter

            self.store_writer = DurableStoreWriter(opened.store, loop, failed, self.reserve)
        if len(settings.metrics.topics) > TOPIC_GROUPS_MAX:
            raise SettingsError(
                f"metrics.topics: names {len(settings.metrics.topics)} topic filters; the limit is "
                f"{TOPIC_GROUPS_MAX}; remove some"
            )
        if settings.metrics.topics:
            self.broker.count_topics(TopicGroups(settings.metrics.topics))
        self.refusals = RefusalLog(loop)
        #: The audit log; None if the settings name no file.
        self.audit = (
            AuditLog(Path(settings.log.audit).expanduser(), loop) if settings.log.audit else None
        )
        #: A function that returns the metrics of this node in its cluster; None without a cluster.
        self.cluster_figures: Callable[[], ClusterFigures] | None = None
        #: A function that hands the log of the cluster over to the standby with a name ("" chooses
        #: one), and returns its name; None without a cluster.
        self.switch: Callable[[str], Awaitable[str]] | None = None
        #: Aborts the connections of the HTTP API's clients.
        self.abort_http: Callable[[], None] = lambda: None
        self.turn = LoopTurn(loop, self.broker, self.store_writer)
        if opened is not None and opened.store.shipping is not None:
            ClockFloor(self.turn, opened.store.shipping.wall())
        self.amqp = AmqpFront(self.broker, fill(AmqpOptions(trellis.__version__), settings))
        self.mqtt = MqttFront(self.broker, fill(MqttOptions(trellis.__version__), settings))
        if opened is not None and opened.store.shipping is not None:
            self.mqtt.options.will_grace_ms = int(settings.cluster.grace * 1000)
        for front in self.fronts:
            front.log = self.refusals.add
        if opened is not None:
            opened.store.log.open_max = self.descriptors.log_files
        for files in (self.broker.streams.writing, self.broker.streams.reading):
            files.most = self.descriptors.stream_files
        self.descriptors.reserve_open()
        self.admission = Admission(
            self._max_connections(),
            settings.limits.unauthenticated_per_address,
            settings.limits.address_connections,
            self.refusals.add,
        )
        self.rates = PublishRates(settings.rates)
        #: Contexts of the listeners for clients, by name.
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
        self.topic_collector = TopicCollector(self.broker)
        #: Addresses (HOST:PORT) of the open listeners by name.
        self.addresses: dict[str, str] = {}
        #: Time of the start in seconds of the monotonic clock.
        self.started_at = time.monotonic()
        #: True while clients may connect; False during start and stop.
        self.ready = False
        if opened is not None:
            from trellis.server.recovery import restore

            restore(opened, self.broker, self.mqtt.sessions)
        accounts.users = self.broker.users
        if self.tokens is not None:
            self.tokens.find_role = self.broker.users.roles.by_name.get
            self.tokens.start()
        with self._audited():
            if settings.definitions.file:
                import_file(self.broker, settings.definitions.file)
            set_journals(self.broker, settings.stream.journals)
        if settings.matcher.profile:
            self.use_profile(
                profile.read(settings.matcher.profile, settings.matcher.allowed), serving=False
            )
        self.broker.users.changed.append(self.review)
        self.mqtt.reauthorize()
        self.alarm_watch = AlarmWatch(
            self.broker.alarms,
            settings.limits.memory,
            settings.limits.disk_free,
            self.reserve,
            MemoryAccount(self.broker, self.amqp, self.mqtt, self.store_writer),
            self.store_writer,
        )

        if self.archive is not None:
            self.archive.start(self.broker.agenda)
        if self.topic_summaries is not None:
            self.topic_summaries.start()
        if self.telemetry is not None:
            self.telemetry.start()

    def _audited(self) -> AbstractContextManager[None]:
        """Begin the audit trail; return a context manager for changes that the settings request.

        The audit log records changes within this context as made by the settings. The caller
        restores the broker's state before this call, so restored definitions are not recorded.
        Without an audit log, the context manager has no effect.
        """
        if self.audit is None:
            return nullcontext()
        self.broker.store.audit = trail = AuditTrail(self.audit.write)
        return trail.by(Actor("", "", "settings"))

    def _max_connections(self) -> int:
        """Return `limits.connections`, or a lower number if there are too few descriptors."""
        wanted, possible = self.settings.limits.connections, self.descriptors.clients
        if wanted > possible:
            logs.warning(
                "connections_limited",
                connections=possible,
                wanted=wanted,
                descriptors=self.max_descriptors,
                note="raise the descriptor limit (ulimit -n) to allow limits.connections",
            )
        return min(wanted or possible, possible)

    def use_profile(self, matching_profile: profile.MatchingProfile | None, serving: bool) -> None:
        """Apply a matching profile; `serving` is True while clients are connected."""
        profile.apply(
            self.broker,
            matching_profile,
            self.settings.limits.routes,
            self.settings.matcher.default,
            serving,
        )

    def close(self) -> None:
        """Release the disk reserve and the spare file descriptors, and end the workers."""
        if self.reserve is not None:
            self.reserve.close()
        if self.archive is not None:
            self.archive.close()
        self.bridges.close()
        if self.telemetry is not None:
            self.telemetry.close()
        self.disk.close_spares()

    def start_bridges(self) -> None:
        """Start the links to other brokers. The listeners must be open."""
        cluster = cluster_name(self.settings)
        bridges = [mqtt_bridge(one, self.addresses, cluster) for one in self.settings.bridge]
        self.bridges.start(bridges, local_amqp(self.settings, self.addresses))

    def _end_shovel(self, vhost: str, name: str) -> None:
        """Delete the parameter of a shovel that has moved all its messages."""
        known = self.broker.vhosts.get(vhost)
        if known is not None:
            known.parameters.clear(SHOVEL, name)
            self.turn.schedule()

    def review(self, user: str = "") -> None:
        """Begin to renew the permissions of all connections and sessions, after a change.

        `user` is the name of a changed or deleted user. `user` is "" after a change of a role or of
        the settings: the permissions of many users may then change, so fewer connections and
        sessions are handled at once.
        """
        for front in self.fronts:
            front.reauthorize(1 if user else ROLE_SHARE)

    @property
    def logins(self) -> dict[str, dict[str, int]]:
        """The number of logins by protocol, then by outcome."""
        return {front.name: front.logins for front in self.fronts}

    @property
    def fronts(self) -> tuple[AmqpFront, MqttFront]:
        """Return the front ends of all protocols."""
        return self.amqp, self.mqtt


def set_journals(broker: Broker, journals: tuple[str, ...]) -> None:
    """Make each stream in `journals`, written VHOST=NAME, record all messages of its virtual host.

    Raises SettingsError.
    """
    for journal in journals:
        vhost, _, name = journal.rpartition("=")
        try:
            broker.create_vhost(vhost).declarations.journals.record_in(name)
        except BrokerError as error:
            raise SettingsError(f"stream.journals: {error}") from error


def _archive(settings: Settings, directory: Path | None, disk: Disk) -> ArchiveService | None:
    """Return the archive that `stream.archive` names; None if it is "". Raises SettingsError."""
    stream = settings.stream
    if not stream.archive:
        return None
    if directory is None:
        raise SettingsError(
            "stream.archive: data.dir is :memory:, so there are no segments to upload; set a data "
            "directory"
        )
    if find_spec("pyarrow") is None:
        raise SettingsError(
            "stream.archive: pyarrow is not installed; pip install 'trellis-broker[archive]'"
        )
    # Imported here, because a broker without an archive does not need the modules.
    from trellis.archive.contract import Open
    from trellis.archive.service import ArchiveService

    try:
        return ArchiveService(
            Open(
                stream.archive,
                str(directory / "archive"),
                settings.limits.disk_free + ARCHIVE_DISK_FREE,
            ),
            stream.archive_backlog,
            stream.archive_cache,
            HTTP_SHARE * settings.limits.handshake,
            disk,
        )
    except OSError as error:
        raise SettingsError(
            f"stream.archive: cannot create {directory / 'archive'}: {error.strerror}; check the "
            "permissions of the data directory"
        ) from error


def _tokens(settings: Settings, others: Authenticator) -> TokenAuthenticator | None:
    """Return the authenticator for tokens, which asks `others` about logins without a token.

    Return None if the settings name no keys. Raises SettingsError.
    """
    if not settings.jwt.enabled:
        return None
    # Imported here, because a broker without tokens does not need the modules.
    from trellis.auth.tokens.authenticator import TokenAuthenticator

    return TokenAuthenticator(settings.jwt, others)


def _telemetry(settings: Settings, broker: Broker) -> TelemetryService | None:
    """Return the telemetry that the settings request; None if it is disabled.

    Raises SettingsError.
    """
    if not settings.telemetry.enabled:
        return None
    # Imported here, because a broker without telemetry does not need the modules.
    from trellis.telemetry.service import telemetry_from_settings

    return telemetry_from_settings(settings, broker)


def _authenticator(settings: Settings, accounts: Accounts) -> Authenticator:
    """Return the authenticator for passwords: `accounts` if the settings name no plugins.

    If the settings name plugins, return an authenticator that asks the plugins before `accounts`.
    Raises SettingsError if a plugin cannot be started.
    """
    if not settings.amqtt.plugins:
        return accounts
    from trellis.auth.amqtt_plugins import PLUGIN_SECONDS, PluginAuthenticator

    # Plugins must answer before the client's handshake times out.
    return PluginAuthenticator(
        settings.amqtt.plugins,
        accounts,
        settings.auth.queue,
        min(PLUGIN_SECONDS, 0.8 * settings.limits.handshake),
    )
