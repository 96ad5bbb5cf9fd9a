"""Signals that stop a process."""

import signal

import pytest

from tardis_machine.signals import stop_event


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_event_is_set_by_signal_and_handler_is_restored(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_event() as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        assert stop.is_set()
    assert signal.getsignal(number) is before
