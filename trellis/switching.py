"""A switch: this active node hands the replicated log over to a standby.

    freeze     the event loop reads, delivers and answers nothing
    drain      the store's batches are shipped and written, and the confirms for them are sent
    hand over  this node claims the log in the name of the standby (broker/replication/owner.py)
    end        all connections are aborted, and the process ends

If the store cannot drain in time, the node stays active.

A node that stops (SIGTERM) hands the log over, too. If a switch is under way, the stop waits for
the end of the switch, and an operator can request no other switch. The stop waits for LEAVE_SECONDS
at most. If the claim for the standby has not been sent until then, the switch is cancelled, and the
node stops without a handover. If the claim has been sent, the standby may own the log, so the
process ends at once.

A node that cannot write its disk hands the log over without a drain, to a standby that has all
batches of the log. The batch that is in the log and not on the disk is not confirmed: its
publishers must publish again. Later changes are not in the log, and were not confirmed either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from broker.replication.errors import ReplicationError
from trellis import logs
from trellis.server.durable_store_writer import DurableStoreWriter
from trellis.server.fence import ConnectionFence
from trellis.server.node import BrokerNode

if TYPE_CHECKING:
    from broker.store.opening import OpenedStore
    from trellis.cluster.membership import Membership

Result = TypeVar("Result")

#: Longest time in seconds for the store to write all batches, and seconds between two checks.
DRAIN_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.001
#: Seconds between the answer to the operator and the end of the process.
END_SECONDS: Final = 0.2
#: Seconds between two attempts to hand the log over from a node whose store is stopped.
RETRY_SECONDS: Final = 0.2
#: Longest time in seconds for which a stop waits for a handover.
LEAVE_SECONDS: Final = 20.0


class Switching:
    """Hands the replicated log of this active node over to a standby, one switch at a time."""

    def __init__(self, node: BrokerNode, membership: Membership) -> None:
        ownership = membership.ownership
        assert ownership is not None
        self._node = node
        self._membership = membership
        self._ownership = ownership
        self._loop = asyncio.get_running_loop()
        #: The task of the switch that is under way; None if there is none.
        self._running: asyncio.Task[Any] | None = None
        #: True from the moment at which the claim for the successor is sent until its success: the
        #: successor may own the log.
        self._is_claiming = False
        #: The name of the standby to which the log was handed over; "" before that.
        self._successor = ""
        #: The timer that ends the process after a switch that an operator requested.
        self._end: asyncio.TimerHandle | None = None
        #: True once the broker stops, so that an operator can request no switch.
        self._is_leaving = False
        #: True during the call of `leave`.
        self._leave_runs = False
        #: True once the store is stopped, so that this node cannot stay active.
        self._is_stopped = False
        #: The switches that have not ended; the event loop keeps no strong references to tasks.
        self._tasks: set[asyncio.Task[Any]] = set()

    async def switch(self, wanted: str) -> str:
        """Hand the log over to the standby `wanted`, and end this process soon after.

        If `wanted` is "", choose a standby. Return the name of the standby. Raises ReplicationError
        if the log could not be handed over: this node then stays active, unless it is already
        stopping (SIGTERM).

        If the caller is cancelled, for example because the HTTP gateway has ended, the switch still
        continues to its end. A switch that is broken off could leave the node frozen.
        """
        if self._is_leaving:
            raise ReplicationError(
                "the switch is not needed: this node is stopping, and hands the log over anyway"
            )
        task = self._start(self._hand_over_and_end(wanted))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # `leave` cancels a switch that takes too long.
                raise ReplicationError(
                    "the log was not handed over, because this node is stopping"
                ) from None
            raise

    def _start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _hand_over_and_end(self, wanted: str) -> str:
        name = await self._alone(wanted, self._ownership.disk.is_stuck)
        reason = f"the log was handed over to node '{name}'"
        self._end = self._loop.call_later(END_SECONDS, self._membership.end, reason)
        return name

    async def leave(self, is_stopped: bool, hurry: asyncio.Event) -> str:
        """Hand the log over, because the broker stops, and return the name of the standby.

        If a switch is under way, wait for its end first. If `is_stopped` is True, an error of the
        disk has stopped the store: the broker is then frozen, and tries for `silence` seconds to
        find a standby that has all batches. After the return, the caller must not write to the
        store any more, and must end the process.

        The call takes LEAVE_SECONDS at most (`silence` seconds more if the store is stopped), and
        ends early when `hurry` is set. Raises ReplicationError if the log is then not handed over;
        but if the standby may own the log already, the call ends the process.
        """
        self._is_leaving, seconds = True, LEAVE_SECONDS
        if is_stopped:
            self._is_stopped, self._node.turn.may_act = True, _never
            seconds += self._ownership.owner.timing.silence
        self._leave_runs = True
        try:
            return await self._leave_within(seconds, hurry)
        finally:
            self._leave_runs = False

    async def _leave_within(self, seconds: float, hurry: asyncio.Event) -> str:
        work = self._start(self._leave())
        hurrying = asyncio.create_task(hurry.wait())
        await asyncio.wait({work, hurrying}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        if work.done():
            return work.result()
        if self._successor:
            self._cancel_end()
            return self._successor
        if self._is_claiming:
            self._membership.end(
                "the node was stopped while it handed the log over, so a standby may own the log"
            )
        tasks = {task for task in (work, self._running) if task is not None}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise ReplicationError(
            "a second signal ended the handover of the log"
            if hurry.is_set()
            else f"the log could not be handed over within {seconds:g} s"
        )

    async def _leave(self) -> str:
        running = self._running
        if running is not None:
            await asyncio.wait({running})
        if self._successor:
            self._cancel_end()
            await asyncio.sleep(END_SECONDS)  # Time for the answer to reach the operator.
            return self._successor
        if self._is_stopped:
            return await self._leave_stopped_store()
        return await self._alone("", self._ownership.disk.is_stuck)

    def _cancel_end(self) -> None:
        """Cancel the timer that ends the process after a switch.

        The caller, a stop of the broker, ends the process itself.
        """
        if self._end is not None:
            self._end.cancel()

    async def _leave_stopped_store(self) -> str:
        end = self._loop.time() + self._ownership.owner.timing.silence
        while True:
            try:
                return await self._alone("", True)
            except ReplicationError:
                if self._loop.time() > end:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    def request_for_disk(self) -> None:
        """Try to hand the log over soon, because the disk cannot be written. Any thread may call.

        If no standby has all batches, log the reason once, and stay active.
        """
        with suppress(RuntimeError):  # The loop is closed, because the broker stops.
            self._loop.call_soon_threadsafe(self._leave_full_disk)

    def _leave_full_disk(self) -> None:
        self._ownership.disk.answer()
        self._start(self._hand_over_for_disk())

    async def _hand_over_for_disk(self) -> None:
        # Another switch can begin between the creation of the task and this check.
        if self._running is not None or self._is_stopped or self._leave_runs:
            return
        disk = self._ownership.disk
        try:
            name = await self._alone("", True)
        except ReplicationError as error:
            disk.refuse(str(error))
            return
        self._membership.end(f"{disk.problem}: the log was handed over to node '{name}'")

    async def _alone(self, wanted: str, unwritten: bool) -> str:
        """Hand the log over as `_hand_over` does, and return the name of the standby.

        Raises ReplicationError, also if another switch is under way.
        """
        if self._running is not None:
            raise ReplicationError("another switch of this node is under way; wait for its end")
        self._running = asyncio.current_task()
        try:
            self._successor = await self._hand_over(wanted, unwritten)
        finally:
            self._running = None
        return self._successor

    async def _hand_over(self, wanted: str, unwritten: bool) -> str:
        """Hand the log over to the standby `wanted` ("": choose one); return the standby's name.

        If `unwritten` is True, the disk cannot be written: the store is not drained, and the
        standby must have all batches of the log. Raises ReplicationError.
        """
        membership, turn, ownership = self._membership, self._node.turn, self._ownership
        name, report = await asyncio.to_thread(membership.successor, wanted, unwritten)
        lease, turn.may_act = turn.may_act, _never
        try:
            if not unwritten:
                await self._drain()
            if not ownership.may_act():
                raise ReplicationError(
                    "the log was not handed over, because this node has lost its lease; see "
                    "`trellis cluster status`"
                )
        except (ReplicationError, asyncio.CancelledError):
            if not self._is_stopped:  # A node with a stopped store stays frozen.
                turn.may_act = lease
                turn.schedule()
            raise
        turn.flush()
        self._is_claiming = True
        await asyncio.to_thread(ownership.hand_over, report)
        self._is_claiming = False
        logs.info("cluster_handed_over", node=name, epoch=report.epoch + 1)
        membership.discard_output()
        for link in list(turn.links):
            link.abort()
        return name

    async def _drain(self) -> None:
        """Wait until the store has written all entries. Raises ReplicationError."""
        writer = self._node.store_writer
        assert isinstance(writer, DurableStoreWriter)
        loop = asyncio.get_running_loop()
        end = loop.time() + DRAIN_SECONDS
        while True:
            # One turn of the event loop may still have input that it has read before the freeze.
            await asyncio.sleep(LOOK_SECONDS)
            if writer.idle:
                return
            if loop.time() > end:
                raise ReplicationError(
                    "the log was not handed over, because the store did not write all batches "
                    f"within {DRAIN_SECONDS:g} s; wait until the log and the disk have caught up"
                )
            writer.sync()


def lease_to(node: BrokerNode, membership: Membership, opened: OpenedStore) -> Switching:
    """Make a node of a cluster act only while it has the lease of the replicated log.

    The event loop checks the lease before it acts. When a standby may have taken over, all client
    connections are aborted. The node also begins to report itself, and to trim the log. Return the
    object that hands the log over to a standby.
    """
    from trellis.cluster.retention import Retention

    ownership = membership.ownership
    assert ownership is not None
    loop, cluster = asyncio.get_running_loop(), node.settings.cluster
    limits = Retention(cluster.keep, cluster.keep_time, cluster.keep_most)
    membership.keep_log(node.broker, opened.store.catalog, limits, loop.call_soon_threadsafe)
    fence = ConnectionFence(loop, node.turn, membership.end, lambda: node.abort_http())
    membership.discard_output = fence.discard_output
    ownership.abort = fence.abort
    node.turn.may_act = ownership.owner.lease.lasts
    node.cluster_figures = membership.figures
    switching = Switching(node, membership)
    ownership.disk.request = switching.request_for_disk
    node.switch = switching.switch
    return switching


def _never() -> bool:
    """Return False: the broker must not act.

    This function replaces the check of the lease during a switch.
    """
    return False
