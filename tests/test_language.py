"""Tests of tools/check_language.py and tools/check_links.py, on trees of files that break a rule or
keep it."""

from __future__ import annotations

import io
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[1] / "tools"

DOCUMENTED = '"""The module."""\n'
BASE = (
    DOCUMENTED
    + 'class Base:\n    """A base."""\n\n    def run(self) -> None:\n        """Run."""\n'
)
ALLOW = '[[allow]]\nrule = "banned-word"\npattern = "nobody_at_all"\nreason = "a name on disk"\n'


def run(tool: str, root: Path, files: dict[str, str]) -> list[str]:
    """Write the files, run the tool on them, check its exit code, and return its lines."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.syspath_prepend(str(TOOLS))
        patch.setattr(sys, "argv", [tool, str(root)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(TOOLS / tool), run_name="__main__")
    lines = printed.getvalue().splitlines()
    assert ended.value.code == (1 if lines else 0)
    return lines


def places(lines: list[str]) -> list[str]:
    """Return `file:line: rule` for each line of a tool's output."""
    return [": ".join(line.split(": ")[:2]) for line in lines]


@pytest.mark.parametrize(
    ("name", "text", "line", "rule"),
    [
        ("a.md", "Nobody knows.\n", 1, "banned-word"),
        ("Makefile", "# somebody\n", 1, "banned-word"),
        ("a.yml", "a: Whoever\n", 1, "banned-word"),
        ("tests/a.py", "x = 1\nnobody_at = 1\n", 2, "banned-word"),
        ("tests/a.py", "isNobodyAt = 1\n", 1, "banned-word"),
        ("tests/a.py", "# it lets\n# go of all\n", 1, "banned-word"),
        ("a.md", "of 8 octets\n", 1, "banned-word"),
        ("a.md", "AMQP 0-9-1\n\nof 8 octets\n", 3, "banned-word"),
        ("tests/a.py", "octets = 1  # RFC 768\n", 1, "banned-word"),
        ("tests/a.py", "x.let_go()\n", 1, "old-name"),
        ("tests/a.py", "x = 1\nfor found in []:\n    pass\n", 2, "vague-variable"),
        ("tests/a.py", "asked: int = 1\n", 1, "vague-variable"),
        ("tests/a.py", "f = lambda said: said\n", 1, "vague-variable"),
        ("tests/a.py", "self._gate: Gate\n", 1, "old-name"),
        ("a.md", "The `Gate` is closed.\n", 1, "old-name"),
        ("a/pen.py", DOCUMENTED, 1, "old-name"),
        ("tests/a.py", '"""Whether it is."""\n', 1, "docstring-opening"),
        (
            "tests/a.py",
            'def f():\n    def g():\n        """\n        ...then."""\n',
            3,
            "docstring-opening",
        ),
        ("tests/a.py", "x = 1\n#: How many.\nn = 1\n", 2, "docstring-opening"),
        ("tests/a.py", f"x = '{'x' * 95}'\n", 1, "line-length"),
        ("a.py", "x = 1\n", 1, "missing-docstring"),
        ("a.py", DOCUMENTED + "class A:\n    x = 1\n", 2, "missing-docstring"),
        ("a.py", DOCUMENTED + "if 1:\n    def f(): ...\n", 3, "missing-docstring"),
        ("a.py", BASE + "    def stop(self): ...\n", 7, "missing-docstring"),
    ],
)
def test_a_broken_rule_is_found(tmp_path: Path, name: str, text: str, line: int, rule: str) -> None:
    assert places(run("check_language.py", tmp_path, {name: text})) == [f"{name}:{line}: {rule}"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "See [MQTT-1.5.4-3]:\nof 8 octets\n"),
        ("a.md", "Anybody's `octet-stream`, the heirloom of their theirs.\n"),
        ("a.md", "Gate 3. Many people were Settled.\n"),
        ("tests/a.py", "x.let_go_now(Gateway)\n"),
        ("a/open.py", DOCUMENTED),
        ("tests/a.py", '"""Android, Whatsoever.\n\nAnd how."""\n#: Size of\n#: what is sent.\n'),
        ("tests/a.py", f"x = '{'x' * 94}'\n"),
        ("a.md", "x" * 101),
        ("_a.py", "class A: ...\ndef f(): ...\n"),
        ("tests/a.py", "class A: ...\ndef f(): ...\n"),
        ("a.py", BASE + "    def _stop(self): ...\n    def __len__(self): ...\n"),
        ("a.py", BASE + "    @x.override\n    def walk(self): ...\n"),
        ("a/__init__.py", ""),
    ],
)
def test_a_kept_rule_is_no_violation(tmp_path: Path, name: str, text: str) -> None:
    assert run("check_language.py", tmp_path, {name: text}) == []


def test_an_overriding_method_needs_no_docstring(tmp_path: Path) -> None:
    child = DOCUMENTED + (
        "from a.b import {name}\nclass Child({name}[int]):\n"
        '    """A child."""\n    def run(self): ...\n'
    )
    files = {
        "a/__init__.py": "",
        "a/b.py": DOCUMENTED + "from a.base import Base as Parent\n",
        "a/base.py": BASE,
        "a/good.py": child.format(name="Parent"),
        "a/bad.py": child.format(name="Unknown").replace("Child", "Stranger"),
    }
    assert places(run("check_language.py", tmp_path, files)) == ["a/bad.py:5: missing-docstring"]


