"""The present state of the broker for its web page: rates, totals, alarms, deepest queues.

One sample serves all pages that are open. Counters of messages are read for each sample. The
objects (queues and sessions) are counted in slices, and so rarely that the counting takes at most
COUNTING_SHARE of the time of one processor.
"""

from __future__ import annotations

import asyncio
import heapq
from time import thread_time
from typing import Any, Final

import trellis
from broker.messages.fates import ROUTED, UNROUTABLE
from broker.queues.queue import Queue
from broker.routing.publish_context import IngressCounters
from broker.routing.subscriber import Subscriber
from broker.routing.topic_history import HistorySum
from broker.vhost.depth_totals import DepthTotals
from trellis.monitoring.ingress import collect_counts, collected
from trellis.monitoring.route_rows import printable_key
from trellis.server.node import BrokerNode

#: Seconds for which a sample of the state stays valid: all requests within this time get it.
SAMPLE_SECONDS: Final = 0.9
#: Share of one processor that the counting of queues and sessions may take.
COUNTING_SHARE: Final = 0.001
#: Shortest time between two counts of all queues and sessions, in seconds.
COUNTING_SECONDS: Final = 2.0
#: Number of objects that are counted in one turn of the event loop.
COUNT_SLICE: Final = 500
#: Number of the deepest and slowest queues, of the topics with most unroutable messages, and of the
#: last refusals, in a sample.
DEEPEST, UNROUTABLE_TOPICS, REFUSALS = 8, 8, 8

Row = dict[str, Any]


class MessageFlow:
    """Counters of messages at one time; `at` is in seconds of a monotonic clock.

    `ingress` has the counts of received messages of all virtual hosts.
    """

    def __init__(self, node: BrokerNode, at: float, relayed: int, ingress: IngressCounters) -> None:
        self.at = at
        fates = ingress.fates
        tallies = [front.tally for front in node.fronts]
        delivered = sum(
            int(one.delivered_auto + one.delivered_manual + one.get_auto + one.get_manual)
            for one in tallies
        )
        self.counts = {
            "in": ingress.received,
            "routed": fates[ROUTED],
            "copies": ingress.copies,
            "out": delivered + relayed,
            "unroutable": fates[UNROUTABLE],
            "dropped": sum(fates) - fates[ROUTED],
        }

    def since(self, earlier: MessageFlow) -> dict[str, float]:
        """Return the growth of each counter per second, from the reading `earlier` to this one."""
        seconds = max(self.at - earlier.at, 0.001)
        return {
            name: round(max(0, count - earlier.counts[name]) / seconds, 1)
            for name, count in self.counts.items()
        }


class ObjectTotals:
    """Totals over all queues and sessions, from the last count."""

    def __init__(self) -> None:
        self.queues = self.sessions = 0
        self.depths = DepthTotals()
        self.deepest: list[Row] = []
        #: The queues whose first message waits longest.
        self.slowest: list[Row] = []
        #: The topics of the last hour with most unroutable messages.
        self.unroutable: list[Row] = []


