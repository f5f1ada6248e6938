"""An S3 server in a process of its own: moto, which keeps the objects in memory.

The program answers lines on its standard input: `down` closes the port, `up` opens the same port
again, with the same objects. The program prints its port first, and `done` after each line.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Final

from tests.broker import ROOT, environment

BUCKET: Final = "trellis"
#: The credentials of the client, which moto does not check.
CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


class S3Server:
    """A running S3 server with an empty bucket."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.archive.s3_server"],
            cwd=ROOT,
            env=environment() | CREDENTIALS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = int(self._line())

    def url(self, prefix: str) -> str:
        """Return the URL of an archive whose objects have the key prefix `prefix`."""
        endpoint = f"http://127.0.0.1:{self.port}"
        return f"s3://{BUCKET}/{prefix}?endpoint={endpoint}&region=us-east-1"

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def switch(self, state: str) -> None:
        """Make the server unreachable (`down`) or reachable (`up`)."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{state}\n")
        self._process.stdin.flush()
        assert self._line() == "done"

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Serve until the standard input ends."""
    import boto3
    from moto.server import ThreadedMotoServer
    from werkzeug.serving import WSGIRequestHandler

    # Both http.server and werkzeug answer `Expect: 100-continue`. The Java client of S3 would take
    # the second of these answers for the response, so http.server's is left out.
    setattr(WSGIRequestHandler, "handle_expect_100", lambda _: True)  # noqa: B010
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1")
    client.create_bucket(Bucket=BUCKET)
    print(port, flush=True)
    for line in sys.stdin:
        server.stop()
        if line.strip() == "up":
            server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
            server.start()
            server.get_host_and_port()
        print("done", flush=True)


if __name__ == "__main__":
    main()
