"""The answer of `trellis route` as text: a tree of exchanges and bindings, then the verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from trellis.monitoring.verdict_texts import CONDITION, destination_text, swapped_note, verdict_text

Answer = dict[str, Any]


def lines_of(answer: Answer) -> Iterator[str]:
    """Yield the lines of text for an answer of `GET /api/route`."""
    yield from _head(answer)
    yield from _tree(answer)
    refused = bool(answer["refusal"])
    yield "" if answer["queues"] else _no_queue(refused)
    for row in sorted(answer["queues"], key=lambda row: (row["name"], row["type"])):
        yield destination_text(row, refused)
    listed = Counter(row["verdict"] for row in answer["queues"])
    for verdict, count in answer["verdicts"].items():
        if count > listed[verdict]:
            text = verdict_text(verdict, refused)
            more = f"{count - listed[verdict]:,} more queues or sessions with the verdict '{text}'"
            yield f"... and {more} (--all prints all)"
    if answer["near_misses"]:
        yield ""
        yield "near misses:"
    for row in answer["near_misses"]:
        yield f"  {near_miss_text(row)}"
    if not answer["examined_all"]:
        yield f"  (the list is incomplete: only {answer['examined']} bindings were compared)"
    if answer["outdated"]:
        yield "bindings changed while the broker made this answer: run the command again"


def near_miss_text(row: Answer) -> str:
    """Return a near miss (a binding that almost matches) as text."""
    return f"{_ends(row)}: {row['text']}"


def message_text(answer: Answer) -> str:
    """Return the text that names the message of an answer: exchange and key, or topic."""
    if "topic" in answer:
        return f"topic '{answer['topic']}'"
    exchange = answer["exchange"] or "amq.default"
    return f"exchange '{exchange}', key '{answer['routing_key']}'"


def _no_queue(refused: bool) -> str:
    """Return the line about a message that reaches no queue.

    `refused` is True if the broker refuses the message before any queue gets it.
    """
    if refused:
        return f"no queue and no session would get the message, even {CONDITION}"
    return "the message reaches no queue and no session"


def _head(answer: Answer) -> Iterator[str]:
    yield f"{message_text(answer)}, vhost '{answer['vhost']}'"
    if "headers" in answer:
        yield f"headers {answer['headers']}"
    if "topic" in answer:
        note = swapped_note(answer["topic"])
        yield f"routing key '{answer['routing_key']}' of exchange '{answer['exchange']}'{note}"
        if answer["retained"]:
            yield "a message is retained for this topic"
    if answer["publishers_blocked"]:
        yield "publishers are blocked now: an alarm for memory or disk is on"
    if answer["refusal"]:
        yield f"refused: {answer['refusal']}"
    elif "user" in answer:
        yield f"user '{answer['user']}' may publish the message"
    for row in answer["rights"]:
        if row["rule"]:
            verdict = "allows" if row["allows"] else "does not allow"
            yield f"  {row['right']} '{row['rule']}' {verdict} '{row['on']}'"
        else:
            verdict = "allowed" if row["allows"] else "denied"
            yield f"  {row['right']}: no rule matches '{row['on']}', so it is {verdict}"
    yield ""


def _tree(answer: Answer) -> Iterator[str]:
    """Yield a line for each exchange and binding; an exchange is listed once, below the first
    binding that leads to it.

    A stack of iterators replaces recursion: exchanges may be bound to each other very deeply.
    """
    exchanges = {row["name"]: row for row in answer["exchanges"]}
    bindings: dict[str, list[Answer]] = {name: [] for name in exchanges}
    for row in sorted(answer["bindings"], key=_order):
        bindings[row["exchange"]].append(row)
    root = answer["exchange"]
    shown = {root}
    yield _exchange(exchanges[root])
    stack = [_branches(exchanges[root], bindings[root])]
    while stack:
        branch = next(stack[-1], None)
        if branch is None:
            stack.pop()
            continue
        text, child = branch
        indent = "  " * len(stack)
        known = child in shown
        yield f"{indent}{text}{' (shown above)' if known else ''}"
        if child is None or known or child not in exchanges:
            continue
        shown.add(child)
        if exchanges[child]["type"]:
            stack.append(_branches(exchanges[child], bindings[child]))
        else:
            yield f"{indent}  exchange '{child}' does not exist"


def _order(row: Answer) -> tuple[str, str, str]:
    """Return the sort key of a binding, because the broker lists bindings in no order."""
    return row["binding_key"], row["destination_type"], row["destination"]


def _branches(exchange: Answer, bindings: list[Answer]) -> Iterator[tuple[str, str | None]]:
    """Yield the text of each binding, and the exchange to which it leads; None for a queue."""
    for row in bindings:
        key = f" (key '{row['matched_key']}')" if "matched_key" in row else ""
        child = row["destination"] if row["destination_type"] == "exchange" else None
        yield f"{_ends(row, False)}: {row['reason']}{key}", child
    left_out = exchange["matched"] - len(bindings)
    if left_out:
        yield f"... and {left_out:,} more bindings (--all prints all)", None
    if "alternate" in exchange:
        yield (
            f"no binding matches -> alternate exchange '{exchange['alternate']}'",
            exchange["alternate"],
        )
    elif not bindings:
        yield "no binding matches", None


def _exchange(row: Answer) -> str:
    return f"exchange '{row['name'] or 'amq.default'}' ({row['type']})"


def _ends(row: Answer, with_exchange: bool = True) -> str:
    """Return a binding as text: its key or arguments, and its destination.

    `with_exchange` is True if the text must name the exchange, too.
    """
    arguments = row.get("arguments")
    about = f"'{row['binding_key']}'" + (f" {arguments}" if arguments else "")
    if with_exchange:
        about += f" of exchange '{row['exchange'] or 'amq.default'}'"
    qos = f" (QoS {row['qos']})" if "qos" in row else ""
    return f"{about} -> {row['destination_type']} '{row['destination']}'{qos}"