def test_docstrings_of_exceptions_begin_with_the_condition(tmp_path: Path) -> None:
    """Check that the rule follows base classes through imports, and knows built-in exceptions."""
    exception = 'class {name}({base}):\n    """{text}"""\n'
    parts = (
        ("Lost", "Failed", "The link is lost."),
        ("Late", "Failed", "Raised if no answer comes in time."),
        ("Ended", "BaseException", "Raised when the test ends."),
        ("Foreign", "elsewhere.ForeignError", "Raised by a library."),
        ("Failures", "list[Failed]", "The failures of a run."),
    )
    classes = "".join(
        exception.format(name=name, base=base, text=text) for name, base, text in parts
    )
    files = {
        "a/__init__.py": "",
        "a/errors.py": DOCUMENTED + exception.format(name="Failed", base="OSError", text="Failed."),
        "tests/b.py": "from a.errors import Failed\n" + classes,
    }
    assert places(run("check_language.py", tmp_path, files)) == [
        "a/errors.py:3: exception-opening",
        "tests/b.py:3: exception-opening",
        "tests/b.py:9: exception-opening",
    ]


def test_two_classes_of_one_name_are_found_outside_tests(tmp_path: Path) -> None:
    files = {"a.py": BASE, "b/c.py": BASE, "tests/d.py": BASE}
    assert places(run("check_language.py", tmp_path, files)) == ["b/c.py:2: duplicate-class"]
    allow = '[[allow]]\nrule = "duplicate-class"\npath = "a.*"\npattern = "Base"\nreason = "x"\n'
    assert run("check_language.py", tmp_path, {"tools/language_allowed.toml": allow}) == []


def test_ignored_files_are_not_checked(tmp_path: Path) -> None:
    files = {".gitignore": "out/\n*.log\n", "out/a.md": "nobody", "b/c.log": "nobody"}
    assert run("check_language.py", tmp_path, files) == []


def test_the_allow_list_covers_the_word_that_its_pattern_matches(tmp_path: Path) -> None:
    files = {"tools/language_allowed.toml": ALLOW, "tests/a.py": "nobody_at_all = nobody\n"}
    lines = run("check_language.py", tmp_path, files)
    assert places(lines) == ["tests/a.py:1: banned-word"]


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        (ALLOW, "allows nothing"),
        (ALLOW.replace("reason", "because"), "needs a known rule, a pattern and a reason"),
        (ALLOW.replace("banned-word", "word"), "needs a known rule, a pattern and a reason"),
        (ALLOW.replace("_at_all", "") * 21, "the list has 21 entries; keep at most 20"),
    ],
)
def test_the_allow_list_is_checked_itself(tmp_path: Path, entries: str, complaint: str) -> None:
    files = {"tools/language_allowed.toml": entries, "a.md": "nobody"}
    assert any(
        "allow-list: " in line and complaint in line
        for line in run("check_language.py", tmp_path, files)
    )


def test_count_prints_a_table(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("nobody, nobody\n")
    command = [sys.executable, str(TOOLS / "check_language.py"), "--count", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].split() == ["total", "2", *["0"] * 8]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("[x](a/b.py) ![y](</a.md> 'title')", "link"),
        ("[x](../a.md)", "link"),
        ("# One\n\n[x]: #two", "anchor"),
        ("[x](other.md#here)", "anchor"),
        ("`docs/gone.md`", "path"),
        ("see `docs/gone/`", "path"),
        ("`gone.py`", "path"),
        ("    python docs/gone.sh\n".join(["\n\n", ""]), "path"),
        ("`make gone`", "make"),
        ("```\nmake run ARGS='x' gone\n```", "make"),
        ("`trellis gone`", "command"),
        ("\n\n    .run/bin/trellis store verify|gone\n", "command"),
    ],
)
def test_names_of_nothing_are_found(tmp_path: Path, text: str, rule: str) -> None:
    files = {"docs/a.md": text, "docs/other.md": "# There\n", "Makefile": "run: x\n"}
    lines = run("check_links.py", tmp_path, files)
    assert lines
    assert all(line.split(": ")[1] == rule for line in lines), lines


def test_valid_links_paths_and_commands_are_no_violations(tmp_path: Path) -> None:
    page = """# What `x_y` is, and [why](a.md)!

## Twice
## Twice
[1](#what-x_y-is-and-why) [2](#twice-1) [3](../README.md#an-anchor) [4](https://x.invalid/y)
[5](mailto:a@b.invalid) `[6](gone.md)` `docs/a.md` `docs/` `a.md` `a/b` `docs/NAME.json`
`make run` make it, `trellis store verify|dump`, `trellis definitions import FILE`, trellis speaks

    make test run ARGS="--x true"
    [7](gone.md)
"""
    files = {"docs/a.md": page, "README.md": '<a id="an-anchor"></a>', "Makefile": "run test: x\n"}
    assert run("check_links.py", tmp_path, files) == []
