"""Tests of the list of algorithms: built-in algorithms and algorithms of installed packages."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from matching import AMQP, MQTT, NAMES, Algorithm, Matcher, algorithms, create
from matching.registry import ALGORITHMS

MODULE = """
from tests.matching.words import Listed

class Third(Listed):
    pass

NUMBER = 7
"""
ENTRIES = """
[trellis.matchers]
third = third_party:Third
broken = not_installed_anywhere:Missing
gone = third_party:Gone
nested = third_party:Third.Inner
number = third_party:NUMBER
extra = third_party:Third [fast]
trie = third_party:Third
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package that provides matchers."""
    (tmp_path / "third_party.py").write_text(MODULE)
    about = tmp_path / "third_party-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize("algorithm", algorithms(), ids=lambda algorithm: algorithm.name)
def test_every_built_in_algorithm_can_be_created_and_describes_its_costs(
    algorithm: Algorithm,
) -> None:
    assert algorithm.name in NAMES
    for grammar in (AMQP, MQTT):
        matcher: Matcher[str] = create(algorithm.name, grammar)
        assert type(matcher) is algorithm.load()
    for field in ("idea", "lookup", "subscribe", "origin"):
        assert getattr(algorithm, field)


@pytest.mark.usefixtures("installed")
def test_an_installed_package_adds_matchers_by_entry_point() -> None:
    matcher: Matcher[int] = create("third", AMQP)
    assert type(matcher).__name__ == "Third"
    matcher.subscribe("a.*", 7)
    assert matcher.match("a.b") == [7]
    third = next(algorithm for algorithm in algorithms() if algorithm.name == "third")
    assert third.origin == "package third-party"


@pytest.mark.usefixtures("installed")
def test_a_package_cannot_redefine_a_built_in_name() -> None:
    assert [algorithm.name for algorithm in algorithms()] == [
        *NAMES,
        "broken",
        "extra",
        "gone",
        "nested",
        "number",
        "third",
    ]
    assert type(create("trie", AMQP)).__module__ == "matching.trie"


@pytest.mark.usefixtures("installed")
def test_creating_a_matcher_whose_package_is_broken_raises_a_clear_error() -> None:
    with pytest.raises(ImportError, match="not_installed_anywhere"):
        create("broken", AMQP)
    with pytest.raises(
        ValueError,
        match=r"is third; known matchers are .*naive, broken, extra, gone, nested, number, third$",
    ):
        create("thirt", AMQP)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("gone", "third_party has no class 'Gone'"),
        ("nested", "third_party has no class 'Third.Inner'"),
        ("number", "NUMBER of third_party is not a class"),
    ],
)
def test_an_entry_point_without_a_class_is_an_import_error_that_names_its_package(
    name: str, problem: str
) -> None:
    with pytest.raises(ImportError) as caught:
        create(name, AMQP)
    assert str(caught.value) == (
        f"{problem}, but package third-party names it as the matcher {name} "
        "(trellis.matchers); install a compatible version of that package"
    )


@pytest.mark.usefixtures("installed")
def test_an_entry_point_may_name_extras() -> None:
    assert type(create("extra", AMQP)).__name__ == "Third"


def test_checking_a_built_in_algorithm_imports_nothing() -> None:
    program = (
        "import sys\n"
        "from matching.registry import ALGORITHMS\n"
        "for algorithm in ALGORITHMS:\n"
        "    algorithm.check()\n"
        "print(sorted({'pyroaring', 'cereggii', 'matching.bitmap'} & sys.modules.keys()))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert ran.stdout == "[]\n"


def test_checking_an_algorithm_names_the_package_that_is_missing() -> None:
    lacking = replace(ALGORITHMS[NAMES.index("bitmap")], requires="not_installed_anywhere")
    with pytest.raises(ImportError, match="not_installed_anywhere"):
        lacking.check()


@pytest.mark.usefixtures("installed")
def test_checking_an_algorithm_of_a_package_loads_it() -> None:
    third, gone = (
        next(algorithm for algorithm in algorithms() if algorithm.name == name)
        for name in ("third", "gone")
    )
    third.check()
    with pytest.raises(ImportError, match="third_party has no class 'Gone'"):
        gone.check()


def test_an_algorithm_is_made_from_a_grammar_alone() -> None:
    for algorithm in algorithms():
        parameters = list(inspect.signature(algorithm.load()).parameters.values())
        assert all(parameter.default is not parameter.empty for parameter in parameters[1:]), (
            algorithm.name
        )
