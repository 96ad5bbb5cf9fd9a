"""Numbers as an envelope has them: plain decimal notation."""

from math import isfinite
from typing import Final

from tardis_machine.messages import decimal_text

_CACHED: Final = 16_384


class DecimalTexts(dict[float, str]):
    """The text of numbers seen lately: prices and amounts come again and again."""

    def __missing__(self, number: float) -> str:
        if not isfinite(number):
            raise ValueError(f"{number} has no decimal notation")
        if len(self) >= _CACHED:
            self.clear()
        text = self[number] = decimal_text(number)
        return text


DECIMALS: Final = DecimalTexts()
