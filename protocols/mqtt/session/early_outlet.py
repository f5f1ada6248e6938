"""The outlet of a session whose client waits for its CONNACK."""

from __future__ import annotations

from broker.messages.outlet import TURN_BYTES, Outlet


class EarlyOutlet(Outlet):
    """An outlet that collects messages of QoS 0 until the CONNACK is sent.

    The CONNACK of a persistent session waits for the store, and no PUBLISH may precede it
    [MQTT-3.2.0-1]. Once the collected packets have TURN_BYTES or more, the outlet is paused:
    further messages are dropped and counted.
    """

    def touch(self) -> None:
        """Pause the outlet once it has collected TURN_BYTES or more.

        The writers call `touch` after a write unless the flag `dirty` of the outlet is set. This
        outlet never sets the flag, so `touch` is called after each write.
        """
        if len(self.out) + self._parts_size >= TURN_BYTES:
            self.paused = True

    def resume_deliveries(self) -> None:
        """Do nothing: queues begin to deliver after the CONNACK, directly to the connection."""

    def move_to(self, outlet: Outlet) -> None:
        """Append the collected packets to another outlet."""
        for part in self.parts_to_send():
            outlet.attach(part)
            outlet.touch()
