"""No module of the tests imports from a test module or a `conftest.py`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[2]
_FOLDERS: Final = ("tests", "benchmarks", "examples")
_TEST_MODULE: Final = re.compile(r"tests\.(.*\.)?(test_|conftest\b)")


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("from tests.cli.test_serve import get", [1]),
        ("from tests.cli import test_serve, requests", [1]),
        ("import tests.cli.test_serve as serve", [1]),
        ("\nfrom tests.lake.conftest import records", [2]),
        ("def f():\n    from tests import test_pacing", [2]),
        ("from .test_serve import get", [1]),
        ("from . import conftest", [1]),
        ("from hypothesis import test_runner", []),
        ("from tests.cli.requests import get", []),
        ("from tests.support.clock import ManualClock as test_clock", []),
    ],
)
def test_imports_from_test_modules_are_found(code: str, lines: list[int]) -> None:
    assert list(_imports_of_tests(code)) == lines


def test_helpers_are_not_imported_from_test_modules() -> None:
    imports = [
        f"{path.relative_to(_ROOT)}:{line}"
        for folder in _FOLDERS
        for path in sorted((_ROOT / folder).rglob("*.py"))
        for line in _imports_of_tests(path.read_text(encoding="utf-8"))
    ]
    assert not imports, (
        "helpers are imported from a test module or conftest.py: move what several folders use "
        "to tests/support, by subject, and what one folder uses to a module of its own there:\n"
        + "\n".join(imports)
    )


def _imports_of_tests(code: str) -> Iterator[int]:
    """Yield the lines of a module that import a test module, or a name from one."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = f"{'tests.' if node.level else ''}{node.module or ''}"
            modules = [f"{package}.{alias.name}" for alias in node.names]
        else:
            continue
        if any(_TEST_MODULE.match(module) for module in modules):
            yield node.lineno
