"""The time limits of a connection: keep-alive, handshake, close, and expiry of credentials."""

from __future__ import annotations

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.messages.outlet import Outlet


class TimedOutlet(Outlet):
    """An outlet whose client has time limits. All times are in ms of Agenda.now; 0 means never.

    The link calls `advance` at the time `deadline`, and `reauthorize` at the time `expires`. To set
    an earlier time, call `set_deadline` or `set_expiry`, which inform the link. A later time may be
    assigned to the field directly, because the link reads the field again at the old time.
    """

    def __init__(self, agenda: Agenda) -> None:
        super().__init__()
        self.agenda = agenda
        self.deadline: i64 = 0
        #: Time of the last input.
        self.last_input_at: i64 = agenda.now
        #: Time at which the client's credentials expire.
        self.expires: i64 = 0

    def set_deadline(self, when: i64) -> None:
        """Set the time at which the link calls `advance`, in ms of Agenda.now; 0 means never."""
        self.deadline = when
        if when > 0:
            self.sender.deadline_set(when)

    def set_expiry(self, when: i64) -> None:
        """Set the time at which the credentials expire, in ms of Agenda.now; 0 means never."""
        self.expires = when
        if when > 0:
            self.sender.deadline_set(when)

    def advance(self, now: int) -> None:
        """Send a heartbeat or enforce a time limit, because the time `deadline` has come."""
        raise NotImplementedError

    def excuse(self, pause: int) -> None:
        """Extend the client's time limits by a pause of the broker, which lasted `pause` ms.

        The broker has not read during the pause, for example because its process was stopped, so
        input that arrived meanwhile may still be unread.
        """
        self.last_input_at = min(self.agenda.now, self.last_input_at + pause)
        if self.deadline > 0:
            self.deadline += pause

    def reauthorize(self) -> None:
        """Look up the client's permissions again: they have changed, or the credentials expired.

        Apply the new permissions, or close the connection if the client may not stay connected.
        """
