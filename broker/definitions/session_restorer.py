"""The interface through which a restore gives sessions back to the front end that knows them.

A front end has this interface in a broker in memory, too, which needs no other code of the restore
and of the durable store: that code would take 6 ms of each start.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mypy_extensions import i64

from broker.routing.binding import Binding
from broker.routing.subscriber import Subscriber
from broker.vhost.vhost import VirtualHost

if TYPE_CHECKING:
    from broker.store.durable import DurableStore

#: A stored definition: its fields by name.
Definition = Mapping[str, object]


class SessionRestorer:
    """The part of a front end that restores its sessions when the broker starts."""

    def restore(
        self, vhost: VirtualHost, name: str, number: i64, definition: Definition
    ) -> Subscriber:
        """Restore the session `name`, without a connection, and return it.

        `number` is the number of the session's definition in the store. Raises BrokerError if the
        definition is invalid.
        """
        raise NotImplementedError

    def restore_subscription(self, session: Subscriber, binding: Binding) -> None:
        """Add a subscription to a session; the subscription's binding is restored already."""
        raise NotImplementedError

    def restore_inbox(
        self,
        session: Subscriber,
        store: DurableStore,
        positions: array[int],
        pubrec_received: set[int],
    ) -> None:
        """Restore a session's inbox: messages that wait, or that its client has not settled.

        An inbox without messages is restored too. `positions` are the positions of the inbox's
        messages in the store, and `pubrec_received` the positions of messages that the client has
        acknowledged with a PUBREC.
        """
        raise NotImplementedError

    def restore_received(self, session: Subscriber, identifiers: list[int]) -> None:
        """Restore the packet identifiers of QoS 2 messages that await the client's PUBREL."""
        raise NotImplementedError

    def finish_restore(self) -> None:
        """Complete the restore of the sessions. Called once, after all messages were restored."""
        raise NotImplementedError
