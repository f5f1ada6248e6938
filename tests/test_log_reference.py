"""Tests that docs/log-reference.md lists each event that the code logs, and no other event."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from trellis import cli

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "log-reference.md").read_text()
LEVELS = ("info", "warning", "error")
#: Methods that log their first argument as an event of level warning.
REFUSING = ("_log", "_write")


def literal(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@functools.cache
def logged() -> list[tuple[str, str]]:
    """Return (event, level) of each log call in the code; "" if the call does not show a level."""
    return list(_calls())


def _calls() -> Iterator[tuple[str, str]]:
    """Yield (event, level) of each log call in the code; "" if the call does not show a level."""
    for package in ("trellis", "protocols"):
        for file in (ROOT / package).rglob("*.py"):
            tree = ast.parse(file.read_text())
            for call in ast.walk(tree):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.IfExp):
                    # (logs.info if ... else logs.warning)("event", ...)
                    for branch in (call.func.body, call.func.orelse):
                        if ast.unparse(branch) in {f"logs.{level}" for level in LEVELS}:
                            yield literal(call.args[0]), ast.unparse(branch).removeprefix("logs.")
                if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                    continue
                name, value = call.func.attr, call.func.value
                # The last name in `value`. For all calls, ast.unparse(value) would take half a
                # second.
                holder = value.id if isinstance(value, ast.Name) else ""
                if isinstance(value, ast.Attribute):
                    holder = f".{value.attr}"
                if holder == "logs" and name in LEVELS and call.args and literal(call.args[0]):
                    yield literal(call.args[0]), name
                elif holder == "logs" and name == "secret":
                    yield literal(call.args[0]), "warning"
                elif holder == "logs" and name == "log":
                    yield literal(call.args[1]) or constant(tree, call.args[1]), ""
                elif name == "add" and holder == ".refusals" and isinstance(call.args[0], ast.Name):
                    yield constant(tree, call.args[0]), "info"
                elif not call.args or not re.fullmatch("[a-z_]+", literal(call.args[0])):
                    continue
                elif (
                    name in ("log_refusal", "log_refused_publication", "_log_error")
                    or (name == "add" and holder.endswith("refusals"))
                    or file.name == "admission.py"
                ):
                    yield literal(call.args[0]), "info"
                elif name in REFUSING:
                    yield literal(call.args[0]), "warning"


def constant(tree: ast.Module, name: ast.expr) -> str:
    """Return the text of a constant of a module, which has the form `NAME: Final = "text"`.

    The module may import the constant from another module.
    """
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and ast.unparse(name) in {
            one.name for one in node.names
        }:
            file = ROOT.joinpath(*str(node.module).split(".")).with_suffix(".py")
            return constant(ast.parse(file.read_text()), name)
    (text,) = [
        literal(node.value)
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and node.value is not None
        if ast.unparse(node.target) == ast.unparse(name)
    ]
    return text


def documented() -> dict[str, set[str]]:
    """Return event -> level, from the tables of docs/log-reference.md."""
    event_levels: dict[str, set[str]] = {}
    for events, levels in re.findall(r"^\| (`[^|]*`) \| ([a-z, ]+) \|", PAGE, re.MULTILINE):
        names = re.findall(r"`([^`]+)`", events)
        of_each = levels.split(", ")
        for at, name in enumerate(names):
            levels_of = of_each if len(names) == 1 else [of_each[at if len(of_each) > 1 else 0]]
            event_levels.setdefault(name, set()).update(levels_of)
    return event_levels


def test_the_page_has_every_event_with_its_level() -> None:
    page, code = documented(), dict(logged())
    assert len(code) > 60
    assert set(page) == set(code)
    for event, level in logged():
        assert not level or level in page[event], event


def test_the_page_names_only_existing_commands() -> None:
    named = set(re.findall(r"`trellis ([a-z]+)", PAGE))
    assert named >= {"users", "why", "store", "cluster"}
    assert named <= set(cli.COMMANDS)
