"""The reasons why messages of a topic do not arrive, found in the answer of `GET /api/route`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from protocols.mqtt.codec.topics import EXCHANGE
from trellis.diagnosis.findings import Problem, command, in_vhost, only
from trellis.monitoring.verdict_texts import destination_text, swapped_note

#: The verdicts with which a message may be lost: this message, or the oldest one of the queue.
_LOSING: Final = ("drops", "refuses", "cannot_represent", "needs_consumer", "drops_oldest")
#: The advice for an exchange of topics without bindings and subscriptions.
_SUBSCRIBE: Final = "subscribe an MQTT client to the topic, or bind a queue to the exchange"


def follow_topic(topic: str, vhost: str) -> str:
    """Return the command to type next if the messages of a topic arrive."""
    return command("tail", "--mqtt", topic, *in_vhost(vhost))


def topic_findings(answer: dict[str, Any], bound: bool) -> Iterator[Problem]:
    """Yield the reasons why messages of a topic do not arrive.

    `answer` is the answer of `GET /api/route` about the topic. `bound` is True if the exchange of
    the topics has a binding or a subscription.
    """
    topic = answer["topic"]
    if answer["invalid_topic"]:
        text = f"the broker refuses the message: {answer['refusal']}"
        yield Problem("refused", text, _after_invalid(topic, answer["invalid_topic"]))
    elif answer["refusal"]:
        denied = [row for row in answer["rights"] if not row["allows"]]
        rule = f" (rule '{denied[-1]['rule']}')" if denied and denied[-1]["rule"] else ""
        user = answer.get("user", "")
        yield Problem(
            "refused",
            f"the broker refuses the message: {answer['refusal']}{rule}",
            command("permissions", "list", *([user] if user else [])),
        )
    if answer["publishers_blocked"]:
        text = "publishers are blocked now: an alarm for memory or disk is on"
        yield Problem("blocked", text, command("health"))
    retained = answer["retained"] and not answer["refusal"]
    if not answer["queues"] and not answer["invalid_topic"]:
        kept = "; the message is only kept as the retained message" if retained else ""
        yield Problem(
            "no_subscription",
            f"no subscription and no binding matches topic '{topic}'{_key_text(answer)}{kept}"
            + ("" if bound else f"; exchange '{EXCHANGE}' has no binding at all: {_SUBSCRIBE}"),
            _after_no_match(answer, bound),
        )
        for row in answer["near_misses"]:
            owner = f"{row['destination_type']} '{row['destination']}'"
            text = f"'{row['binding_key']}' of {owner} almost matches: {row['text']}"
            yield Problem("near_miss", text, _after_near_miss(row, answer["vhost"]))
    for row in answer["queues"]:
        if row["verdict"] in _LOSING:
            text = destination_text(row, bool(answer["refusal"]))
            yield Problem(row["verdict"], text, _after_loss(row, answer["vhost"]))
    if answer["invalid_topic"]:
        return
    withheld = [row for row in answer["bindings"] if "may not read this topic" in row["reason"]]
    for row in withheld:
        yield Problem(
            "may_not_read",
            f"session '{row['destination']}' has a matching subscription '{row['binding_key']}', "
            "but its user may not read this topic",
            command("permissions", "list"),
        )


def _key_text(answer: dict[str, Any]) -> str:
    """Return a text with the routing key of a topic, for a topic that contains a dot.

    Return "" for a topic without dots: its routing key is the topic with `.` for `/`.
    """
    note = swapped_note(answer["topic"])
    return f", routing key '{answer['routing_key']}'{note}" if note else ""


def _after_invalid(topic: str, reason: str) -> str:
    """Return the command to type next if `topic` is invalid for a message; `reason` says why.

    A topic with wildcards is a topic filter, so the command prints the messages that match it. For
    a topic with too many levels, the command prints the limit. For other topics, such as those that
    begin with `$SYS/`, the command lists the bindings of the exchange `amq.topic`.
    """
    if "+" in topic or "#" in topic:
        return command("tail", "--mqtt", topic)
    if "mqtt.max_levels" in reason:
        return command("list", "settings", "--filter", "name=mqtt.max_levels")
    return command("list", "bindings", *only("source", EXCHANGE))


def _after_no_match(answer: dict[str, Any], bound: bool) -> str:
    """Return the command to type next if no subscription and no binding matches a topic.

    If `bound` is True, the command lists the subscriptions and bindings of the exchange, which do
    not match. If `bound` is False, the command makes the first binding.
    """
    vhost = in_vhost(answer["vhost"])
    if bound:
        return command("list", "bindings", *only("source", EXCHANGE), *vhost)
    return command("bindings", "declare", EXCHANGE, "QUEUE", answer["routing_key"], *vhost)


def _after_near_miss(row: dict[str, Any], vhost: str) -> str:
    """Return the command that shows more about the destination of a binding that nearly matches."""
    name = str(row["destination"])
    if row["destination_type"] == "session":
        return command("why", "client", name)
    return command("list", "bindings", *only("destination", name), *in_vhost(vhost))


def _after_loss(row: dict[str, Any], vhost: str) -> str:
    """Return the command that shows more about a queue or session that does not keep a message."""
    if row["type"] == "session":
        return command("why", "client", str(row["name"]))
    return command("why", "queue", str(row["name"]), *in_vhost(vhost))
