"""Errors pass between processes as they are."""

import pickle

import pytest

from tardis_machine.config import ConfigError
from tardis_machine.engine.columns import ChoiceError, ColumnError
from tardis_machine.errors import TardisMachineError
from tardis_machine.history import HistoryError
from tardis_machine.live.stream import StreamEndedError
from tardis_machine.messages import MessageError
from tardis_machine.replays import RawMessageError, ReplayEndedError, TableTypeError
from tardis_machine.replays.normalizer import NormalizeError
from tardis_machine.replays.requests import OptionsError


@pytest.mark.parametrize(
    "error",
    [
        ChoiceError("numbers"),
        ColumnError("prices", "trade", ["price"]),
        ConfigError("--port", 0, "expected 1 or more", source="TM_PORT"),
        HistoryError("no such day", status=404, exchange="bitmex"),
        MessageError("no", field="price", line=3),
        NormalizeError("bitmex", "trade", "00:00", "no side"),
        OptionsError("symbols"),
        RawMessageError(b"{", "cut off"),
        ReplayEndedError("was closed"),
        StreamEndedError("was closed"),
        TableTypeError(None, ["trade", "quote"]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_in_another_process(error: TardisMachineError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))