class LiveStatus:
    """Makes samples of the broker's state, at most one per SAMPLE_SECONDS, for all requests."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._clock = asyncio.get_running_loop().time
        self._totals = ObjectTotals()
        self._count_at = 0.0
        self._flow: MessageFlow | None = None
        self._sample: Row | None = None
        self._sampling: asyncio.Task[Row] | None = None

    async def sample(self) -> Row:
        """Return the last sample of the broker's state.

        If the last sample is older than SAMPLE_SECONDS, make a new one first.
        """
        if self._sampling is None:
            fresh = self._flow is not None and self._clock() - self._flow.at < SAMPLE_SECONDS
            if fresh and self._sample is not None:
                return self._sample
            self._sampling = asyncio.ensure_future(self._new_sample())
            self._sampling.add_done_callback(self._finish)
        return await asyncio.shield(self._sampling)

    def _finish(self, _: object) -> None:
        self._sampling = None

    async def _new_sample(self) -> Row:
        node = self._node
        if self._clock() >= self._count_at:
            await self._count()
        ingress = await self._ingress()
        flow = MessageFlow(node, self._clock(), int(self._totals.depths.relayed), ingress)
        rates = dict.fromkeys(flow.counts, 0.0) if self._flow is None else flow.since(self._flow)
        self._flow = flow
        self._sample = self._row(flow, rates)
        return self._sample

    async def _ingress(self) -> IngressCounters:
        """Return the counts of received messages of all virtual hosts, collected in slices."""
        totals = IngressCounters()
        await collect_counts(self._node.broker.vhosts.values())
        for counters in collected(self._node.broker.vhosts.values()):
            for one in counters.values():
                totals.merge(one)
        return totals

    async def _count(self) -> None:
        """Count all queues and sessions in slices, and find the deepest queues.

        The time until the next count grows with the CPU time of this count.
        """
        # The clock of the event loop stands still in a turn, so it cannot measure the work.
        totals, spent = ObjectTotals(), 0.0
        for vhost in list(self._node.broker.vhosts.values()):
            totals.queues += len(vhost.queues)
            kinds: tuple[list[Queue], ...] = ([*vhost.queues.values()], [*vhost.inboxes.values()])
            for objects in kinds:
                for at in range(0, len(objects), COUNT_SLICE):
                    began = thread_time()
                    self._add(totals, vhost.name, objects[at : at + COUNT_SLICE])
                    spent += thread_time() - began
                    await asyncio.sleep(0)
        sessions: list[Subscriber] = [*self._node.mqtt.sessions.all()]
        totals.sessions = len(sessions)
        for at in range(0, len(sessions), COUNT_SLICE):
            began = thread_time()
            totals.depths.add_subscribers(sessions[at : at + COUNT_SLICE])
            spent += thread_time() - began
            await asyncio.sleep(0)
        spent += await self._count_unroutable(totals)
        self._totals = totals
        self._count_at = self._clock() + max(COUNTING_SECONDS, spent / COUNTING_SHARE)

    async def _count_unroutable(self, totals: ObjectTotals) -> float:
        """Add the topics with the most unroutable messages to `totals`.

        Return the CPU time of the search in seconds.
        """
        spent = 0.0
        history_sum = HistorySum(self._node.broker.history, True)
        began = thread_time()
        for _ in history_sum.steps():
            spent += thread_time() - began
            await asyncio.sleep(0)
            began = thread_time()
        for (vhost, exchange), keys in history_sum.counts.items():
            began = thread_time()
            largest = heapq.nlargest(UNROUTABLE_TOPICS, keys.items(), key=lambda pair: pair[1])
            rows = [
                {
                    "vhost": vhost,
                    "exchange": exchange,
                    "routing_key": printable_key(key),
                    "messages": messages,
                }
                for key, messages in largest
            ]
            totals.unroutable = heapq.nlargest(
                UNROUTABLE_TOPICS, [*totals.unroutable, *rows], key=lambda row: int(row["messages"])
            )
            spent += thread_time() - began
            await asyncio.sleep(0)
        return spent

    @staticmethod
    def _add(totals: ObjectTotals, vhost: str, queues: list[Queue]) -> None:
        used = totals.depths.add_queues(queues)
        if not used:
            return
        deepest = heapq.nlargest(DEEPEST, used, key=lambda one: int(one.depth + one.unacked))
        totals.deepest = heapq.nlargest(
            DEEPEST,
            [*totals.deepest, *(_queue_row(vhost, one) for one in deepest)],
            key=lambda row: int(row["messages"]),
        )
        slowest = heapq.nlargest(DEEPEST, used, key=lambda one: one.head_age or 0)
        slow = [_queue_row(vhost, one) for one in slowest if one.head_age is not None]
        totals.slowest = heapq.nlargest(
            DEEPEST, [*totals.slowest, *slow], key=lambda row: int(row["head_age_ms"])
        )

    def _row(self, flow: MessageFlow, rates: dict[str, float]) -> Row:
        node, totals = self._node, self._totals
        refused = list(node.refusals.recent)[-REFUSALS:]
        return {
            "node": node.broker.name,
            "version": trellis.__version__,
            "uptime": int(self._clock() - node.started_at),
            "wall": node.broker.agenda.wall,
            "ready": node.ready,
            "rates": rates,
            "counts": flow.counts,
            "alarms": list(node.broker.alarms.on),
            "blocked": len(node.broker.alarms.waiting),
            "connections": {
                "amqp": len(node.amqp.connections),
                "mqtt": len(node.mqtt.connections),
            },
            "sessions": totals.sessions,
            "queues": totals.queues,
            "consumers": int(totals.depths.consumers),
            "messages_ready": int(totals.depths.ready),
            "messages_unacknowledged": int(totals.depths.unacked),
            "deepest": totals.deepest,
            "slowest": totals.slowest,
            "unroutable_topics": totals.unroutable,
            "refusals": [
                {
                    "event": one.event,
                    "at": one.at,
                    "repetitions": one.repetitions,
                    "user": one.fields.get("user", ""),
                    "address": one.fields.get("address", ""),
                    "note": one.fields.get("note", ""),
                }
                for one in reversed(refused)
            ],
        }


def _queue_row(vhost: str, queue: Queue) -> Row:
    return {
        "vhost": vhost,
        "name": queue.name,
        "session": queue.private,
        "messages": int(queue.depth + queue.unacked),
        "consumers": queue.consumer_count,
        "head_age_ms": queue.head_age,
    }
