"""The classes and the public names of all Python files, found in their syntax trees.

Nothing is imported: base classes are followed through the import statements of the project. The
syntax trees of all files together would take 500 MB, and the garbage collector would search them
again and again. So the index keeps what the checks need of a tree, and drops the tree.
"""

from __future__ import annotations

import ast
import builtins
import gc
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from repository import TextFile

#: Decorators of functions that need no docstring, because another definition documents them.
_DOCUMENTED_ELSEWHERE = {"override", "overload", "setter", "deleter"}
_BUILT_IN_EXCEPTIONS = {
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}
#: The fields of a syntax node that hold statements, in the order of the source.
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")


# Two definitions are equal only if they are the same object.
@dataclass(slots=True, eq=False)
class Definition:
    """A module, class or function. Lines count from 1, columns from 0.

    `docstring` is None if there is none; otherwise `docstring_line` is its first line. `members`
    are the classes and functions of a module or class, also under `if`, `try` and `with`.
    `is_empty` is True for a module without statements.
    """

    kind: type[ast.AST]
    name: str = ""
    line: int = 1
    column: int = 0
    docstring: str | None = None
    docstring_line: int = 1
    is_empty: bool = False
    bases: list[str] = field(default_factory=list)
    decorators: set[str] = field(default_factory=set)
    members: list[Definition] = field(default_factory=list)

    @property
    def is_class(self) -> bool:
        """True for a class."""
        return self.kind is ast.ClassDef


@dataclass(frozen=True)
class Module:
    """One Python file: its classes, all definitions that can have a docstring, and its imports.

    `definition` is the module itself. `bound` has the name, line and column of each variable and
    parameter that the argument `variables` of PythonIndex names.
    """

    file: TextFile
    name: str
    definition: Definition
    classes: dict[str, Definition]
    documented: list[Definition]
    imports: dict[str, str]
    bound: list[tuple[str, int, int]]


@dataclass(frozen=True)
class PublicName:
    """A name without leading underscore; `kind` is module, class, function or method."""

    kind: str
    name: str
    definition: Definition


class PythonIndex:
    """All Python files of a repository, by the dotted names of their modules."""

    def __init__(self, files: Iterable[TextFile], variables: frozenset[str] = frozenset()) -> None:
        """Parse the Python files among `files`. Raises SyntaxError for a file that is not valid.

        `variables` are the names of variables and parameters that `Module.bound` has.
        """
        self.modules: dict[str, Module] = {}
        # Syntax trees have no reference cycles, so the garbage collector would search in vain.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            for file in files:
                if file.is_python:
                    module = _parse(file, variables)
                    self.modules[module.name] = module
        finally:
            if was_enabled:
                gc.enable()

    def public_names(self, module: Module) -> Iterator[PublicName]:
        """Yield the names of a module that need a docstring."""
        if any(part.startswith("_") and not part.endswith("__") for part in module.name.split(".")):
            return
        if not module.definition.is_empty:
            yield PublicName("module", module.name.rpartition(".")[2], module.definition)
        yield from self._public_in(module, module.definition, ())

    def _public_in(
        self, module: Module, parent: Definition, outer: tuple[str, ...]
    ) -> Iterator[PublicName]:
        for member in parent.members:
            if member.name.startswith("_") or _DOCUMENTED_ELSEWHERE & member.decorators:
                continue
            name = ".".join((*outer, member.name))
            if member.is_class:
                yield PublicName("class", name, member)
                yield from self._public_in(module, member, (*outer, member.name))
            elif parent is module.definition:
                yield PublicName("function", name, member)
            elif not self._inherits(module, parent, member.name, set()):
                yield PublicName("method", name, member)

    def is_exception(self, module: Module, definition: Definition, depth: int = 0) -> bool:
        """True if the class is an exception.

        A base class from another package counts as an exception if its name ends with Error or
        Exception.
        """
        for base in definition.bases:
            resolved = self._resolve(module, base)
            if resolved is not None:
                if depth < 20 and self.is_exception(*resolved, depth + 1):
                    return True
            elif base.endswith(("Error", "Exception")) or base in _BUILT_IN_EXCEPTIONS:
                return True
        return False

    def _inherits(
        self, module: Module, definition: Definition, method: str, seen: set[Definition]
    ) -> bool:
        """True if a base class of the project defines the method."""
        seen.add(definition)
        for base in definition.bases:
            resolved = self._resolve(module, base)
            if resolved is None or resolved[1] in seen:
                continue
            if any(member.name == method for member in resolved[1].members):
                return True
            if self._inherits(*resolved, method, seen):
                return True
        return False

    def _resolve(
        self, module: Module, name: str, depth: int = 0
    ) -> tuple[Module, Definition] | None:
        """Return the class to which a name in a module refers, and the module that defines it.

        Return None if the name refers to no class of the project.
        """
        if name in module.classes:
            return module, module.classes[name]
        head, _, rest = name.partition(".")
        if head not in module.imports or depth > 20:
            return None
        target = ".".join(filter(None, (module.imports[head], rest)))
        owner, _, last = target.rpartition(".")
        beside = f"{module.name.rpartition('.')[0]}.{owner}"
        # A script imports its neighbours by their bare names.
        owner_module = self.modules.get(owner) or self.modules.get(beside)
        return self._resolve(owner_module, last, depth + 1) if owner_module else None


