"""The classes and the public names of all Python files, found in their syntax trees.

Nothing is imported: base classes are followed through the import statements of the project.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from repository import TextFile

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function

#: Decorators of functions that need no docstring, because another definition documents them.
_DOCUMENTED_ELSEWHERE = {"override", "overload", "setter", "deleter"}
_BUILT_IN_EXCEPTIONS = {
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}


@dataclass(frozen=True)
class Module:
    """One Python file: its classes, all definitions that can have a docstring, and its imports."""

    file: TextFile
    name: str
    tree: ast.Module
    classes: dict[str, ast.ClassDef]
    documented: list[Documented]
    imports: dict[str, str]


@dataclass(frozen=True)
class PublicName:
    """A name without leading underscore; `kind` is module, class, function or method."""

    kind: str
    name: str
    node: Documented


class PythonIndex:
    """All Python files of a repository, by the dotted names of their modules."""

    def __init__(self, files: Iterable[TextFile]) -> None:
        """Parse the Python files among `files`. Raises SyntaxError for a file that is not valid."""
        self.modules: dict[str, Module] = {}
        for file in files:
            if file.is_python:
                module = _parse(file)
                self.modules[module.name] = module

    def public_names(self, module: Module) -> Iterator[PublicName]:
        """Yield the names of a module that need a docstring."""
        if any(part.startswith("_") and not part.endswith("__") for part in module.name.split(".")):
            return
        if module.tree.body:
            yield PublicName("module", module.name.rpartition(".")[2], module.tree)
        yield from self._public_in(module, module.tree, ())

    def _public_in(
        self, module: Module, parent: ast.Module | ast.ClassDef, outer: tuple[str, ...]
    ) -> Iterator[PublicName]:
        for node in definitions(parent):
            if node.name.startswith("_") or _DOCUMENTED_ELSEWHERE & set(_decorators(node)):
                continue
            name = ".".join((*outer, node.name))
            if isinstance(node, ast.ClassDef):
                yield PublicName("class", name, node)
                yield from self._public_in(module, node, (*outer, node.name))
            elif isinstance(parent, ast.Module):
                yield PublicName("function", name, node)
            elif not self._inherits(module, parent, node.name, set()):
                yield PublicName("method", name, node)

    def is_exception(self, module: Module, node: ast.ClassDef, depth: int = 0) -> bool:
        """True if the class is an exception.

        A base class from another package counts as an exception if its name ends with Error or
        Exception.
        """
        for base in map(_dotted, node.bases):
            resolved = self._resolve(module, base)
            if resolved is not None:
                if depth < 20 and self.is_exception(*resolved, depth + 1):
                    return True
            elif base.endswith(("Error", "Exception")) or base in _BUILT_IN_EXCEPTIONS:
                return True
        return False

    def _inherits(
        self, module: Module, node: ast.ClassDef, method: str, seen: set[ast.ClassDef]
    ) -> bool:
        """True if a base class of the project defines the method."""
        seen.add(node)
        for base in node.bases:
            resolved = self._resolve(module, _dotted(base))
            if resolved is None or resolved[1] in seen:
                continue
            if any(inner.name == method for inner in definitions(resolved[1])):
                return True
            if self._inherits(*resolved, method, seen):
                return True
        return False

    def _resolve(
        self, module: Module, name: str, depth: int = 0
    ) -> tuple[Module, ast.ClassDef] | None:
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


def definitions(parent: ast.Module | ast.ClassDef) -> Iterator[ast.ClassDef | Function]:
    """Yield the classes and functions of a module or class, also under `if` and `try`."""
    todo: list[ast.AST] = list(parent.body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.ClassDef | Function):
            yield node
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            todo = [*ast.iter_child_nodes(node), *todo]


def _parse(file: TextFile) -> Module:
    tree = ast.parse(file.text, file.path)
    name = file.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    classes = {node.name: node for node in definitions(tree) if isinstance(node, ast.ClassDef)}
    documented: list[Documented] = []
    imports = {}
    for node in ast.walk(tree):
        if isinstance(node, Documented):
            documented.append(node)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.partition(".")[0]
                imports[local] = alias.name if alias.asname else local
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return Module(file, name, tree, classes, documented, imports)


def _dotted(node: ast.expr) -> str:
    """Return an expression as a dotted name without subscripts; "" if it is not a name."""
    if isinstance(node, ast.Subscript):
        return _dotted(node.value)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _decorators(node: ast.ClassDef | Function) -> Iterator[str]:
    """Yield the last part of each decorator's dotted name, such as `setter` of `@x.setter`."""
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        yield _dotted(called).rpartition(".")[2]
