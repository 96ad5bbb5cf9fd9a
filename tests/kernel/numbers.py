"""Numbers as exchanges write them, and the double that each of them means."""

from decimal import Decimal
from fractions import Fraction

from hypothesis import strategies as st

digits = st.text("0123456789", min_size=1, max_size=40)
number_texts = st.one_of(
    st.sampled_from(("0.00100000", "1E-7", "61130.0", "1e21", "-0.0", "0.1", "5e-324", "123")),
    st.decimals(-(10**9), 10**9, places=8).map(str),
    st.builds("{}.{}".format, st.integers(0, 10**20), digits),
    st.builds(
        "{}{}e{}".format, st.sampled_from(("", "-")), st.integers(1, 10**18), st.integers(-30, 30)
    ),
    st.integers(-(10**40), 10**40).map(str),
)


def nearest_double(text: str) -> float:
    """The double that is nearest to a decimal number, found by exact arithmetic."""
    return float(_rounded(Fraction(Decimal(text))))


def _rounded(number: Fraction) -> Fraction:
    """Round to 53 binary digits, ties to even."""
    if number < 0:
        return -_rounded(-number)
    if not number:
        return number
    exponent = number.numerator.bit_length() - number.denominator.bit_length() - 53
    exponent = max(exponent, -1074)
    scaled = number / Fraction(2) ** exponent
    while scaled >= 2**53:
        exponent += 1
        scaled /= 2
    return round(scaled) * Fraction(2) ** exponent
