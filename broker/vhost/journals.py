"""The journals of a virtual host, and its stream `$topology`.

A journal is a stream that records each message published in the virtual host. With the first
journal the stream `$topology` is declared, which records the declarations and bindings, so that a
reader of the journal can tell where a message went.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from broker.agenda import Agenda
from broker.errors import PreconditionFailed
from broker.queues.queue import Queue
from broker.routing.exchanges import Exchange
from broker.routing.planner import Planner
from broker.routing.publish_context import PublishContexts
from broker.routing.topology_stream import TOPOLOGY, TOPOLOGY_BYTES_MAX, TopologyStream
from broker.store.contract import Store
from broker.stream.queue import StreamQueue
from broker.vhost.background import TopologySnapshot
from broker.vhost.bindings import Bindings


class QueueDeclarer(Protocol):
    """The part of the class Declarations that declares the journals' streams."""

    def declare_queue(
        self, name: str, durable: bool = False, arguments: Mapping[str, object] | None = None
    ) -> Queue:
        """Return the queue of this name; create it if it does not exist."""


class Journals:
    """The journals of one virtual host; `topology` is its stream `$topology`, or None."""

    def __init__(
        self,
        vhost: str,
        agenda: Agenda,
        store: Store,
        exchanges: dict[str, Exchange],
        queues: dict[str, Queue],
        planner: Planner,
        contexts: PublishContexts,
        bindings: Bindings,
        declarations: QueueDeclarer,
    ) -> None:
        #: The name of the journal that the settings declare (`stream.journals`); "" if there is
        #: none.
        self.name = ""
        self.topology: TopologyStream | None = None
        self._vhost = vhost
        self._agenda = agenda
        self._store = store
        self._exchanges = exchanges
        self._queues = queues
        self._planner = planner
        self._contexts = contexts
        self._bindings = bindings
        self._declarations = declarations

    def record_in(self, name: str) -> None:
        """Record all messages in the stream of this name from now on; declare the stream if needed.

        Raises PreconditionFailed if a queue of another type has this name.
        """
        self.name = name
        known = self._queues.get(name)
        if known is None:
            self._declarations.declare_queue(name, True, {"x-queue-type": "stream"})
        elif not isinstance(known, StreamQueue):
            raise PreconditionFailed(
                f"the journal of vhost '{self._vhost}' cannot have the name '{name}', because a "
                "queue of another type has this name: choose another name"
            )
        self.find()
        self.declare_topology()

    def find(self) -> None:
        """Update the journals and `topology`, because a stream was declared or deleted."""
        journals = [
            queue
            for queue in self._queues.values()
            if isinstance(queue, StreamQueue)
            and (queue.arguments.journal or queue.name == self.name)
        ]
        if journals != self._planner.journals:
            self._store.count_journals(len(journals) - len(self._planner.journals))
            self._planner.journals = journals
            self._planner.retire_all()
        known = self._queues.get(TOPOLOGY)
        if not isinstance(known, StreamQueue):
            self.topology = None
        elif self.topology is None or self.topology.queue is not known:
            self.topology = TopologyStream(
                known, self._contexts.internal.count_copies, self.record_topology
            )
        self._contexts.topology = self._bindings.topology = self.topology

    def declare_topology(self) -> None:
        """Declare the topology stream if there is a journal, and begin its first snapshot."""
        if self._planner.journals and TOPOLOGY not in self._queues:
            self._declarations.declare_queue(
                TOPOLOGY,
                True,
                {"x-queue-type": "stream", "x-max-length-bytes": TOPOLOGY_BYTES_MAX},
            )
            self.record_topology(True)

    def record_topology(self, restarted: bool = False) -> None:
        """Begin a snapshot in the topology stream, if there is one.

        `restarted` is True if the rows before the snapshot are no longer valid, as after a restart.
        """
        if self.topology is not None:
            TopologySnapshot(
                self._agenda, self.topology, self._exchanges, self._queues, restarted
            ).run_first_slice()
