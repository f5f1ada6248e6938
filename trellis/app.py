"""The composition root: build a broker from settings, serve until a stop, return an exit code."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

import trellis
from broker.replication.errors import ReplicationError
from broker.store.disk import Disk, Lock, RealDisk, StoreError
from trellis import logs
from trellis.auth.authenticate import Accounts
from trellis.auth.settings_users import authenticator_from_settings
from trellis.http.service import HTTP_LISTENERS, HttpService
from trellis.process import raise_descriptor_limit
from trellis.server.data_directory import open_data_directory
from trellis.server.descriptors import DescriptorShares
from trellis.server.link_factory import link_factory
from trellis.server.listener import BoundListener, ListenError, bind
from trellis.server.node import BrokerNode
from trellis.server.offline_audit import OfflineAudit
from trellis.server.reachability import log_reachability
from trellis.server.reload import Read, SettingsReload
from trellis.server.service_manager import ServiceManager
from trellis.server.settings_in_force import SettingsInForce
from trellis.server.shutdown import shut_down
from trellis.server.signals import SignalHandlers
from trellis.server.store_writer import pause_writer
from trellis.settings import Loaded, NodeSettings, Settings, SettingsError

if TYPE_CHECKING:
    from broker.store.opening import OpenedStore
    from trellis.cluster.membership import Membership
    from trellis.switching import Switching

#: Exit codes: a clean stop, a store that can no longer be written, and a start that failed for a
#: reason that the operator can correct.
DONE, FAILED, MISCONFIGURED = 0, 1, 2
#: Number of bytes by which each waiting row increases the size of a batch on a node of a cluster,
#: because such a node holds the whole encoded batch in memory. The number is about the size of an
#: encoded row without its body.
ROW_OVERHEAD: Final = 256


def run(
    settings: Settings,
    read: Read | None = None,
    disk: Disk | None = None,
    membership: Membership | None = None,
    files: Sequence[str] = (),
    sources: Mapping[str, str] | None = None,
    adopt: bool = False,
) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code.

    `read` is called at SIGHUP, and returns the new settings. The store is written to `disk`, by
    default the file system of the operating system. `membership` is by default the membership that
    the settings define. `files` are the settings files that were read, for a log line. `sources`
    has the source of each setting by key. If `adopt` is True, the data directory first leaves its
    cluster for good. A failed start prints one line to stderr.
    """
    logs.set_up(settings.log.level)
    # A SIGHUP before `SignalHandlers` is installed would end the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        member = membership or join_cluster(settings)
        app = App(settings, read, disk, member, files, sources, adopt)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(app.serve())
    except (ListenError, ReplicationError, SettingsError, StoreError) as error:
        print(f"trellis: {error}", file=sys.stderr)
        return MISCONFIGURED
    finally:
        # The end of the interpreter examines all objects for cycles, which takes seconds for
        # millions of messages. The process ends, so nothing need be collected.
        gc.freeze()
    if app.failure:
        _print_failure(app.failure)
        return FAILED
    return DONE


def _print_failure(reason: str) -> None:
    """Print the reason why the store can no longer be written."""
    print(
        f"trellis: stopped: cannot write to the data directory: {reason}; correct this cause, then "
        "start the broker again",
        file=sys.stderr,
    )


def join_cluster(settings: Settings) -> Membership | None:
    """Return this node's membership in the cluster that the settings name; None without a cluster.

    Raises SettingsError.
    """
    if not settings.cluster.enabled:
        return None
    if settings.node.name == NodeSettings().name:
        raise SettingsError(
            f"node.name: '{settings.node.name}' is the default; give each node of the cluster a "
            "name that no other node has"
        )
    try:
        from trellis.cluster.joining import membership_from_settings
    except ImportError as error:
        raise SettingsError(
            f"cluster.servers: Kafka's client cannot be imported ({error}); "
            "pip install 'trellis-broker[cluster]'"
        ) from None
    return membership_from_settings(settings)


