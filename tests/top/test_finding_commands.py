"""Tests that each finding of `trellis why` has a command that the parser accepts."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path
from typing import Final

from tests.top.why_answers import parsed
from trellis import diagnosis

#: The modules of the package that makes the findings.
DIAGNOSIS: Final = Path(diagnosis.__file__).parent


def values_of(node: ast.expr) -> list[str]:
    """Return possible texts of an expression in a call of `command`; "x" stands for a variable."""
    match node:
        case ast.Constant():
            return [str(node.value)]
        case ast.IfExp():
            return [*values_of(node.body), *values_of(node.orelse)]
        case ast.JoinedStr():
            parts = [one.value if isinstance(one, ast.Constant) else "x" for one in node.values]
            return ["".join(map(str, parts))]
    return ["x"]


def lines_of(call: ast.Call) -> list[str]:
    """Return the command lines that a call of `command` in the package can return."""
    lines: list[list[str]] = [["trellis"]]
    for word in call.args:
        options = [[one] for one in values_of(word)]
        if isinstance(word, ast.Starred):  # `in_vhost` has no word for the default virtual host.
            source = ast.unparse(word.value)
            only = ["--filter", "name=x"] if source.startswith("only(") else None
            vhost = ["--vhost", "x"] if "vhost" in source else None
            options = [only or vhost or ["x"]] + ([[]] if only is None else [])
        lines = [[*line, *option] for line in lines for option in options]
    return [shlex.join(line) for line in lines]


def test_every_finding_has_a_command_that_the_parser_accepts() -> None:
    modules = [ast.parse(path.read_text()) for path in DIAGNOSIS.glob("*.py")]
    functions = {
        node.name: node
        for module in modules
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef)
    }

    def check(expression: ast.expr, owner: ast.FunctionDef) -> None:
        """Check that an expression is a call of `command`, or of a function that returns one."""
        if isinstance(expression, ast.Name):  # A parameter; the callers are checked.
            assert expression.id in {one.arg for one in owner.args.args}, ast.unparse(owner)
            return
        assert isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name)
        name = expression.func.id
        if name == "command":
            for line in lines_of(expression):
                parsed(line)
            return
        returns = [one for one in ast.walk(functions[name]) if isinstance(one, ast.Return)]
        assert returns, name
        for one in returns:
            assert one.value is not None
            check(one.value, functions[name])

    problems = 0
    for function in functions.values():
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id == "Problem":
                problems += 1
                assert len(node.args) == 3, ast.unparse(node)
                check(node.args[2], function)
            elif node.func.id == "_growth":  # The command is the last argument.
                consumers = node.args[-1]
                assert ast.unparse(consumers) == "next_consumers(vhost, queue)"
                check(consumers, function)
    assert (
        problems == sum(path.read_text().count("Problem(") for path in DIAGNOSIS.glob("*.py")) - 1
    )
    for name in ("follow_topic", "watch_queue", "watch_connection", "watch_session"):
        call = ast.parse(f"{name}()", mode="eval").body
        check(call, functions[name])
