"""A finding: one problem of an object, or one fact that explains its state."""

from __future__ import annotations

import glob
import shlex

import msgspec


class Problem(msgspec.Struct):
    """A problem of a queue, a client or a topic.

    `problem` is a name for programs, such as "no_consumer". `text` is a sentence, without a full
    stop. `next` is the command that shows more or solves the problem.
    """

    problem: str
    text: str
    next: str


def command(*words: str) -> str:
    """Return a command line of `trellis`, quoted for a shell."""
    return shlex.join(("trellis", *words))


def in_vhost(vhost: str) -> tuple[str, ...]:
    """Return the arguments that name a virtual host; () for the default virtual host."""
    return () if vhost == "/" else ("--vhost", vhost)


def only(column: str, value: str) -> tuple[str, str]:
    """Return the arguments of `trellis list` for the rows whose `column` has exactly this value."""
    return "--filter", f"{column}={glob.escape(value)}"


def waiting(count: int) -> str:
    """Return how many messages wait: "1 message waits", "2 messages wait"."""
    return f"{plural(count, 'message')} wait{'s' if count == 1 else ''}"


def plural(count: int, noun: str) -> str:
    """Return a number with a noun: "1 message", "1,204 messages"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
