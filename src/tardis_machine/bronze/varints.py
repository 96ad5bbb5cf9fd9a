"""Whole numbers as Protobuf writes them: seven bits to a byte, the lowest first."""

from typing import Final

LOW_BITS: Final = 0x3FFF
"""What two bytes hold; MORE has them with the sign that others follow, LAST without."""
MORE: Final = [bytes((n & 0x7F | 0x80, n >> 7 | 0x80)) for n in range(LOW_BITS + 1)]
LAST: Final = [
    bytes((n,)) if n < 0x80 else bytes((n & 0x7F | 0x80, n >> 7)) for n in range(LOW_BITS + 1)
]


def varint(number: int) -> bytes:
    """Write a number that is not negative, two bytes at a time."""
    if number <= LOW_BITS:
        return LAST[number]
    return MORE[number & LOW_BITS] + varint(number >> 14)
