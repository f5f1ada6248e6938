"""A replicated log in memory that broker processes reach over a loopback socket.

Each request and each answer is a line of JSON. The server takes the place of Kafka in tests that
are not about the connection to Kafka.
"""

from __future__ import annotations

import base64
import json
import socket
import socketserver
import threading
from contextlib import suppress
from typing import Any, cast

from broker.replication.contract import (
    CHUNK_SIZE,
    LogSpan,
    LogTrimmed,
    LogUnreachable,
    OutcomeUnknown,
)
from broker.replication.memory import MemoryLog
from broker.replication.records import CLAIM, decode
from broker.replication.report import NodeReport

#: Seconds after which a client gives up waiting for an answer.
PATIENCE = 20.0
#: Largest number of records in one answer.
MOST = 200


class LogServer:
    """A server of one replicated log, which runs in threads of the test."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.lock = threading.Lock()
        #: Cleared while the server answers no request.
        self.moves = threading.Event()
        self.moves.set()
        #: Cleared while the server answers no request for the reports of the nodes.
        self.lists = threading.Event()
        self.lists.set()
        #: Cleared by a test in order to delay claims; `claim_waits` is set once a claim waits.
        self.claims, self.claim_waits = threading.Event(), threading.Event()
        self.claims.set()
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for line in self.rfile:
                    outer.moves.wait()
                    if b'"reports"' in line:
                        outer.lists.wait()
                    if not outer.claims.is_set() and is_claim(json.loads(line)):
                        outer.claim_waits.set()
                        outer.claims.wait()
                    with outer.lock:
                        answer = outer.answer(json.loads(line))
                    with suppress(OSError):  # The node has ended meanwhile.
                        self.wfile.write(json.dumps(answer).encode() + b"\n")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def answer(self, request: dict[str, Any]) -> Any:
        if "append" in request:
            return self.log.append(base64.b64decode(request["append"]))
        if "bounds" in request:
            return self.log.low, self.log.tip
        if "trim" in request:
            return self.log.trim(request["trim"])
        if "report" in request:
            name, offset, text = request["report"]
            self.log.reports[name] = NodeReport.decode(offset, text)
            return None
        if "reports" in request:
            return [
                (name, report.offset, report.encode()) for name, report in self.log.reports.items()
            ]
        if "remove_report" in request:
            return self.log.reports.pop(request["remove_report"], None) and None
        offset = request["read"]
        if offset < self.log.low:
            return {"low": self.log.low}
        span = self.log.read(offset, MOST)
        records = [(at, base64.b64encode(data).decode()) for at, data in span.records]
        return {"records": records, "tip": span.tip}

    def close(self) -> None:
        self.moves.set()
        self.lists.set()
        self.claims.set()
        self._server.shutdown()
        self._server.server_close()


def is_claim(request: dict[str, Any]) -> bool:
    """True if a request appends a claim."""
    return "append" in request and decode(base64.b64decode(request["append"])).kind == CLAIM


class SocketLog:
    """A `ReplicatedLog` over three connections to a LogServer.

    One connection is for appends, one for reads, and one for other requests.
    """

    def __init__(self, port: int, node: str) -> None:
        self._node = node
        self._appends, self._reads, self._requests = Channel(port), Channel(port), Channel(port)
        self._lock = threading.Lock()

    identity = "memory"
    #: The reason for which the log refuses batches (`ReplicatedLog.refusal`); "" for none.
    refusal = ""
    #: The largest payload of a chunk, in bytes (`ReplicatedLog.chunk_size`).
    chunk_size = CHUNK_SIZE

    def check(self, now: bool = False) -> None:
        """Do nothing: this log loses no records."""

    def expect(self, identity: str) -> None:
        assert identity in ("", self.identity)

    def append(self, data: bytes) -> int:
        try:
            return cast(int, self._appends.ask({"append": base64.b64encode(data).decode()}))
        except OSError as error:
            raise OutcomeUnknown(str(error)) from error

    def read(self, offset: int) -> LogSpan:
        try:
            answer = self._reads.ask({"read": offset})
        except OSError as error:
            raise LogUnreachable(str(error)) from error
        if "low" in answer:
            raise LogTrimmed(answer["low"], offset)
        records = [(at, base64.b64decode(data)) for at, data in answer["records"]]
        return LogSpan(records, answer["tip"])

    def bounds(self) -> tuple[int, int]:
        low, tip = self._ask_more({"bounds": True})
        return low, tip

    def trim(self, offset: int) -> None:
        self._ask_more({"trim": offset})

    def report(self, report: NodeReport) -> None:
        self._ask_more({"report": [self._node, report.offset, report.encode()]})

    def own_report(self) -> NodeReport | None:
        return self.reports().get(self._node)

    def reports(self) -> dict[str, NodeReport]:
        rows = self._ask_more({"reports": True})
        return {name: NodeReport.decode(offset, text) for name, offset, text in rows}

    def remove_report(self, node: str) -> None:
        self._ask_more({"remove_report": node})

    def _ask_more(self, request: dict[str, Any]) -> Any:
        with self._lock:
            try:
                return self._requests.ask(request)
            except OSError as error:
                raise LogUnreachable(str(error)) from error

    def close(self) -> None:
        self._appends.close()
        self._reads.close()
        self._requests.close()


class Channel:
    """One connection of a node to a LogServer: the node sends its requests one by one."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def ask(self, request: dict[str, Any]) -> Any:
        """Send a request, and return its answer. Raises OSError if the server cannot be reached."""
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        line = self._file.readline()
        if not line:
            raise ConnectionError("the log has closed the connection")
        return json.loads(line)

    def close(self) -> None:
        self._socket.close()
