"""The broker's end of the bridges: configures the worker, and keeps the states of the links."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from broker.broker import Broker
from trellis import logs
from trellis.bridge import contract
from trellis.bridge.collecting import InvalidLink, Link, LinkFinder
from trellis.bridge.contract import BridgeState, LinkCounters, LocalAmqp, MqttBridge, Shovel
from trellis.worker_process import WorkerProcess

#: The program of the worker.
PROGRAM: Final = "trellis.bridge"

#: Seconds between two searches for changed parameters and policies.
WATCH_SECONDS: Final = 1.0

#: The kind, the virtual host and the name of a link.
LinkName = tuple[str, str, str]


class KnownLink:
    """A link of the broker: the last state that the worker has reported, and total counts."""

    def __init__(self, state: BridgeState) -> None:
        self.state = state
        #: Counts before the last start of the link.
        self._earlier = LinkCounters()
        #: Time at which the state last became UP, or stopped being UP, in seconds since 1970.
        self.since = time.time()

    @property
    def counters(self) -> LinkCounters:
        """The counts since the start of the broker."""
        earlier, present = (
            msgspec.structs.asdict(counters) for counters in (self._earlier, self.state.counters)
        )
        return LinkCounters(**{name: earlier[name] + present[name] for name in earlier})

    def lost(self, reason: str) -> None:
        """Set the state CONNECTING with the error `reason`, and keep the counts of the ended run.

        Called when the worker has ended, or starts the link again. Does nothing for an invalid
        link, because the worker does not run the link.
        """
        if self.state.state == contract.INVALID:
            return
        self._earlier = self.counters
        if self.state.state == contract.UP:
            self.since = time.time()
        self.state = msgspec.structs.replace(
            self.state,
            state=contract.CONNECTING,
            error=reason,
            in_flight=0,
            counters=LinkCounters(),
        )


class BridgeService:
    """The links between this broker and other brokers; a worker process runs them.

    The broker starts the worker when the first link is defined.
    """

    def __init__(self, broker: Broker, end_shovel: Callable[[str, str], None]) -> None:
        """Prepare the service. `end_shovel` deletes the parameter of a shovel that has ended.

        The arguments of `end_shovel` are the names of the virtual host and of the shovel.
        """
        self._broker = broker
        self._end_shovel = end_shovel
        self._links: dict[LinkName, KnownLink] = {}
        self._bridges: list[MqttBridge] = []
        self._local = LocalAmqp("", 0, "", "", "")
        self._finder = LinkFinder(broker, self._local)
        #: The links that the last search found; None if the next search must send its links to the
        #: worker even if they have not changed.
        self._last_links: list[Link] | None = None
        #: The configuration that was sent to the worker last, its number, and its shovels.
        self._sent = b""
        self._number = 0
        self._shovels: dict[LinkName, Shovel] = {}
        #: Shovels that have ended, but that are still in the worker's configuration.
        self._ended: set[LinkName] = set()
        self._watching: asyncio.Task[None] | None = None
        self.worker: WorkerProcess | None = None

    def start(self, bridges: Sequence[MqttBridge], local: LocalAmqp) -> None:
        """Run the bridges, and all shovels and federation links that the broker has or will have.

        Called in the event loop, after the listeners have started. `local` is the address and the
        login with which links reach this broker over AMQP; its port is 0 if the broker has no
        listener for AMQP.
        """
        self._bridges = list(bridges)
        self._local = local
        self._finder = LinkFinder(self._broker, local)
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    def close(self) -> None:
        """End the worker."""
        if self._watching is not None:
            self._watching.cancel()
        if self.worker is not None:
            self.worker.close()

    def __iter__(self) -> Iterator[KnownLink]:
        return iter(list(self._links.values()))

    # -- definitions

    async def _watch(self) -> None:
        """Send the definitions of the links to the worker whenever they have changed."""
        while True:
            try:
                links = await self._finder.find()
                if links != self._last_links:
                    self._configure(links)
            except Exception as error:  # noqa: BLE001 - later changes must still take effect
                note = f"links keep their previous definitions; next attempt in {WATCH_SECONDS:g} s"
                logs.error("bridge_definitions_failed", error=repr(error), note=note)
            await asyncio.sleep(WATCH_SECONDS)

    def _configure(self, links: list[Link]) -> None:
        ended, self._ended = self._ended, set()
        # A new shovel with the name of an ended one starts with the next configuration, because
        # the worker must first stop the ended shovel.
        self._last_links = None if ended else links
        before, self._shovels = self._shovels, {}
        wanted: set[LinkName] = {(contract.MQTT, "", bridge.name) for bridge in self._bridges}
        for link in links:
            name = (link.kind, link.vhost, link.name)
            if name in ended:
                continue
            wanted.add(name)
            if isinstance(link, InvalidLink):
                self.add(invalid_state(*link))
            else:
                self._shovels[name] = link
                if name in self._links and before.get(name, link) != link:
                    self._links[name].lost("the definition of the link has changed")
        for name in [name for name in self._links if name not in wanted]:
            del self._links[name]
        if self.worker is None and not (self._bridges or self._shovels):
            return
        self._number += 1
        self._sent = self._configuration(self._number, self._bridges, self._shovels.values())
        if self.worker is None:
            # Each worker begins without links, because the links that exist now may be deleted
            # before a later worker starts.
            nothing = self._configuration(0, (), ())
            self.worker = WorkerProcess(PROGRAM, nothing, self._on_line, self._on_lost)
        else:
            self.worker.send(self._sent)

    def _configuration(
        self, number: int, bridges: Iterable[MqttBridge], shovels: Iterable[Shovel]
    ) -> bytes:
        return contract.line(contract.Configure(number, list(bridges), list(shovels), self._local))

    # -- messages of the worker

    def _on_line(self, text: bytes) -> None:
        message = contract.from_worker.decode(text)
        if isinstance(message, contract.LinkReport):
            # A report for an earlier number may have links that were removed or changed since.
            if message.number == self._number:
                for state in message.links:
                    self._on_state(state)
        elif self.worker is not None:
            self.worker.ready = True
            self.worker.send(self._sent)

    def _on_state(self, state: BridgeState) -> None:
        name = (state.kind, state.vhost, state.name)
        if name in self._ended:
            return
        self.add(state)
        if state.state == contract.ENDED and self._finder.defines(self._shovels[name]):
            logs.info("shovel_ended", vhost=state.vhost, name=state.name, moved=state.counters.sent)
            self._ended.add(name)
            self._last_links = None
            self._end_shovel(state.vhost, state.name)

    def _on_lost(self, reason: str, delay: float) -> None:
        for link in self._links.values():
            link.lost("the worker process of the bridges has ended")
        logs.warning(
            "bridge_worker_lost",
            reason=reason,
            note=f"messages wait at their source; the worker starts again in {delay:g} s",
        )

    def add(self, state: BridgeState) -> None:
        """Store the reported state of a link, and log each change of the state."""
        name = (state.kind, state.vhost, state.name)
        link = self._links.get(name)
        if link is None:
            link = self._links[name] = KnownLink(msgspec.structs.replace(state, error="", state=""))
        before, link.state = link.state, state
        if before.state != state.state:
            link.since = time.time()
        _log_changes(before, state)


def invalid_state(kind: str, vhost: str, name: str, reason: str) -> BridgeState:
    """Return the state of a link that cannot run."""
    return BridgeState(kind, vhost, name, "", contract.INVALID, reason, "", 0, LinkCounters())


def _log_changes(before: BridgeState, state: BridgeState) -> None:
    """Log that a link is up or down, has a new problem, or that messages were refused."""
    names = {"kind": state.kind, "vhost": state.vhost, "name": state.name}
    if before.state != state.state and state.state == contract.UP:
        logs.info("bridge_up", **names, remote=state.remote, protocol=state.protocol)
    if state.error and state.error != before.error and state.state == contract.UP:
        logs.warning(
            "bridge_problem",
            **names,
            reason=state.error,
            note="the bridge copies messages of other topics until the number of waiting messages "
            "reaches its setting `window`",
        )
    elif state.error and state.error != before.error:
        logs.warning(
            "bridge_down",
            **names,
            remote=state.remote,
            reason=state.error,
            note="messages wait at their source until the link is connected, except messages "
            "of QoS 0",
        )
    refused = state.counters.refused - before.counters.refused
    if refused > 0:
        logs.warning(
            "bridge_refused",
            **names,
            messages=refused,
            reason=state.refusal,
            note="the destination did not accept these messages; they are not sent again",
        )
