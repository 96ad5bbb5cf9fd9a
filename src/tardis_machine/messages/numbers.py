"""Text of numbers: as JavaScript prints it, and in plain decimal notation."""

from decimal import Decimal
from math import isfinite
from typing import Final

from msgspec import Raw

Number = str | bytes | Raw | int | float
"""A number of a raw message; bytes and Raw are its JSON text, with or without quotes."""

_CACHE_SIZE: Final = 1 << 16
# A double represents each decimal number of up to 15 digits: their text needs no conversion.
_EXACT_LENGTH: Final = 16
_SAFE_INTEGER: Final = 10**15


def of_float(value: float) -> str:
    """Return a double as JavaScript's Number.prototype.toString prints it.

    Raise ValueError for NaN and infinities.
    """
    text = repr(value)
    if "e" not in text and "n" not in text:
        # From 1e-4 to below 1e16 repr has no exponent, and both languages print the same digits.
        if text[-2:] != ".0":
            return text
        return text[:-2] if value else "0"
    if not isfinite(value):
        raise ValueError(f"not a finite number: {value}")
    mantissa, exponent = text.split("e")
    sign = "-" if mantissa[0] == "-" else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).rstrip("0") if fraction != "0" else whole
    # The value is 0.digits times ten to the power of point.
    point = int(exponent) + 1
    if 0 < point <= 21:
        return sign + digits.ljust(point, "0")
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    power = point - 1
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{'+' if power > 0 else '-'}{abs(power)}"


def of_text(text: str) -> str:
    """Return decimal text as JavaScript prints its number; raise ValueError if it is not finite."""
    if len(text) <= _EXACT_LENGTH and text.isascii():
        whole, dot, fraction = text.partition(".")
        if not dot:
            if whole.isdigit() and (whole[0] != "0" or len(whole) == 1):
                return whole if len(whole) < _EXACT_LENGTH else of_float(float(whole))
        elif whole.isdigit() and fraction.isdigit() and (whole[0] != "0" or len(whole) == 1):
            fraction = fraction.rstrip("0")
            if not fraction:
                return whole
            if whole != "0" or not fraction.startswith("000000"):
                return f"{whole}.{fraction}"
    if "_" in text:
        raise ValueError(f"not a number: {text!r}")
    return of_float(float(text))


def _unquoted(number: bytes) -> str:
    text = number.decode("ascii")
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


class Canonical(dict[Number, str]):
    """A cache from a number of a raw message to its text as JavaScript prints it.

    A full cache is cleared: amounts have too many values to keep. Callers look a Raw up as bytes,
    since it has no hash.
    """

    __slots__ = ()

    def __missing__(self, number: Number) -> str:
        kind = type(number)
        if kind is float:
            text = of_float(number)  # type: ignore[arg-type]
        elif kind is str:
            text = of_text(number)  # type: ignore[arg-type]
        elif isinstance(number, bytes):
            text = of_text(_unquoted(number))
        elif isinstance(number, int) and -_SAFE_INTEGER < number < _SAFE_INTEGER:
            text = str(int(number))
        elif isinstance(number, int | float):
            try:
                text = of_float(float(number))
            except OverflowError:
                raise ValueError("not a finite number: an int of hundreds of digits") from None
        else:
            raise ValueError(f"not a number: {number!r}")
        if len(self) >= _CACHE_SIZE:
            self.clear()
        self[number] = text
        return text


canonical: Final = Canonical()


def decimal_text(number: float) -> str:
    """Return a finite number without an exponent, in the fewest digits that read back exactly."""
    text = repr(float(number))
    if "e" in text:
        text = format(Decimal(text), "f")
    text = text.removesuffix(".0")
    return "0" if text == "-0" else text


class _Decimals(dict[float, str]):
    """A cache of `decimal_text`: prices and amounts repeat. A full cache is cleared."""

    __slots__ = ()

    def __missing__(self, number: float) -> str:
        if not isfinite(number):
            raise ValueError(f"{number} has no decimal notation")
        if len(self) >= _CACHE_SIZE:
            self.clear()
        text = self[number] = decimal_text(number)
        return text


decimals: Final = _Decimals()
