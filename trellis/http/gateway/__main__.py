"""The process of the gateway: `python -m trellis.http.gateway CONNECTION FILES SOCKET...`.

The arguments are numbers of inherited file descriptors: the connection to the broker, the socket
for descriptors of files, and the listening sockets. The broker starts the process. The process ends
when the broker ends, even if the broker is killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
from typing import Final

import uvicorn

from trellis import logs
from trellis.http import contract
from trellis.http.gateway.app import Gateway
from trellis.http.gateway.connections import (
    HEAD_MAX,
    KEEP_ALIVE_SECONDS,
    GatewayServer,
    OpenConnections,
)
from trellis.http.gateway.link import BrokerLink
from trellis.http.gateway.tls_files import in_memory
from trellis.server.certificates import contexts
from trellis.settings import Settings

#: Nice value of the gateway process, which gives the broker's process a higher priority.
NICE: Final = 5
#: The gateway uses at most the permitted number of file descriptors, divided by this number, for
#: connections.
DESCRIPTOR_SHARE: Final = 4


async def serve(
    connection: socket.socket, files: socket.socket, doors: list[socket.socket]
) -> None:
    """Serve HTTP on the listening sockets `doors` until the gateway is idle or must end.

    `connection` is the connection to the broker, and `files` the socket for descriptors of files.
    """
    link = BrokerLink(files, lambda: os._exit(0))
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=connection)
    greeting = await link.greeting
    logs.set_level(greeting.log_level)
    settings = Settings(http=greeting.http, tls=in_memory(greeting.tls, greeting.files))
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = max(8, min(greeting.http.connections, descriptors // DESCRIPTOR_SHARE))
    open_connections = OpenConnections(
        most, greeting.http.address_connections, link.count_closed, link.log_denied
    )
    config = uvicorn.Config(
        Gateway(link, greeting, open_connections),
        interface="asgi3",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, int(greeting.seconds)),
        h11_max_incomplete_event_size=HEAD_MAX,
    )
    config.load()
    server = GatewayServer(
        config, link, open_connections, contexts(settings).get("http"), greeting.seconds
    )
    await server.serve(doors)
    link.send(contract.Bye())


def main() -> None:
    """Run the gateway process with the descriptors in its arguments."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICE)
    logs.set_up("info")
    # The app logs every failure of a request, with its identifier.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL + 1)
    connection, files, *doors = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    for sock in (connection, files, *doors):
        sock.setblocking(False)
    asyncio.run(serve(connection, files, doors))


if __name__ == "__main__":
    main()
