"""Check the language of the repository: words, docstrings, names, line lengths.

    python tools/check_language.py [--count] [ROOT]

Prints one line for each violation, `file:line: rule: text`, and ends with exit code 1 if there are
any. The words are in tools/vocabulary.py, the exceptions in tools/language_allowed.toml. With
--count, it prints the number of violations by directory and rule instead.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tokenize
import tomllib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from python_index import Module, PythonIndex
from repository import TextFile, Violation, read_text_files
from vocabulary import BANNED, OLD_MODULES, OLD_NAMES, OPENINGS, QUOTABLE, VAGUE_VARIABLES

#: Files that may contain banned words: the vocabulary, the allow-list, the glossary, the test of
#: this check.
EXEMPT = (
    "tools/vocabulary.py",
    "tools/language_allowed.toml",
    "docs/glossary.md",
    "tests/test_language.py",
)
ALLOWED = "tools/language_allowed.toml"
MAX_ALLOWED = 20
MAX_COLUMNS = 100
#: The number of lines before and after a quotation in which its source may be cited.
BLOCK_LINES = 20

BANNED_WORD = "banned-word"
OLD_NAME = "old-name"
VAGUE_VARIABLE = "vague-variable"
DOCSTRING_OPENING = "docstring-opening"
EXCEPTION_OPENING = "exception-opening"
MISSING_DOCSTRING = "missing-docstring"
DUPLICATE_CLASS = "duplicate-class"
LINE_LENGTH = "line-length"
ALLOW_LIST = "allow-list"
RULES = (
    BANNED_WORD,
    OLD_NAME,
    VAGUE_VARIABLE,
    DOCSTRING_OPENING,
    EXCEPTION_OPENING,
    MISSING_DOCSTRING,
    DUPLICATE_CLASS,
    LINE_LENGTH,
    ALLOW_LIST,
)

#: Characters that may stand between two words of a phrase: white space, underscores, comment signs.
_GAP = r"[\s_#*/\"'-]*"
_PHRASES = [
    (
        # The longest word of the phrase: a text without this word is not searched further.
        max(re.sub(r".\?", " ", phrase).split(), key=len).casefold(),
        re.compile(phrase.replace(" ", _GAP), re.IGNORECASE),
        phrase == QUOTABLE,
        instead,
    )
    for phrase, instead in BANNED.items()
]
#: Names that stay: a media type, and columns of `trellis list connections`.
_KEPT_NAME = re.compile(r"octet-stream|octets_(in|out)\b", re.IGNORECASE)
_CITATION = re.compile(r"AMQP 0-9-1|MQTT-\d+\.\d+\.\d+|RFC \d+")
#: The first line of a block of text: a list item, a row of a table, or a heading.
_BLOCK_START = re.compile(r"\s*(\||[-*] |\d+\. |#+ \S.*$)")
_OLD_NAME = re.compile(rf"(?<![^\W_])({'|'.join(OLD_NAMES)})(?!\w)")
_BACKTICKED = re.compile(r"`[^`\n]*`")
_OPENING = re.compile("|".join(OPENINGS), re.IGNORECASE)
_EXCEPTION_OPENING = re.compile(r"Raised (if|when)\b")
#: A comment that documents an attribute: on a line of its own, or two blanks after the attribute.
_ATTRIBUTE_COMMENT = re.compile(r"(?: *|.*\S {2})#: ?(?P<text>.*)")


class AllowList:
    """The exceptions in tools/language_allowed.toml.

    An entry has a rule, a pattern (regular expression), a reason, and optionally a path (glob). It
    allows violations of the rule in files whose path matches the glob, if the violating word
    matches the pattern.
    """

    def __init__(self, files: dict[str, TextFile]) -> None:
        """Read the allow-list among `files`, if there is one."""
        self._files = files
        content = tomllib.loads(files[ALLOWED].text) if ALLOWED in files else {}
        self._entries: list[dict[str, str]] = content.get("allow", [])
        self._used: set[int] = set()

    def covers(self, violation: Violation) -> bool:
        """True if an entry of the list allows the violation. Mark the entry as used."""
        line = self._files[violation.path].lines[violation.line - 1]
        covering = {
            number
            for number, entry in enumerate(self._entries)
            if entry.get("rule") == violation.rule
            and fnmatch(violation.path, entry.get("path", "*"))
            and any(
                match.start() < violation.column <= match.end()
                for match in re.finditer(entry.get("pattern", ""), line)
            )
        }
        self._used |= covering
        return bool(covering)

    def violations(self) -> Iterator[Violation]:
        """Find incomplete entries, unused entries, and entries above the allowed number."""
        if len(self._entries) > MAX_ALLOWED:
            count = len(self._entries)
            yield self._violation(f"the list has {count} entries; keep at most {MAX_ALLOWED}")
        for number, entry in enumerate(self._entries):
            text = f"entry {number + 1} (pattern {entry.get('pattern')!r})"
            if entry.get("rule") not in RULES or not (entry.get("pattern") and entry.get("reason")):
                yield self._violation(f"{text} needs a known rule, a pattern and a reason")
            elif number not in self._used:
                yield self._violation(f"{text} allows nothing in any file; remove it")

    def _violation(self, text: str) -> Violation:
        return Violation(ALLOWED, 1, 1, ALLOW_LIST, text)


def banned_words(file: TextFile) -> Iterator[Violation]:
    """Find words that Trellis does not use, in prose and as words of identifiers."""
    folded = file.text.casefold()
    for word, pattern, quotable, instead in _PHRASES:
        for match in pattern.finditer(file.text) if word in folded else ():
            start, end = match.span()
            if not _is_word(file.text, start, end) or _KEPT_NAME.match(file.text, start):
                continue
            if quotable and _quotes_a_specification(file, start):
                continue
            words = " ".join(match[0].split())
            yield file.violation(start, BANNED_WORD, f"'{words}' is banned; instead: {instead}")


def _is_word(text: str, start: int, end: int) -> bool:
    """True if `text[start:end]` is whole words, also within `snake_case` and `CamelCase`."""
    before, after = text[start - 1 : start], text[end : end + 1]
    return (not before.isalpha() or (before.islower() and text[start].isupper())) and (
        not after.isalpha() or (after.isupper() and text[end - 1].islower())
    )


def _quotes_a_specification(file: TextFile, offset: int) -> bool:
    """True if the text around an offset is prose that cites a specification."""
    if file.is_python and _is_name(file, offset):
        return False
    return bool(_CITATION.search(_block(file, file.position(offset)[0])))


def _block(file: TextFile, line: int) -> str:
    """Return the paragraph, list item or table row that contains a line (counted from 1)."""
    first = last = line - 1
    lines = file.lines
    top, bottom = max(0, line - BLOCK_LINES), min(len(lines), line + BLOCK_LINES) - 1
    while first > top and lines[first - 1].strip() and not _BLOCK_START.match(lines[first]):
        first -= 1
    while last < bottom and lines[last + 1].strip() and not _BLOCK_START.match(lines[last + 1]):
        last += 1
    return "\n".join(lines[first : last + 1])


def old_names(file: TextFile) -> Iterator[Violation]:
    """Find old identifiers in code, and between backticks in comments and documents."""
    matches = list(_OLD_NAME.finditer(file.text)) if file.path.endswith((".py", ".md")) else []
    quoted = [match.span() for match in _BACKTICKED.finditer(file.text)] if matches else []
    for match in matches:
        place = bisect_right(quoted, (match.start(), len(file.text))) - 1
        is_quoted = place >= 0 and match.end() <= quoted[place][1]
        if is_quoted or (file.is_python and _is_name(file, match.start())):
            yield file.violation(
                match.start(),
                OLD_NAME,
                f"`{match[0]}` is an old name; write: {OLD_NAMES[match[0]]}",
            )


def old_modules(file: TextFile) -> Iterator[Violation]:
    """Find old names of modules and packages, outside the tests."""
    if file.is_python and not file.is_test:
        name = file.path.removesuffix(".py").removesuffix("/__init__").rpartition("/")[2]
        if name in OLD_MODULES:
            text = f"`{name}` is an old name of a module; name the module {OLD_MODULES[name]}"
            yield file.violation(0, OLD_NAME, text)


def _is_name(file: TextFile, offset: int) -> bool:
    """True if the offset is within an identifier of a Python file."""
    return offset in _identifier_offsets(file)


@cache
def _identifier_offsets(file: TextFile) -> set[int]:
    offsets: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(file.text).readline):
        if token.type == tokenize.NAME:
            start = file.offset(token.start[0], token.start[1] + 1)
            offsets.update(range(start, start + len(token.string)))
    return offsets


def vague_variables(module: Module) -> Iterator[Violation]:
    """Find variables and parameters whose names do not say what their values are."""
    for name, line, column in module.bound:
        text = f"'{name}' does not tell what the variable holds; use a noun, such as 'queue'"
        offset = module.file.offset(line, column + 1)
        yield module.file.violation(offset, VAGUE_VARIABLE, text)


def docstring_openings(module: Module) -> Iterator[Violation]:
    """Find docstrings, and comments that document attributes, whose opening names no subject."""
    for documented in module.documented:
        text = documented.docstring
        if text is not None and _OPENING.match(text):
            yield _opening(module.file, documented.docstring_line, text)
    before = ""
    for line, code in enumerate(module.file.lines, start=1):
        comment = _ATTRIBUTE_COMMENT.fullmatch(code) if "#:" in code else None
        continues = before.lstrip().startswith("#:")
        before = code
        if comment and not continues and _OPENING.match(comment["text"]):
            yield _opening(module.file, line, comment["text"])


def exception_openings(index: PythonIndex) -> Iterator[Violation]:
    """Find docstrings of exceptions that do not begin with the condition for raising them."""
    for module in index.modules.values():
        for documented in module.documented:
            text = documented.docstring if documented.is_class else None
            if text is not None and not _EXCEPTION_OPENING.match(text):
                if index.is_exception(module, documented):
                    line = documented.docstring_line
                    advice = "begin with 'Raised if' or 'Raised when'"
                    yield _opening(module.file, line, text, EXCEPTION_OPENING, advice)


def _opening(
    file: TextFile,
    line: int,
    text: str,
    rule: str = DOCSTRING_OPENING,
    advice: str = "begin with a verb, 'True if', or the noun that it documents",
) -> Violation:
    first = text.splitlines()[0]
    column = file.lines[line - 1].find(first) + 1
    return Violation(file.path, line, max(column, 1), rule, f"the text '{first}' must {advice}")


def missing_docstrings(index: PythonIndex) -> Iterator[Violation]:
    """Find public modules, classes, functions and methods without docstring, outside the tests."""
    for module in index.modules.values():
        for public in () if module.file.is_test else index.public_names(module):
            if public.definition.docstring is None:
                line = public.definition.line
                column = module.file.lines[line - 1].find(public.name.rpartition(".")[2]) + 1
                text = f"{public.kind} {public.name} has no docstring; write one that stands alone"
                yield Violation(module.file.path, line, max(column, 1), MISSING_DOCSTRING, text)


def duplicate_classes(index: PythonIndex, allowed: AllowList) -> Iterator[Violation]:
    """Find top-level classes with the same name in several modules, outside the tests.

    Classes on the allow-list are not counted, so it is enough to allow one of two such classes.
    """
    owners: dict[str, list[Module]] = defaultdict(list)
    for module in index.modules.values():
        for name in () if module.file.is_test else module.classes:
            owners[name].append(module)
    for name, modules in owners.items():
        places = []
        for module in modules if len(modules) > 1 else ():
            others = ", ".join(other.file.path for other in modules if other is not module)
            text = f"class {name} is also in {others}; give each class a name of its own"
            place = module.classes[name]
            offset = module.file.offset(place.line, place.column + len("class ") + 1)
            places.append(module.file.violation(offset, DUPLICATE_CLASS, text))
        yield from [place for place in places if not allowed.covers(place)][1:]


def long_lines(file: TextFile) -> Iterator[Violation]:
    """Find Python lines that are too long."""
    for number, line in enumerate(file.lines if file.is_python else (), start=1):
        if len(line) > MAX_COLUMNS:
            text = f"the line has {len(line)} columns; write at most {MAX_COLUMNS}"
            yield Violation(file.path, number, MAX_COLUMNS + 1, LINE_LENGTH, text)


def check(root: Path) -> list[Violation]:
    """Return the violations below `root` that the allow-list does not cover, sorted."""
    files = read_text_files(root)
    index = PythonIndex(files, VAGUE_VARIABLES)
    allowed = AllowList({file.path: file for file in files})
    violations = [*missing_docstrings(index), *exception_openings(index)]
    for file in files:
        if file.path not in EXEMPT:
            violations += [*banned_words(file), *old_names(file)]
        violations += [*old_modules(file), *long_lines(file)]
    for module in index.modules.values():
        violations += [*docstring_openings(module), *vague_variables(module)]
    violations = [violation for violation in violations if not allowed.covers(violation)]
    violations += duplicate_classes(index, allowed)
    violations += allowed.violations()
    return sorted(violations)


def table(violations: list[Violation]) -> Iterator[str]:
    """Yield the lines of a table of violations by top-level directory and rule."""
    counts = Counter((violation.path.partition("/")[0], violation.rule) for violation in violations)
    counts.update(("total", violation.rule) for violation in violations)
    directories = [*sorted({directory for directory, _ in counts} - {"total"}), "total"]
    yield " ".join([f"{'':20}", *(f"{rule:>17}" for rule in RULES)])
    for directory in directories:
        yield " ".join([f"{directory:20}", *(f"{counts[directory, rule]:17,}" for rule in RULES)])


def main() -> int:
    """Run the check; return 1 if there are violations, else 0."""
    parser = argparse.ArgumentParser(description="Check the language of the repository.")
    parser.add_argument(
        "root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent
    )
    parser.add_argument(
        "--count", action="store_true", help="print the number of violations by directory and rule"
    )
    options = parser.parse_args()
    violations = check(options.root)
    for line in table(violations) if options.count else map(str, violations):
        print(line)
    if violations and not options.count:
        print(f"{len(violations)} violations", file=sys.stderr)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
