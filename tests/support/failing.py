"""Show each failure when it happens, not at the end of a run of minutes."""

from collections.abc import Generator
from typing import Any

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the printer where results arrive: in the process that starts the workers."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Printer(config), "failing")


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Make a report fit to be sent: a worker of xdist ends where it sends a lone surrogate.

    What passing tests have printed is not sent at all.
    """
    data = yield
    if isinstance(data, dict) and data.get("outcome") == "passed":
        data["sections"] = []
    return _sendable(data)


def _sendable(data: Any) -> Any:
    if isinstance(data, str):
        return data.encode(errors="backslashreplace").decode()
    if isinstance(data, dict):
        return {key: _sendable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(_sendable(value) for value in data)
    return data


class _Printer:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print a failed phase of a test; called by pytest for each phase of each test."""
        if report.failed and self._config.option.verbose >= 0:
            terminal = self._config.pluginmanager.get_plugin("terminalreporter")
            if terminal is not None:
                terminal.write_line("")
                terminal.write_sep("_", f"{report.when} of {report.nodeid} failed", red=True)
                terminal.write_line(report.longreprtext)
