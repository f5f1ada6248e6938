"""`trellis ask whatif` and `trellis pipeline whatif`: routes the published messages by proposed
definitions, and compares the result with the current routing.

The answer has the messages per queue, before and after the change, and the topics whose messages
would be lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_trellis.counts import Span
from pyspark_trellis.definitions import SESSION, DefinitionsFile, receiver_text
from pyspark_trellis.topics import PublishedTopics


@dataclass(frozen=True)
class WhatIfChange:
    """The number of messages that one queue or MQTT session receives, before and after a change.

    `before` counts the messages by the current definitions, `after` by the proposed definitions.
    A count is None if its definitions do not have the queue or session. `kind` is queue or session.
    """

    vhost: str
    kind: str
    name: str
    before: int | None
    after: int | None

    def __str__(self) -> str:
        return receiver_text(SESSION + self.name if self.kind == "session" else self.name)


@dataclass(frozen=True)
class LostTopic:
    """A topic whose messages reached a queue, but would reach none under the proposed
    definitions.
    """

    vhost: str
    exchange: str
    topic: str
    messages: int


@dataclass(frozen=True)
class WhatIf:
    """The comparison of the current and the proposed definitions.

    `queues` has every queue and MQTT session that the current or the proposed definitions have.
    `lost` has the topics whose messages would reach no queue any more; the topic with the most
    messages is the first. `unknown` is the number of messages whose destinations depend on more
    than the topic.
    """

    span: Span
    queues: list[WhatIfChange]
    lost: list[LostTopic]
    unknown: int

    @property
    def newly_hit(self) -> list[WhatIfChange]:
        """The queues and sessions that receive messages only by the proposed definitions.

        By the current definitions, such a queue gets no message or does not exist.
        """
        return [queue for queue in self.queues if queue.after and not queue.before]

    @property
    def starved(self) -> list[WhatIfChange]:
        """The queues and sessions that receive messages only by the current definitions.

        By the proposed definitions, such a queue gets no message or does not exist.
        """
        return [queue for queue in self.queues if queue.before and not queue.after]

    @property
    def breaks(self) -> bool:
        """True if a topic or a queue would lose all its messages. The command then exits with code
        1, so that a CI job fails.
        """
        return bool(self.lost or self.starved)


def what_if(
    topics: PublishedTopics, current: DefinitionsFile | None, proposed: DefinitionsFile
) -> WhatIf:
    """Return the comparison of the routing of the published topics by the current and the proposed
    definitions.

    Without `current`, the journal shows which messages reached a queue, and `before` of each queue
    is None. If `current` lacks the exchange of a message, the journal shows if the message reached
    a queue.
    """
    comparison = topics.compared(current, proposed)
    counts = [comparison.before, comparison.after]
    receivers = [
        set()
        if file is None
        else {
            (vhost, receiver) for vhost, host in file.hosts.items() for receiver in host.receivers
        }
        for file in (current, proposed)
    ]
    changes = []
    for receiver in sorted(receivers[0] | receivers[1]):
        before, then = (
            count.get(receiver, 0) if receiver in known else None
            for known, count in zip(receivers, counts, strict=True)
        )
        name = receiver[1].removeprefix(SESSION)
        changes.append(
            WhatIfChange(
                receiver[0], "queue" if name == receiver[1] else "session", name, before, then
            )
        )
    return WhatIf(
        topics.span(), changes, [LostTopic(*row) for row in comparison.lost], comparison.unknown
    )
