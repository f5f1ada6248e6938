"""The list of a cluster's nodes for which the replicated log is kept.

The list is a global parameter of the broker, so it is durable, and the log replicates it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from broker.broker import Broker
from broker.replication.trimming import NodeList
from broker.store.contract import SettledCallback, Ticket
from broker.vhost.parameters import GLOBAL

#: The name of the global parameter.
NODES: Final = "trellis.cluster.nodes"
#: The virtual host of global parameters.
VHOST: Final = "/"


class ListedNodes:
    """The list of the nodes for which the log is kept, as a global parameter of the broker.

    The owner of the log removes a record only once all listed nodes have the record. `identity`
    identifies the replicated log; a stored list of another log is ignored.

    `call_soon` calls a function in the event loop's thread.
    """

    def __init__(
        self,
        broker: Broker,
        call_soon: Callable[[Callable[[], None]], object],
        identity: str,
    ) -> None:
        self._broker = broker
        self._call_soon = call_soon
        vhost = broker.vhosts.get(VHOST)
        value = None if vhost is None else vhost.parameters.values.get((GLOBAL, NODES))
        self._stored = self.durable = NodeList.from_value(value).of_log(identity)

    def change(self, wanted: NodeList) -> None:
        """Replace the stored list of the nodes in a later turn of the event loop.

        Any thread may call.
        """
        with suppress(RuntimeError):  # The loop is closed, because the broker stops.
            self._call_soon(lambda: self._store(wanted))

    def _store(self, wanted: NodeList) -> None:
        vhost = self._broker.vhosts.get(VHOST)
        if vhost is None or wanted == self._stored:
            return
        self._stored = wanted
        ticket = Ticket(SettledCallback(lambda: self._settled(wanted)))
        vhost.applied_policies.set_parameter(GLOBAL, NODES, wanted.value(), ticket)

    def _settled(self, stored: NodeList) -> None:
        self.durable = stored
