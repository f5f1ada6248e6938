"""The broker's end of the bridges: configures the worker, and keeps the states of the links."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from trellis import logs
from trellis.bridge import contract
from trellis.bridge.contract import Counters, LinkState, MqttBridge
from trellis.worker_process import WorkerProcess, WorkerProgram

PROGRAM: Final = WorkerProgram(
    "trellis.bridge", "bridge_worker_lost", "messages of bridges wait in their queues"
)

#: The kind, the virtual host and the name of a link.
LinkName = tuple[str, str, str]


class Link:
    """A link of the broker: the last state that the worker has reported, and total counts."""

    def __init__(self, state: LinkState) -> None:
        self.state = state
        #: Counts of earlier workers.
        self._earlier = Counters()
        #: Time of the last change between up and not up, in seconds since 1970.
        self.since = time.time()

    @property
    def counters(self) -> Counters:
        """The counts since the start of the broker."""
        earlier, present = (
            msgspec.structs.asdict(counters) for counters in (self._earlier, self.state.counters)
        )
        return Counters(**{name: earlier[name] + present[name] for name in earlier})

    def worker_lost(self) -> None:
        """Keep the counts of a worker that has ended, and note that the link is not connected."""
        self._earlier = self.counters
        if self.state.state == contract.UP:
            self.since = time.time()
        self.state = msgspec.structs.replace(
            self.state,
            state=contract.CONNECTING,
            error="the process of the bridges was started again",
            in_flight=0,
            counters=Counters(),
        )


class BridgeService:
    """The links of a broker to other brokers, which a worker process runs."""

    def __init__(self, bridges: Callable[[], Sequence[MqttBridge]]) -> None:
        """`bridges` returns the bridges to run; it is called when the listeners are open."""
        self._bridges = bridges
        self._links: dict[LinkName, Link] = {}
        self.worker: WorkerProcess | None = None

    def start(self) -> None:
        """Start the worker. Called in the event loop, when clients may connect."""
        self.worker = WorkerProcess(PROGRAM, self._opening, self._on_line)

    def close(self) -> None:
        """End the worker."""
        if self.worker is not None:
            self.worker.close()

    def __iter__(self) -> Iterator[Link]:
        return iter(list(self._links.values()))

    def _opening(self) -> bytes:
        return contract.line(contract.Configure(list(self._bridges())))

    def _on_line(self, text: bytes) -> None:
        message = contract.from_worker.decode(text)
        if isinstance(message, contract.Ready):
            if self.worker is not None:
                self.worker.ready = True
            for link in self._links.values():
                link.worker_lost()
            return
        for state in message.links:
            self._on_state((state.kind, state.vhost, state.name), state)

    def _on_state(self, name: LinkName, state: LinkState) -> None:
        link = self._links.get(name)
        if link is None:
            link = self._links[name] = Link(msgspec.structs.replace(state, error="", state=""))
        before, link.state = link.state, state
        if before.state != state.state:
            link.since = time.time()
            if state.state == contract.UP:
                logs.info("bridge_up", kind=state.kind, name=state.name, remote=state.remote)
        if state.error and state.error != before.error and state.state != contract.ENDED:
            logs.warning(
                "bridge_down" if state.state == contract.CONNECTING else "bridge_problem",
                kind=state.kind,
                name=state.name,
                remote=state.remote,
                reason=state.error,
                note="messages wait at their source"
                if state.state == contract.CONNECTING
                else "the other topics of the bridge are copied",
            )
        if state.counters.refused > before.counters.refused:
            logs.warning(
                "bridge_refused",
                kind=state.kind,
                name=state.name,
                messages=state.counters.refused - before.counters.refused,
                reason=state.refusal,
                note="the destination did not accept these messages; they are not sent again",
            )
