"""Tests of operators' regular expressions: usual ones are accepted, slow ones are refused."""

from __future__ import annotations

import re
import string
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.access.identity import pattern_of
from broker.errors import PreconditionFailed
from broker.patterns import NAME_MAX, PATTERN_MAX, bounded_pattern, is_found
from trellis.settings.values import check_regex

#: Size of the longest routing key in bytes: a topic name of MQTT.
KEY_MAX = 65_535
USUAL = [
    "",
    ".*",
    "^.*$",
    "^$",
    "orders",
    "^orders$",
    r"^orders\..*",
    r"^orders\..*\.v[0-9]+$",
    r"^(?!amq\.).*",
    r"^(amq\.default|events)$",
    "^(ha|two|three)[.-].*",
    r".*\.dlq",
    ".*foo.*",
    "(?i)^ha",
    "^[a-z]{1,20}-[0-9]{4}$",
    "^amq.gen.*",
    r"^\w+$",
    "^(a|b)?c",
    "^(federate|shard)\\.",
    "^(abc)*$",
]
SLOW = [
    "(a+)+$",
    "(a*)*b",
    "(a|a)*b",
    "(a|aa)+$",
    "(.*)*x",
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    ".*a.*b.*c",
    r"a*a*.*\b",
    "(?m)^a*b*c",
    "a?" * 30 + "a" * 30,
    "(?:(?:a?){20}){20}b",
    "(?=(a+)+$)x",
    r"(a+)\1+\1+b",
    "x" * (PATTERN_MAX + 1),
    "(",
    "a{2,1}",
]


@pytest.mark.parametrize("text", USUAL)
def test_usual_pattern_is_accepted_with_its_usual_meaning(text: str) -> None:
    compiled = bounded_pattern(text, re.DOTALL)
    for name in ("orders.1.v2", "amq.gen-x", "", "events", "a" * NAME_MAX):
        assert bool(compiled.search(name)) == bool(re.search(text, name, re.DOTALL))


@pytest.mark.parametrize("text", SLOW)
def test_a_slow_or_invalid_pattern_is_refused(text: str) -> None:
    with pytest.raises(PreconditionFailed):
        bounded_pattern(text, re.DOTALL)


PIECES = st.sampled_from([*"ab.", "[ab]", "a|b", "", "ab", "^", "$", r"\b"])
PATTERNS = st.recursive(
    PIECES,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{0,9}", "*?", "{2}"])).map(
            lambda parts: f"(?:{parts[0]}){parts[1]}"
        ),
        inner.map(lambda text: f"(?!{text})"),
    ),
    max_leaves=8,
)


@settings(max_examples=400, deadline=None)
@given(PATTERNS, st.sampled_from(["a", "ab", "b", "aab"]), st.sampled_from(["", "c"]))
def test_no_accepted_pattern_is_slow(text: str, unit: str, end: str) -> None:
    try:
        compiled = bounded_pattern(text, re.DOTALL)
    except PreconditionFailed:
        return
    for size in (NAME_MAX, KEY_MAX):
        name = (unit * size)[: size - len(end)] + end
        began = time.thread_time()
        is_found(compiled, name)
        # A search within the bound of steps takes far less than 0.5 s; an exponential one would
        # take hours.
        assert time.thread_time() - began < 0.5


@pytest.mark.parametrize(
    "text", ["", ".*", "^$", r"^orders\..*", r"^orders\..*\.v[0-9]$", "^(a|o).*$", r"\.v1$"]
)
def test_a_pattern_that_takes_linear_time_is_found_in_long_texts(text: str) -> None:
    compiled = bounded_pattern(text, re.DOTALL)
    for middle in ("x", ".v", "\n"):
        for end in (".v1", ".w1"):
            name = "orders." + middle * 30_000 + end
            assert is_found(compiled, name) == bool(re.search(text, name, re.DOTALL))


@pytest.mark.parametrize("text", [r"^a\..*\.b\..*\.c$", r"a.*b"])
def test_a_pattern_that_may_take_long_is_not_found_in_long_texts(text: str) -> None:
    compiled = bounded_pattern(text, re.DOTALL)
    name = "a..b.ab.c"
    assert is_found(compiled, "a.b.b.b.c") == bool(compiled.search("a.b.b.b.c"))
    assert is_found(compiled, name[:4] + "." * 200 + name[4:]) == bool(
        compiled.search(name[:4] + "." * 200 + name[4:])
    )
    assert not is_found(compiled, "a." + ".b." * 20_000 + ".c")


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("^[[:upper:]]+$", ["A", "XYZ"], ["a", ":]", "u]", "\u00c4"]),
        ("^[^[:alpha:]-]$", ["1", "[", ":"], ["a", "Z", "-"]),
        ("^[[:digit:][:space:]_]+$", ["1 2_", "\t"], ["a", ":", "["]),
        ("^[[a]+$", ["[a["], ["b", "]"]),
        ("^[][:punct:]]$", ["]", "[", "!", "~"], ["a", " "]),
        (r"^\[[:xdigit:]", None, []),
        ("[:alpha:]", None, []),
        ("[[:^alpha:]]", None, []),
        ("[[:odd:]]", None, []),
        (r"^[\][:lower:]]$", ["]", "a"], ["A", "["]),
    ],
)
@pytest.mark.filterwarnings("error")
def test_posix_classes_mean_the_same_as_in_rabbitmq(
    pattern: str, matching: list[str] | None, others: list[str]
) -> None:
    if matching is None:
        with pytest.raises(PreconditionFailed, match="must be a POSIX class within brackets"):
            bounded_pattern(pattern)
        return
    check_regex(pattern)
    for compiled in (bounded_pattern(pattern), pattern_of(pattern)):
        assert [text for text in matching if not is_found(compiled, text)] == []
        assert [text for text in others if is_found(compiled, text)] == []


def test_posix_classes_contain_only_ascii() -> None:
    """Compare each POSIX class, such as `[:alpha:]`, with Python for every ASCII character.

    No class contains one of the next 896 characters, such as Latin and Greek letters.
    """
    known: dict[str, Callable[[str], bool]] = {
        "alnum": str.isalnum,
        "alpha": str.isalpha,
        "digit": str.isdigit,
        "lower": str.islower,
        "upper": str.isupper,
        "print": str.isprintable,
        "graph": lambda c: c.isprintable() and c != " ",
        "cntrl": lambda c: not c.isprintable(),
        "punct": lambda c: c in string.punctuation,
        "xdigit": lambda c: c in string.hexdigits,
        "space": lambda c: c in string.whitespace,
        "blank": lambda c: c in " \t",
    }
    for name, holds in known.items():
        compiled = bounded_pattern(f"^[[:{name}:]]\\Z")
        for code in range(1024):
            expected = code < 128 and holds(chr(code))
            assert is_found(compiled, chr(code)) == expected, (name, code)