def _parse(file: TextFile, variables: frozenset[str]) -> Module:
    tree = ast.parse(file.text, file.path)
    name = file.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    by_node: dict[ast.AST, Definition] = {}
    imports: dict[str, str] = {}
    # Only statements can have docstrings and imports: the expressions are left out.
    statements: deque[ast.AST] = deque([tree])
    while statements:
        node = statements.popleft()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            by_node[node] = _definition(node)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.partition(".")[0]
                imports[local] = alias.name if alias.asname else local
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        for block in _BLOCKS:
            statements.extend(getattr(node, block, ()))
    for node, definition in by_node.items():
        if isinstance(node, ast.Module | ast.ClassDef):
            definition.members = [by_node[member] for member in _members(node)]
    module = by_node[tree]
    classes = {member.name: member for member in module.members if member.is_class}
    bound = _bound(tree, variables) if _mentions(file.text, variables) else []
    return Module(file, name, module, classes, list(by_node.values()), imports, bound)


def _definition(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> Definition:
    definition = Definition(type(node), docstring=ast.get_docstring(node))
    if definition.docstring is not None:
        definition.docstring_line = node.body[0].lineno
    if isinstance(node, ast.Module):
        definition.is_empty = not node.body
        return definition
    definition.name, definition.line = node.name, node.lineno
    definition.column = node.col_offset
    definition.decorators = set(_decorators(node.decorator_list))
    if isinstance(node, ast.ClassDef):
        definition.bases = [_dotted(base) for base in node.bases]
    return definition


def _members(parent: ast.Module | ast.ClassDef) -> Iterator[ast.AST]:
    """Yield the classes and functions of a module or class, also under `if` and `try`."""
    todo: list[ast.AST] = [*reversed(parent.body)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            children = [child for block in _BLOCKS for child in getattr(node, block, ())]
            todo += children[::-1]


def _mentions(text: str, names: frozenset[str]) -> bool:
    """True if a text has one of these names. Most texts have none: their trees are not walked."""
    return bool(names) and re.search(rf"\b(?:{'|'.join(names)})\b", text) is not None


def _bound(tree: ast.Module, names: frozenset[str]) -> list[tuple[str, int, int]]:
    """Return name, line and column of the variables and parameters with one of these names."""
    bound: list[tuple[str, int, int]] = []
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name):
            if node.id in names and isinstance(node.ctx, ast.Store):
                bound.append((node.id, node.lineno, node.col_offset))
            continue
        if isinstance(node, ast.arg) and node.arg in names:
            bound.append((node.arg, node.lineno, node.col_offset))
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                todo.append(value)
            elif isinstance(value, list):
                todo += [item for item in value if isinstance(item, ast.AST)]
    return bound


def _dotted(node: ast.expr) -> str:
    """Return an expression as a dotted name without subscripts; "" if it is not a name."""
    if isinstance(node, ast.Subscript):
        return _dotted(node.value)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _decorators(decorators: list[ast.expr]) -> Iterator[str]:
    """Yield the last part of each decorator's dotted name, such as `setter` of `@x.setter`."""
    for decorator in decorators:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        yield _dotted(called).rpartition(".")[2]
