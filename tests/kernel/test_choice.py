"""Which kernel serves, and what is said when it is not the one that was hoped for."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tardis_machine
from tardis_machine import __version__
from tardis_machine.engine.choice import INTERFACE, VARIABLE, KernelChoiceError, kernel

MODULE = "tardis_machine._kernel"
FITTING = f"INTERFACE = {INTERFACE}"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for a kernel that hides the real one."""
    monkeypatch.setattr(tardis_machine, "__path__", [str(tmp_path), *tardis_machine.__path__])
    monkeypatch.delenv(VARIABLE, raising=False)
    real = sys.modules.pop(MODULE, None)
    kernel.cache_clear()
    yield tmp_path / "_kernel.py"
    sys.modules.pop(MODULE, None)
    if real is not None:
        sys.modules[MODULE] = real


@pytest.fixture(autouse=True)
def _choose_anew() -> Iterator[None]:
    kernel.cache_clear()
    yield
    kernel.cache_clear()


def test_a_kernel_that_fits_serves(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed.write_text(FITTING)
    assert str(kernel()) == "compiled"
    kernel.cache_clear()
    monkeypatch.setenv(VARIABLE, "python")
    assert kernel().module is None
    assert str(kernel()) == f"python ({VARIABLE}=python)"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (f"INTERFACE = {INTERFACE + 1}", f"interface {INTERFACE + 1}, this version needs"),
        ("raise ImportError('GLIBC_9.99 not found')", "broken: GLIBC_9.99 not found"),
        ("import something_that_it_needs", "broken: No module named 'something_that_it_needs'"),
        ("", "broken: module 'tardis_machine._kernel' has no attribute 'INTERFACE'"),
        ("1 / 0", "broken: division by zero"),
    ],
)
def test_kernel_that_does_not_fit_is_named_and_python_serves(
    installed: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    source: str,
    reason: str,
) -> None:
    installed.write_text(source)
    _expect_python(monkeypatch, caplog, reason)


def test_kernel_that_is_missing_is_hinted_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, MODULE, None)  # type: ignore[arg-type]
    _expect_python(monkeypatch, caplog, "it was not built")


def _expect_python(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    for _ in range(2):
        assert kernel().module is None
    assert reason in str(kernel())
    [warning] = caplog.records
    assert warning.levelname == "WARNING"
    hint = warning.getMessage()
    assert reason in hint
    assert hint.endswith("or set TM_KERNEL=python to silence this")
    assert "\n" not in hint
    caplog.clear()
    for choice in ("python", "compiled"):
        kernel.cache_clear()
        monkeypatch.setenv(VARIABLE, choice)
        if choice == "compiled":
            with pytest.raises(KernelChoiceError, match="TM_KERNEL=compiled: the kernel cannot"):
                kernel()
        else:
            assert kernel().module is None
    assert caplog.records == []


def test_a_choice_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "rust")
    with pytest.raises(KernelChoiceError, match="expected auto, compiled, python"):
        kernel()


def test_the_version_tells() -> None:
    command = [Path(sys.executable).with_name("tardis-machine"), "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert shown == f"{__version__} (kernel: {kernel()})\n"
