"""Words that docstrings, comments and documents do not use, and where they still stand.

`python -m tests.style.words` lowers the counts in `known_words.json` to what is there.
"""

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
KNOWN = Path(__file__).with_name("known_words.json")
BANNED = ("whoever", "whatever", "somebody", "nobody", "anyone")
FIRST_WORDS = ("Give", "Gives", "Tell", "Tells", "The same")
"""A docstring begins with a plain verb, and is understood without the one above it."""

_BANNED = re.compile(rf"\b({'|'.join(BANNED)})\b", re.IGNORECASE)
_FIRST = re.compile(rf"\s*({'|'.join(FIRST_WORDS)})\b")
_RUST_COMMENT = re.compile(r"//[/!]?(.*)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_GENERATED = ("src/tardis_machine/generated/", "docs/configuration.md", "docs/exchanges.md")


class Finding(NamedTuple):
    """A word that should go, in one line of a file."""

    line: int
    word: str


def findings_in(path: str, text: str) -> list[Finding]:
    """Return the words of a Python, Rust or Markdown file that should go."""
    if path.endswith(".py"):
        return sorted([*_in_python_comments(text), *_in_docstrings(text)])
    if path.endswith(".rs"):
        return sorted(_in_rust(text))
    return sorted(_banned(1, _FENCE.sub(lambda code: "\n" * code.group().count("\n"), text)))


@cache
def counts() -> dict[str, int]:
    """Return how many such words each file of the project has, without those that have none."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.rs", "*.md"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    found = {}
    for path in sorted(listed.stdout.split()):
        file = ROOT / path
        if not path.startswith((*_GENERATED, "tests/style/")) and file.exists():
            number = len(findings_in(path, file.read_text(encoding="utf-8")))
            if number:
                found[path] = number
    return found


def known() -> dict[str, int]:
    """Return the counts that are accepted until the file is touched."""
    counted: dict[str, int] = json.loads(KNOWN.read_text())
    return counted


def _banned(first_line: int, text: str) -> Iterator[Finding]:
    for match in _BANNED.finditer(text):
        yield Finding(first_line + text.count("\n", 0, match.start()), match[0])


def _in_python_comments(text: str) -> Iterator[Finding]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from _banned(token.start[0], token.string)


def _in_docstrings(text: str) -> Iterator[Finding]:
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            # A string that stands alone documents what it stands in or what stands before it.
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                value = statement.value.value
                if isinstance(value, str):
                    if match := _FIRST.match(value):
                        yield Finding(statement.lineno, match[1])
                    yield from _banned(statement.lineno, value)


def _in_rust(text: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), 1):
        if match := _RUST_COMMENT.search(line):
            yield from _banned(number, match[1])


def main() -> None:
    """Lower the known counts; words that were added stay an error."""
    before, now = known() if KNOWN.exists() else counts(), counts()
    kept = {path: min(number, now[path]) for path, number in before.items() if path in now}
    KNOWN.write_text(json.dumps(kept, indent=1) + "\n")
    sys.exit(any(number > kept.get(path, 0) for path, number in now.items()))


if __name__ == "__main__":
    main()
