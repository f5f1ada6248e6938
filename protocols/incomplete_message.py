"""The time limit of a client that an alarm has blocked in the middle of a message."""

from __future__ import annotations

from typing import Final, Protocol

from mypy_extensions import i64

from broker.agenda import Agenda, Task
from broker.alarms import Alarms

#: An alarm blocks a client whose incomplete messages have more than this number of bytes.
INCOMPLETE_MAX: Final[i64] = 64 << 10
#: Time for which the memory alarm may block a client with incomplete messages, in ms. Then the
#: broker closes the connection, to free the memory.
INCOMPLETE_PATIENCE: Final[i64] = 30_000


class BlockedConnection(Protocol):
    """The part of a connection that its IncompleteMessage uses."""

    agenda: Agenda
    times_blocked: int

    @property
    def blocked(self) -> bool:
        """True while an alarm blocks the connection."""

    def abort(self, reason: str) -> None:
        """End the connection without a reason for the client."""

    def touch(self) -> None:
        """Schedule a flush: the server sends the output, and notices the end of the connection."""


class IncompleteMessage(Task):
    """The time limit of a client that an alarm has blocked in the middle of a message.

    Without this limit, a client that never completes its message could keep the memory alarm on
    for ever.
    """

    def __init__(self, connection: BlockedConnection, alarms: Alarms) -> None:
        self._connection = connection
        self._alarms = alarms
        self._times_blocked = connection.times_blocked

    def run(self) -> None:
        """Close the connection if it stayed blocked for the time limit and the memory alarm is on.

        If only the disk alarm is on, the time limit begins again, because incomplete messages take
        no disk space.
        """
        connection = self._connection
        alarms = self._alarms
        if connection.times_blocked != self._times_blocked or not connection.blocked:
            return
        if "memory" in alarms.on:
            connection.abort("incomplete_message")
            connection.touch()
        else:
            connection.agenda.at(connection.agenda.now + INCOMPLETE_PATIENCE, self)
