"""Subscribers: the destinations that relay messages to a connection without a queue in between.

A session of a front end, or a group of sessions that share a subscription, is a subscriber.
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.access.identity import Identity
from broker.messages.fates import AUTO_ACKNOWLEDGED, DROPPED, OFFLINE
from broker.messages.message import Message
from broker.messages.outlet import Outlet
from broker.queues.destination import Destination
from broker.queues.private import Inbox


class RelayFormat:
    """The wire format of subscribers that can get the same encoded packet.

    Each bit of `apart` stands for one kind of publisher, such as clients of another MQTT level,
    whose packets must be encoded again for these subscribers. A plan adds the bits to its
    `slow_path_mask`.
    """

    def __init__(self, apart: i64) -> None:
        self.apart: i64 = apart


class Subscriber(Destination):
    """A destination that receives a message in one of two ways, depending on the QoS.

    Messages with QoS 1 or 2 are put into the subscriber's inbox queue. Messages with QoS 0 are
    written to the outlet of its connection, and are lost while the subscriber has no connection.
    """

    def __init__(self, name: str, inbox: Inbox, relay_format: RelayFormat) -> None:
        super().__init__(name)
        self.inbox = inbox
        self.relay_format = relay_format
        self.outlet: Outlet | None = None
        #: The permissions of the user of this subscriber; None for a group, and before a client of
        #: the session has connected.
        self.identity: Identity | None = None
        #: Number of copies with QoS 0 that were written to the outlet.
        self.relayed: i64 = 0
        #: Number of copies with QoS 0 that were dropped because the client does not read fast
        #: enough.
        self.dropped: i64 = 0
        #: Number of copies with QoS 0 that were lost because no client was connected.
        self.missed: i64 = 0

    @property
    def is_connected(self) -> bool:
        """True if a client is connected that gets copies with QoS 0."""
        return self.outlet is not None

    @property
    def forwards(self) -> bool:
        """True if the inbox gives its messages to other subscribers, as the inbox of a group does.

        A plan delivers a message to such an inbox after all other inboxes, because the store
        records the sequence number of each copy before the delivery. If the group came first, it
        could forward the message to a session that is a destination of the message itself. The
        forwarded copy would then take the number that is recorded for the session's own copy.
        """
        return False

    def can_represent(self, topic: bytes) -> bool:
        """True if the subscriber's protocol can represent the topic."""
        raise NotImplementedError

    def may_read(self, topic: bytes) -> bool:
        """True if the user of this subscriber may read the topic.

        Called only if the user may read some, but not all topics that the binding matches.
        """
        return True

    def reader_facts(self) -> dict[str, object]:
        """Return the user of this subscriber and the user's topic rules, for `$topology`.

        If no client has connected since the restart, the result has no user, and rules that permit
        no topic.
        """
        identity = self.identity
        if identity is None:
            return {"user": "", "rules": []}
        return {"user": identity.name, "rules": identity.subscribe_rules()}

    def offer(self, message: Message) -> None:
        """Write the message to the outlet if possible; else count it as dropped or missed."""
        raise NotImplementedError

    def fates(self) -> list[int]:
        """Return how many copies ended with each fate, in the order of COPY_FATES.

        The copies of the inbox are included.
        """
        fates = self.inbox.fates()
        fates[AUTO_ACKNOWLEDGED] += int(self.relayed)
        fates[DROPPED] += int(self.dropped)
        fates[OFFLINE] += int(self.missed)
        return fates
