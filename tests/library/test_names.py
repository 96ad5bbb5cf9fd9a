"""The names of the package, as a program imports them."""

import importlib
import inspect
import subprocess
import sys

import tardis_machine


def test_replay_is_a_function_once_its_package_is_imported() -> None:
    importlib.import_module("tardis_machine.replays")
    assert inspect.isfunction(tardis_machine.replay)
    assert "recorded" in (inspect.getdoc(tardis_machine.replay) or "")


def test_import_of_the_package_loads_none_of_its_modules() -> None:
    program = "import sys, tardis_machine; print(*(m for m in sys.modules if 'tardis_' in m))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["tardis_machine"]


def test_each_public_name_is_found() -> None:
    for name in tardis_machine.__all__:
        assert getattr(tardis_machine, name) is not None
