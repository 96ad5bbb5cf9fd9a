"""Show each failure when it happens, not at the end of a run of minutes."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the printer where results arrive: in the process that starts the workers."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Printer(config), "failing")


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
