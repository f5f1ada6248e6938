"""Texts of what a queue or session would do with a message, for `trellis route` and `trellis why`.

This module does not import the core of the broker, so that commands start fast.
"""

from __future__ import annotations

from typing import Any, Final

#: By kind of verdict (broker/routing/queue_verdicts.py): the text for a message that the broker
#: accepts, and the text for a message that the broker refuses.
_VERDICTS: Final = {
    "takes": ("takes the message", "would get the message"),
    "drops_oldest": (
        "takes the message and drops its oldest message",
        "would get the message and drop its oldest message",
    ),
    "needs_consumer": (
        "keeps the message only if a consumer is ready",
        "would keep the message only with a ready consumer",
    ),
    "drops": ("drops the message", "would drop the message"),
    "delays": ("delays the message", "would delay the message"),
    "refuses": ("refuses the message", "would refuse the message, too,"),
    "cannot_represent": ("cannot get the message", "could not get the message, even"),
}
#: The condition that follows each text about a message that the broker refuses.
CONDITION: Final = "if the broker accepted it"


def swapped_note(topic: str) -> str:
    """Return a note that a topic's `/` and `.` are exchanged in its routing key.

    Return "" for a topic without dots.
    """
    return " (the key has '.' for the topic's '/', and '/' for its '.')" if "." in topic else ""


def verdict_text(verdict: str, refused: bool) -> str:
    """Return the text of a kind of verdict.

    If the broker refuses the message before any queue gets it (`refused`), the text says what the
    queue would do with the message.
    """
    accepted, conditional = _VERDICTS[verdict]
    return f"{conditional} {CONDITION}" if refused else accepted


def destination_text(row: dict[str, Any], refused: bool) -> str:
    """Return a row of the section `queues` of `GET /api/route` as text.

    `refused` is True if the broker refuses the message before any queue gets it.
    """
    reason = f": {row['text']}" if row["text"] else ""
    return f"{row['type']} '{row['name']}' {verdict_text(row['verdict'], refused)}{reason}"
