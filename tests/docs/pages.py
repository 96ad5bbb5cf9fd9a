"""The code blocks of README and docs: read, and run as a reader would run them.

A code block says what becomes of it in its info string: `sh run` and `python run` are executed,
in the order of their page and in one folder; `sh serve` is started, and ended with the page;
anything else must say what it `needs=…`.
"""

import os
import re
import subprocess
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from tests.support.servers.process import ServerProcess

CODE = ("sh", "bash", "python")
# Blocks that follow each other share a process, not their names: most of their time is imports.
_EACH = """
import sys
for text in sys.argv[1:]:
    print(text, flush=True)
    exec(compile(text, "block", "exec"), {"__name__": "__main__"})
"""
_FENCE = re.compile(r"^```(\S+)[ \t]*([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    fate: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [
        Block(language, fate.strip(), text)
        for language, fate, text in _FENCE.findall(page.read_text())
        if language in CODE
    ]


def environment_of(python: Path) -> dict[str, str]:
    """As in a shell with the interpreter's environment on its path."""
    return {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}


def run_blocks(page: Path, folder: Path, python: Path, ports: dict[str, str]) -> None:
    """Run and serve the blocks of a page, with free ports in place of those that it names."""
    environment = environment_of(python)
    executed = [block for block in blocks(page) if block.fate in {"run", "serve"}]
    with ExitStack() as serving:
        for number, ((language, fate), group) in enumerate(
            groupby(executed, lambda block: (block.language, block.fate))
        ):
            texts = [
                re.sub(r"\b800[0-3]\b", lambda found: ports[found[0]], each.text) for each in group
            ]
            if fate == "serve":
                # Started by `exec`, so that the process that is ended is the server's.
                command = f"exec {''.join(texts).rstrip()} --port {ports['8000']}"
                server = ServerProcess(
                    ["env", f"PATH={environment['PATH']}", "bash", "-c", command],
                    port=int(ports["8000"]),
                    log=folder / f"{number}.log",
                )
                server.start()
                serving.callback(server.stop)
                continue
            program: list[str | Path] = (
                ["bash", "-euo", "pipefail", "-c", "".join(texts)]
                if language in {"sh", "bash"}
                else [python, "-c", _EACH, *texts]
            )
            done = subprocess.run(
                program,
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
