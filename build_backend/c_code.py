"""Shortens the C code of mypyc, so that it compiles faster and to less machine code.

- An import from a compiled module takes 40 lines: 45 % of the code that runs at the import of a
  module. One call replaces it.
- After each step that can fail, mypyc adds an entry to the traceback: 48,000 calls. The failures of
  a function that go on in the same place share one call.

What the code does stays the same, and so do the line numbers of tracebacks. The version of mypyc is
pinned (trellis_build.py). If no import has the expected form, `shorten_code` raises ValueError.
All other code that does not have the expected form stays as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

#: A line that adds an entry to the traceback, and the jump that follows.
ENTRY: Final = re.compile(
    r'^( +)CPy_AddTraceback\(("[^"]*", "[^"]*"), (\d+), (CPyStatic_\w+)\);\n +goto (CPyL\d+);\n',
    re.MULTILINE,
)
#: A function of Python code, from its first to its last line.
FUNCTION: Final = re.compile(
    r"^((?:static )?[\w *]+\bCPyDef_\w+\([^\n]*\) \{\n)(.*?)^\}\n", re.MULTILINE | re.DOTALL
)


def _failure(variable: str, end: str = "(?P=end)") -> str:
    """Return the pattern of the lines that follow a failed step of an import."""
    return (
        rf"    if \(unlikely\({variable} == NULL\)\) \{{\n"
        rf" +CPy_AddTraceback[^\n]*\n +goto {end};\n    \}}\n"
    )


#: The import of names from a compiled module. The variables are named in the order of their lines.
IMPORT: Final = re.compile(
    r"    (?P<cache>\w+) = \(void \*\)&CPyModule_(?P<module>\w+);\n"
    r"    (?P<state>\w+) = \(void \*\)&CPyImportState_(?P=module);\n"
    r"    (?P<locks>\w+) = CPyModuleLockAPI_trellis;\n"
    r"    (?P<done>\w+) = CPyImport_IsInitialized\((?P=state)\);\n"
    r"    if \(!(?P=done)\) goto (?P<new>\w+);\n"
    r"    (?P<modules>\w+) = PyImport_GetModuleDict\(\);\n"
    r"    (?P<key>\w+) = CPyStatics\[(?P<name>\d+)\];[^\n]*\n"
    r"    (?P<known>\w+) = CPyDict_GetItem\((?P=modules), (?P=key)\);\n"
    + _failure("(?P=known)", r"(?P<end>\w+)")
    + r"    (?P<imported>\w+) = (?P=known);\n"
    r"    goto (?P<both>\w+);\n"
    r"(?P=new): ;\n"
    r"    (?P<create>\w+) = CPyInitOnly_(?P=module);\n"
    r"    (?P<run>\w+) = CPyExec_(?P=module);\n"
    r"    (?P<static>\w+) = \(PyObject \*\*\)&CPyModule_(?P=module)__internal;\n"
    r"    (?P<modules2>\w+) = PyImport_GetModuleDict\(\);\n"
    r"    (?P<libkey>\w+) = CPyStatics\[(?P<library>\d+)\];[^\n]*\n"
    r"    (?P<lib>\w+) = CPyDict_GetItem\((?P=modules2), (?P=libkey)\);\n"
    + _failure("(?P=lib)")
    + r"    (?P<filekey>\w+) = CPyStatics\[(?P<file>\d+)\];[^\n]*\n"
    r"    (?P<path>\w+) = CPyObject_GetAttr\((?P=lib), (?P=filekey)\);\n"
    r"    CPy_DECREF\((?P=lib)\);\n"
    + _failure("(?P=path)")
    + r"    (?P<suffixkey>\w+) = CPyStatics\[(?P<suffix>\d+)\];[^\n]*\n"
    r"    (?P<key2>\w+) = CPyStatics\[(?P=name)\];[^\n]*\n"
    r"    (?P<created>\w+) = CPyImport_ImportNative\((?P=key2), (?P=create), (?P=run), "
    r"(?P=static), (?P=cache), (?P=state), (?P=locks), (?P=path), (?P=suffixkey), 0\);\n"
    r"    CPy_DECREF\((?P=path)\);\n"
    + _failure("(?P=created)")
    + r"    (?P=imported) = (?P=created);\n"
    r"(?P=both): ;\n"
    r"(?P<names>(?:    \w+ = CPyStatics\[\d+\];[^\n]*\n)+)"
    r"    (?P<place>\w+) = (?P<globals>CPyStatic_\w+);\n"
    r"    (?P<result>\w+) = CPyImport_GetNativeAttrs\((?P=imported), (?P<arguments>\w+, \w+), "
    r"(?P=place)\);\n"
    r"    CPy_DECREF\((?P=imported)\);\n"
)

#: The import of names from a compiled module as a function, declared and defined.
DECLARED: Final = """
struct trellis_module {
    CPyModuleCache *cache;
    CPyImportState *state;
    PyObject *(*create)(void);
    int (*run)(PyObject *);
    CPyModule **module;
    int name;
};
extern PyObject *trellis_import_from(
    const struct trellis_module *from, PyObject *names, PyObject *as_names, PyObject *globals);
