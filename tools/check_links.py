"""Check that the links, paths and commands in the documents exist.

    python tools/check_links.py [ROOT]

In every *.md file, this program checks relative links and their anchors. In code (between backticks
or in blocks), it checks paths of the repository, targets of `make` and subcommands of `trellis`. It
prints one line for each violation, `file:line: rule: text`, and ends with exit code 1 if there are
any.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from repository import TextFile, Violation, read_text_files
from trellis.cli import parser as command_line

LINK, ANCHOR, PATH, MAKE, COMMAND = "link", "anchor", "path", "make", "command"

#: Blocks of code, which hold no links: fenced, or indented after an empty line.
_FENCED = re.compile(r"^ *(?P<fence>```+|~~~+)[^\n]*\n.*?^ *(?P=fence)", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n) {4}[^\n]*\n(?:(?: {4}[^\n]*)?\n)*")
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(
    r"\]\(\s*<?([^)\s>]+)[^)]*\)"  # a link: [text](target "title")
    r"|^\[[^\]]+\]:\s*<?(\S+?)>?$"  # a reference: [name]: target
    r"|<(?:a|img)\s[^>]*?(?:href|src)=\"([^\"]+)\"",
    re.MULTILINE,
)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:|//")
_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t]*#*$", re.MULTILINE)
_HTML_ANCHOR = re.compile(r"<\w+\s[^>]*?(?:id|name)=\"([^\"]+)\"")
_MARKDOWN_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_FILE_PATH = re.compile(r"(?:\.\.?/)*[\w.-]+(?:/[\w.-]+)*/?")
#: A path component in capitals that matches any name, as in `results/DATE.json`.
_PLACEHOLDER = re.compile(r"(?<![^/.-])[A-Z]+(?!\.md)(?![^/.-])")
#: Files of these kinds are also found by their names alone, in any directory.
_BARE_NAME = re.compile(r"[\w-]+\.(?:py|md|sh)")
_VARIABLE = r"[A-Z_]+=(?:\"[^\"\n]*\"|\S+)"
_MAKE = re.compile(rf"(?:^|[;&|$(]) *make((?: +(?:{_VARIABLE}|[a-z][a-z-]*))+)", re.MULTILINE)
_TRELLIS = re.compile(r"(?:^|[\s;&|(/])trellis((?: +[a-z][a-z|-]*)+)", re.MULTILINE)
_TARGETS = re.compile(r"^([a-z][a-z -]*):(?!=)", re.MULTILINE)


class Repository:
    """The files of a repository, and the names of its commands."""

    def __init__(self, root: Path) -> None:
        """Read the files below `root`, the targets of the Makefile and the commands of
        `trellis`."""
        files = read_text_files(root)
        self.root = root
        self.documents = {file.path: file for file in files if file.path.endswith(".md")}
        self.directories = {
            parent.as_posix() for file in files for parent in PurePosixPath(file.path).parents
        }
        self.names = {file.path.rpartition("/")[2] for file in files}
        makefile = next((file.text for file in files if file.path == "Makefile"), "")
        self.targets = set(" ".join(_TARGETS.findall(makefile)).split())
        self.command_line = command_line()

    def exists(self, path: str) -> bool:
        """True if a file or directory of this path, relative to the root, exists."""
        return not path.startswith("..") and (self.root / path).exists()


class Document:
    """One Markdown file, with its code separated from its text."""

    def __init__(self, file: TextFile) -> None:
        """Find the code blocks, and the code between backticks."""
        self.file = file
        self.blocks = [match.span() for match in _FENCED.finditer(file.text)]
        bare = _blank(file.text, self.blocks)
        self.blocks += [match.span() for match in _INDENTED.finditer(bare)]
        #: The text without code blocks, of the same length.
        self.prose = _blank(file.text, self.blocks)
        self.inline = [match.span(1) for match in _INLINE.finditer(self.prose)]
        #: The text without any code, of the same length.
        self.text = _blank(self.prose, self.inline)

    def anchors(self) -> set[str]:
        """Return the anchors of the document, made from its headings as GitHub makes them."""
        anchors = set(_HTML_ANCHOR.findall(self.text))
        seen: Counter[str] = Counter()
        for heading in _HEADING.findall(self.prose):
            title = _MARKDOWN_LINK.sub(r"\1", heading).replace("`", "").lower()
            anchor = re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-")
            anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
            seen[anchor] += 1
        return anchors


def _blank(text: str, spans: list[tuple[int, int]]) -> str:
    """Return the text with all characters of the spans, except line ends, replaced by blanks."""
    for start, end in spans:
        text = text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]
    return text


def links(document: Document, repository: Repository) -> Iterator[Violation]:
    """Find relative links whose file does not exist, and anchors whose heading does not exist."""
    directory = posixpath.dirname(document.file.path)
    for match in _LINK.finditer(document.text):
        target = match[1] or match[2] or match[3]
        if _SCHEME.match(target):
            continue
        path, _, anchor = unquote(target).partition("#")
        resolved = posixpath.normpath(posixpath.join(directory, path))
        if not path:
            resolved = document.file.path
        if not repository.exists(resolved):
            text = f"'{target}' does not exist; link to a file of the repository"
            yield document.file.violation(match.start(match.lastindex or 0), LINK, text)
        elif anchor and resolved in repository.documents:
            if anchor not in Document(repository.documents[resolved]).anchors():
                text = f"'{target}': {resolved} has no such heading; link to one of its headings"
                yield document.file.violation(match.start(match.lastindex or 0), ANCHOR, text)


def paths(document: Document, repository: Repository) -> Iterator[Violation]:
    """Find paths in code that look like files of the repository and do not exist.

    A path looks like a file of the repository if it is the bare name of a Python file, a document
    or a shell script. A path with directories looks like such a file if it begins with a top-level
    directory of the repository, and also has a suffix, ends with a slash, or has a parent directory
    that exists.
    """
    directory = posixpath.dirname(document.file.path)
    for start, code in _code(document):
        for word in re.finditer(r"\S+", code):
            path = word[0]
            if not _FILE_PATH.fullmatch(path) or _exists_near(path, directory, repository):
                continue
            if _BARE_NAME.fullmatch(path) or _looks_like_file(path, repository):
                text = f"`{path}` does not exist; name a file that exists"
                yield document.file.violation(start + word.start(), PATH, text)


def _looks_like_file(path: str, repository: Repository) -> bool:
    parent, _, name = path.rstrip("/").rpartition("/")
    if path.partition("/")[0] not in repository.directories:
        return False
    if name.startswith(".") or _PLACEHOLDER.search(path):
        return False
    return path.endswith("/") or "." in name or parent in repository.directories


def _exists_near(path: str, directory: str, repository: Repository) -> bool:
    """True if a file or directory has this path, relative to the root or to the document.

    Also True if `path` is the bare name of a file anywhere in the repository.
    """
    beside = posixpath.normpath(posixpath.join(directory, path))
    return path in repository.names or repository.exists(path) or repository.exists(beside)


def _code(document: Document) -> Iterator[tuple[int, str]]:
    """Yield the code of a document with its offsets: blocks, and code between backticks."""
    for start, end in (*document.blocks, *document.inline):
        yield start, document.file.text[start:end]


def make_targets(document: Document, repository: Repository) -> Iterator[Violation]:
    """Find calls of `make` whose target the Makefile does not have."""
    for start, code in _code(document):
        for match in _MAKE.finditer(code):
            for target in re.sub(_VARIABLE, "", match[1]).split():
                if target not in repository.targets:
                    text = f"`make {target}` has no rule; name a target of the Makefile"
                    yield document.file.violation(start + match.start(1), MAKE, text)


def subcommands(document: Document, repository: Repository) -> Iterator[Violation]:
    """Find calls of `trellis` whose subcommand the command line does not have.

    Alternatives are separated by `|`, as in `trellis store verify|dump`; each alternative is
    checked.
    """
    for start, code in _code(document):
        for match in _TRELLIS.finditer(code):
            if wrong := _unknown_word(repository.command_line, match[1].split()):
                text = f"`trellis{match[1]}`: there is no command '{wrong}'; see `trellis --help`"
                yield document.file.violation(start + match.start(1), COMMAND, text)


def _unknown_word(parser: argparse.ArgumentParser, words: list[str]) -> str:
    """Return the first word of a call of `trellis` that should be a subcommand and is not.

    Return "" if there is no such word. `words` are the words of the call after the words that lead
    to `parser`.
    """
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and words:
            for word in words[0].split("|"):
                if word not in action.choices:
                    return word
                if wrong := _unknown_word(action.choices[word], words[1:]):
                    return wrong
    return ""


def check(root: Path) -> list[Violation]:
    """Return the links, paths and commands in documents below `root` that do not exist, sorted."""
    repository = Repository(root)
    violations: list[Violation] = []
    for file in repository.documents.values():
        document = Document(file)
        for find in (links, paths, make_targets, subcommands):
            violations += find(document, repository)
    return sorted(violations)


def main() -> int:
    """Run the check; return 1 if there are violations, else 0."""
    default = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description="Check links, paths and commands in documents.")
    parser.add_argument("root", nargs="?", type=Path, default=default)
    violations = check(parser.parse_args().root)
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
