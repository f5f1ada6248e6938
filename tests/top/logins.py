"""A process that makes many logins at the same time.

    python -m tests.top.logins AMQP-PORT MQTT-PORT COUNT USER

A third of the clients give the password of USER (its name), a third give wrong passwords, all
different, and a third give unknown user names. Every second client uses MQTT. Prints a JSON object
with the number of clients by answer, and disconnects when its input ends.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
from collections import Counter

from protocols.amqp.connection.handshake import GREETING
from tests.clients import connect_packet, start_ok

#: (class id, method id) of an AMQP answer -> name of the method.
_METHODS = {(10, 10): "start", (10, 30): "tune", (10, 50): "close"}


class Client:
    """One login over AMQP or MQTT.

    `first` is the data to send at the start, `second` the data to send after the first answer.
    """

    def __init__(
        self, number: int, port: int, protocol: str, kind: str, user: str, password: str
    ) -> None:
        self.label = f"{protocol} {kind}"
        self.protocol = protocol
        if protocol == "amqp":
            self.first, self.second = GREETING, start_ok(user, password)
        else:
            self.first, self.second = (
                connect_packet(f"client-{number}", user=f"{user}/{password}"),
                b"",
            )
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.connect_ex(("127.0.0.1", port))

    def answer(self) -> str:
        """Read data, and continue the login. Return the verdict; "" if there is none yet."""
        data = self.socket.recv(65_536)
        if not data:
            return "lost"
        if self.protocol == "mqtt":
            return f"code {data[3]}"
        method = _METHODS[data[8], data[10]]
        if method != "start":
            return method
        self.socket.sendall(self.second)
        return ""


def main(amqp: int, mqtt: int, count: int, user: str) -> None:
    verdicts: Counter[str] = Counter()
    selector = selectors.DefaultSelector()
    clients = []
    for number in range(count):
        kind = ("right", "wrong", "unknown")[number % 3]
        name = f"unknown-{number}" if kind == "unknown" else user
        password = user if kind == "right" else f"wrong-{number}"
        port, protocol = (mqtt, "mqtt") if number % 2 else (amqp, "amqp")
        clients.append(Client(number, port, protocol, kind, name, password))
    for client in clients:
        selector.register(client.socket, selectors.EVENT_WRITE, client)
    while verdicts.total() < count:
        for key, events in selector.select():
            client = key.data
            if events & selectors.EVENT_WRITE:
                client.socket.sendall(client.first)
                selector.modify(client.socket, selectors.EVENT_READ, client)
            elif verdict := client.answer():
                verdicts[f"{client.label}: {verdict}"] += 1
                selector.unregister(client.socket)
    print(json.dumps(verdicts), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
