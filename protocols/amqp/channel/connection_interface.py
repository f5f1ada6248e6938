"""The interface through which channels and the handshake use their connection.

AmqpConnection implements the interface. So the imports of the packages form no cycle: `connection/`
imports `channel/`, and `channel/` uses only this base class. The interface is a base class, not a
`typing.Protocol`, because compiled code would look up each method of a `Protocol` by name.
"""

from __future__ import annotations

from abc import abstractmethod

import pamqp.base
from mypy_extensions import i64

from broker.messages.outlet import LARGE_BODY
from broker.vhost.vhost import VirtualHost
from protocols.amqp.channel.exclusive_queues import ExclusiveQueues
from protocols.amqp.errors import AmqpError
from protocols.connection import Connection, ConnectionRegistry
from protocols.login_input import LOGIN_INPUT_MAX
from protocols.peer import Peer


class ConnectionInterface(Connection):
    """The interface of an AMQP connection that its channels and its handshake use."""

    def __init__(self, front: ConnectionRegistry, peer: Peer, state: str) -> None:
        super().__init__(front, peer)
        #: The state of the connection: one of the constants in connection/states.py.
        self.state = state
        #: The client's virtual host; None before connection.open.
        self.vhost: VirtualHost | None = None
        #: Channel number of the frame that is being handled, and its method (class id << 16 |
        #: method id; 0 for none).
        self.current_channel: i64 = 0
        self.current_method: i64 = 0
        #: Size of the largest frame that the client may send or receive, in bytes.
        self.frame_max: i64 = LOGIN_INPUT_MAX
        #: The cost of the present method in addition to its usual cost, in units of BUDGET.
        self.extra_cost: i64 = 0
        #: The queues that only this connection may use, which are deleted when the connection ends.
        self.exclusive_queues = ExclusiveQueues()

    @property
    @abstractmethod
    def administrator(self) -> bool:
        """True if the connection's user has the tag `administrator`."""
        raise NotImplementedError

    @property
    @abstractmethod
    def impersonator(self) -> bool:
        """True if the connection's user has the tag `impersonator`: the user's messages may name
        any user in `user_id`.
        """
        raise NotImplementedError

    @abstractmethod
    def send(self, number: i64, method: pamqp.base.Frame) -> None:
        """Write the frame of a method to the output.

        `number` is the channel number; 0 is for the methods of the connection itself.
        """
        raise NotImplementedError

    def write_content(self, content: bytes) -> None:
        """Write the frames of a content to the output; a large content is not copied."""
        if len(content) < LARGE_BODY:
            self.out.write(content)
        else:
            self.attach(content)

    @abstractmethod
    def require_slow_path(self) -> None:
        """Send every publication of this connection through ChannelPublisher.publish from now on.

        A channel in transaction mode calls this method, because the channel must handle each
        publication itself.
        """
        raise NotImplementedError

    @abstractmethod
    def close_channel(self, number: i64, error: AmqpError, method: i64) -> None:
        """Close the channel `number` with channel.close, which names the error and the method.

        `method` is the method that failed (class id << 16 | method id), or 0 if none did.
        """
        raise NotImplementedError

    @property
    @abstractmethod
    def open_channels(self) -> int:
        """Number of open channels on this connection."""
        raise NotImplementedError

    @abstractmethod
    def release_resources(self) -> None:
        """End all channels, delete the exclusive queues, and stop using the publish context.

        Called when the broker sends connection.close, and again at the end of every connection.
        """
        raise NotImplementedError

    @abstractmethod
    def reject(self, reason: str) -> None:
        """Refuse a client before its login, because its protocol header or its credentials are
        wrong.

        The metrics count refusals by `reason`.
        """
        raise NotImplementedError

    @abstractmethod
    def fail_connection(self, error: AmqpError) -> None:
        """Close the connection after a hard error in the method that is being handled."""
        raise NotImplementedError