"""
DEFINED: Final = """
PyObject *trellis_import_from(
    const struct trellis_module *from, PyObject *names, PyObject *as_names, PyObject *globals)
{
    PyObject *name = CPyStatics[from->name];
    PyObject *module;
    if (CPyImport_IsInitialized(from->state)) {
        module = CPyDict_GetItem(PyImport_GetModuleDict(), name);
    } else {
        PyObject *library = CPyDict_GetItem(PyImport_GetModuleDict(), CPyStatics[LIBRARY]);
        if (library == NULL)
            return NULL;
        PyObject *file = CPyObject_GetAttr(library, CPyStatics[FILE]);
        CPy_DECREF(library);
        if (file == NULL)
            return NULL;
        module = CPyImport_ImportNative(
            name, from->create, from->run, from->module, from->cache, from->state,
            CPyModuleLockAPI_trellis, file, CPyStatics[SUFFIX], 0);
        CPy_DECREF(file);
    }
    if (module == NULL)
        return NULL;
    PyObject *attributes = CPyImport_GetNativeAttrs(module, names, as_names, globals);
    CPy_DECREF(module);
    return attributes;
}
"""


class Imports:
    """The imports from compiled modules that were replaced.

    `modules` maps the name of a module in C to the number of its name in CPyStatics. `numbers` has
    the numbers of the library's name, of "__file__", and of the suffix of extension files.
    """

    def __init__(self) -> None:
        self.modules: dict[str, str] = {}
        self.numbers: set[tuple[str, str, str]] = set()

    def replace(self, match: re.Match[str]) -> str:
        """Return the call that replaces the code of an import."""
        self.modules[match["module"]] = match["name"]
        self.numbers.add((match["library"], match["file"], match["suffix"]))
        return (
            f"{match['names']}    {match['result']} = trellis_import_from("
            f"&trellis_module_{match['module']}, {match['arguments']}, {match['globals']});\n"
        )

    def declarations(self) -> str:
        """Return the C declarations that the calls need."""
        names = (f"extern const struct trellis_module trellis_module_{m};" for m in self.modules)
        return DECLARED + "\n".join(sorted(names)) + "\n"

    def definitions(self) -> str:
        """Return the C definitions of what is declared."""
        [(library, file, suffix)] = self.numbers
        function = DEFINED.replace("LIBRARY", library).replace("FILE", file)
        modules = (
            f"const struct trellis_module trellis_module_{module} = {{&CPyModule_{module}, "
            f"&CPyImportState_{module}, CPyInitOnly_{module}, CPyExec_{module}, "
            f"&CPyModule_{module}__internal, {name}}};"
            for module, name in self.modules.items()
        )
        return function.replace("SUFFIX", suffix) + "\n".join(sorted(modules)) + "\n"


def share_entries(function: re.Match[str]) -> str:
    """Return a C function in which similar failures share the code that adds a traceback entry.

    Failures are similar if they end at the same label, and their entries differ only in the line
    number. Each failure still adds an entry with its own line number.
    """
    first, body = function.groups()
    ends: dict[tuple[str, str, str], str] = {}
    counts = Counter((match[2], match[4], match[5]) for match in ENTRY.finditer(body))

    def replace(match: re.Match[str]) -> str:
        end = (match[2], match[4], match[5])
        if counts[end] == 1:
            return match[0]
        label = ends.setdefault(end, f"trellis_failed_{len(ends)}")
        return f"{match[1]}trellis_line = {match[3]};\n{match[1]}goto {label};\n"

    body = ENTRY.sub(replace, body)
    if not ends:
        return function[0]
    shared = "".join(
        f"{label}:\n    CPy_AddTraceback({where}, trellis_line, {names});\n    goto {end};\n"
        for (where, names, end), label in ends.items()
    )
    return f"{first}    int trellis_line;\n{body}{shared}}}\n"


def shorten_code(directory: Path, group: str) -> None:
    """Shorten the C code of a group of modules, which mypyc wrote to a directory.

    Raise ValueError if no import has the expected form. Other code stays as it is.
    """
    imports = Imports()
    for path in sorted(directory.glob("__native_*.c")):
        text = path.read_text()
        shorter = IMPORT.sub(imports.replace, text)
        shorter = FUNCTION.sub(share_entries, shorter)
        if shorter != text:
            path.write_text(shorter)
    if len(imports.numbers) != 1:
        raise ValueError(
            f"the imports in the C code of {directory} have an unknown form: use the "
            "version of mypy that build_backend/trellis_build.py requires"
        )
    header = directory / f"__native_internal_{group}.h"
    text, end, rest = header.read_text().rpartition("#endif")
    header.write_text(text + imports.declarations() + end + rest)
    with (directory / f"__native_{group}.c").open("a") as library:
        library.write(imports.definitions())