class App:
    """One broker process, from its start to its stop."""

    def __init__(
        self,
        settings: Settings,
        read: Read | None = None,
        disk: Disk | None = None,
        membership: Membership | None = None,
        files: Sequence[str] = (),
        sources: Mapping[str, str] | None = None,
        adopt: bool = False,
    ) -> None:
        self.settings = settings
        self._adopt = adopt
        self._loaded = Loaded(settings, dict(sources or {}))
        self._files = files
        self._membership = membership
        #: Hands the log of the cluster over; None without a cluster, and before the node is active.
        self._switching: Switching | None = None
        self._read = read or (lambda: self._loaded)
        self._disk = disk
        self._manager = ServiceManager()
        self._stop = asyncio.Event()
        #: True after the first call of `stop`. The second call sets `_hurry`.
        self._stop_requested = False
        self._hurry = asyncio.Event()
        self._signals = SignalHandlers(self.stop, self.reload)
        self._skip_grace = False
        #: True if SIGHUP came before this node was active.
        self._reload_due = False
        #: Addresses (HOST:PORT) of the open listeners by name.
        self.addresses: dict[str, str] = {}
        self.node: BrokerNode | None = None
        self.http: HttpService | None = None
        self.reloading: SettingsReload | None = None
        #: The reason why the store can no longer be written; "" if it can be written.
        self.failure = ""
        #: Set when clients may connect.
        self.started = asyncio.Event()

    def stop(self) -> None:
        """Request a clean stop. A second call ends the waits for clients and for a standby."""
        self._skip_grace = self._stop.is_set()
        if self._stop_requested:
            self._hurry.set()
        self._stop_requested = True
        self._manager.notify("STOPPING=1")
        self._stop.set()

    def fail(self, reason: str) -> None:
        """Stop without a wait for clients, because the store can no longer be written."""
        self.failure = reason
        self._skip_grace = True
        self._stop.set()

    def reload(self) -> None:
        """Read the settings again; a standby reads them only when it becomes the active node."""
        if self.reloading is not None:
            self.reloading.request()
            return
        self._reload_due = True
        logs.info(
            "reload_postponed",
            note="this node reads the settings again when it becomes active",
        )

    async def serve(self) -> None:
        """Start, print the ready line, serve until `stop`, and stop cleanly.

        A node of a cluster first follows the replicated log until it owns the log.

        Raises SettingsError, ListenError, StoreError, ReplicationError.
        """
        settings = self.settings
        directory = open_data_directory(settings)
        lock = None if directory is None else Lock(str(directory))
        watch = asyncio.create_task(self._manager.watch())
        try:
            if self._adopt:
                self._leave_for_good(directory)
            accounts = authenticator_from_settings(settings, directory)
            bound: dict[str, BoundListener] = {}
            opened: OpenedStore | None = None
            try:
                if self._membership is None:
                    self._bind(bound)
                else:
                    # Imported here, because only nodes of a cluster need the module; and before a
                    # takeover, at which this process may have no free file descriptor.
                    from trellis.switching import lease_to

                    opened = await self._take_over(self._membership, accounts, directory, bound)
                    if opened is None:
                        return
                node = self.node = BrokerNode(
                    settings, accounts, directory, self.fail, self._disk, opened
                )
                if self._membership is not None:
                    assert opened is not None
                    self._switching = lease_to(node, self._membership, opened)
                opened = None  # The restored state is in the broker now, so free this copy of it.
                http = self.http = HttpService(node)
                try:
                    await self._serve(node, http, bound)
                finally:
                    await node.store_writer.close()
                    if node.topic_summaries is not None:
                        await node.topic_summaries.stop()
                    node.close()
                    node.gc_policy.close()
                    node.broker.authenticator.close()
            finally:
                for ports in bound.values():
                    ports.close()
                accounts.close()
                if self._membership is not None and self._membership.ownership is not None:
                    await asyncio.to_thread(self._membership.ownership.stop)
        finally:
            self._signals.remove()
            watch.cancel()
            self._manager.close()
            # While a thread waits for the disk, the lock stays: another broker must not open the
            # files before this process has ended.
            if lock is not None and (self.node is None or not self.node.store_writer.stuck):
                lock.release()

    def _leave_for_good(self, directory: Path | None) -> None:
        """Take the data directory out of its cluster, for `trellis serve --adopt`.

        Afterwards a broker without a cluster may use the directory. Raises SettingsError (also if
        the settings name a cluster), StoreError.
        """
        if self._membership is not None:
            raise SettingsError(
                "cluster.servers: `trellis serve --adopt` runs a broker without a cluster, so "
                "leave the section [cluster] out; to begin a new topic with this data directory, "
                "run `trellis cluster adopt`"
            )
        if directory is None:
            return
        from trellis.server.recovery import adopt_directory

        with OfflineAudit(self.settings, "trellis serve --adopt") as audit:
            left = adopt_directory(self._disk or RealDisk(), directory)
            if left:
                audit.add("adopt", "directory", str(directory), {"cluster": left})

    async def _take_over(
        self,
        membership: Membership,
        accounts: Accounts,
        directory: Path | None,
        bound: dict[str, BoundListener],
    ) -> OpenedStore | None:
        """Follow the cluster until this node owns its log, and return the open store.

        While the node follows, a StandbyServer (standby.py) answers on the ports. Return None if
        the broker is stopped before this node owns the log. Raises SettingsError, ListenError,
        StoreError, ReplicationError.
        """
        # Imported here, because only nodes of a cluster need the modules.
        from trellis.server.recovery import codecs, report
        from trellis.standby import StandbyServer, describe_node

        settings = self.settings
        if directory is None:
            raise SettingsError(
                "data.dir: a node of a cluster needs a data directory; set data.dir "
                "(TRELLIS_DATA_DIR, --data-dir)"
            )
        shares = DescriptorShares(raise_descriptor_limit())
        disk = self._disk = self._disk or RealDisk(shares.spares, pause_writer)
        standby = StandbyServer(settings, accounts, membership)
        try:
            self._signals.install()
            standby.open(bound)
            self.addresses = {name: ports.address for name, ports in bound.items()}
            membership.description = describe_node(settings, self.addresses)
            print(f"following {_listed(self.addresses)}", flush=True)
            self._manager.notify("READY=1", f"STATUS=following {_listed(self.addresses)}")
            followed = await membership.follow(
                disk, directory, settings.store.segment, codecs(), report, self._stop
            )
            if followed is None:
                return None
            ownership, opened = followed
        finally:
            await standby.close()
        opened.store.window = settings.store.window
        opened.store.shipping = ownership
        opened.store.row_overhead = ROW_OVERHEAD
        return opened

    async def _serve(
        self, node: BrokerNode, http: HttpService, bound: dict[str, BoundListener]
    ) -> None:
        tasks = [
            asyncio.create_task(node.turn.check_deadlines()),
            asyncio.create_task(node.gc_policy.run(node.turn)),
            asyncio.create_task(node.alarm_watch.run()),
            asyncio.create_task(node.topic_collector.run()),
        ]
        for task in tasks:
            # These tasks end only by an error, which stops the broker.
            task.add_done_callback(lambda _: self._stop.set())
        node.settings_in_force = SettingsInForce(self._loaded, self._files)
        reloading = self.reloading = SettingsReload(node, self._read, http.reload)
        try:
            self._signals.install()
            if self._reload_due:
                reloading.request()
            self._listen(node, http, bound)
            self._announce(node)
            await self._stop.wait()
            if self._switching is not None:
                await self._leave_cluster(self._switching)
            await shut_down(
                node,
                [ports for name, ports in bound.items() if name not in HTTP_LISTENERS],
                self.settings.shutdown.grace,
                lambda: self._skip_grace,
            )
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            self._signals.remove()
            for task in tasks:
                task.cancel()
            await reloading.close()
            await http.stop()

    def _bind(self, bound: dict[str, BoundListener]) -> None:
        """Open the ports that are not in `bound`, and add them. Raises ListenError."""
        for name, listener in self.settings.listeners.items():
            if name not in bound:
                bound[name] = bind(name, listener)

    def _listen(self, node: BrokerNode, http: HttpService, bound: dict[str, BoundListener]) -> None:
        # Ports on which a standby does not answer were closed until now: their clients would have
        # waited in the kernel while the store was opened.
        self._bind(bound)
        node.gc_policy.settle()
        for name, ports in bound.items():
            if name in HTTP_LISTENERS:
                http.open(name, ports)
            else:
                ports.serve(
                    link_factory(node.listener_contexts[name]), node.admission.count_refusal
                )
            self.addresses[name] = ports.address
        node.addresses = self.addresses
        node.ready = True
        node.start_bridges()
        if self._membership is not None:
            self._membership.state = "active"

    def _announce(self, node: BrokerNode) -> None:
        data = "memory" if node.directory is None else str(node.directory)
        logs.info(
            "start",
            version=trellis.__version__,
            compiled="yes" if trellis.compiled() else "no",
            data=data,
            settings=",".join(self._files) or "no file",
            pid=os.getpid(),
        )
        log_reachability(self.settings, node.accounts)
        if node.directory is None:
            logs.warning("memory_only", note="data.dir is :memory:, so no data survives a stop")
        if not trellis.compiled():
            logs.warning(
                "not_compiled",
                note="the broker's modules are not compiled, so the broker is many times slower; "
                "see README, Compiled or not",
            )
        node.turn.begin_counting()
        print(f"ready {_listed(self.addresses)}", flush=True)
        self._manager.notify("READY=1", f"STATUS=ready {_listed(self.addresses)}")
        self.started.set()

    async def _leave_cluster(self, switching: Switching) -> None:
        """Hand the log over to a standby, and end the process; return if no standby can take over.

        The process ends without closing files and connections: after the handover, all entries of
        its store are durable, and the standby serves the clients.
        """
        try:
            name = await switching.leave(bool(self.failure), self._hurry)
        except ReplicationError as error:
            logs.info("cluster_left", reason=str(error))
            return
        if self.node is not None and self.node.audit is not None:
            await self.node.audit.finish()
        logs.info("stopped", handed_over=name)
        if self.failure:
            _print_failure(self.failure)
        sys.stderr.flush()
        os._exit(FAILED if self.failure else DONE)


def _listed(addresses: dict[str, str]) -> str:
    """Return listener names and addresses as one text, for the log: `amqp=HOST:PORT mqtt=...`."""
    return " ".join(f"{name}={address}" for name, address in addresses.items())
