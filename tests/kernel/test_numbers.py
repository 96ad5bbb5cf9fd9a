"""A million numbers through both kernels, and through rules that neither of them knows."""

import re
from collections.abc import Iterator
from random import Random

import msgspec

from tardis_machine.numbers import canonical
from tests.kernel.implementations import emitters
from tests.kernel.numbers import nearest_double
from tests.messages.documents import javascript_number

COUNT = 1_000_000
BATCH = 2_000
EXACTLY_EVERY = 25
NOTABLE = ("0.00100000", "1E-7", "61130.0", "0", "-0", "0.0000001", "1e21", "9007199254740993")


def texts() -> Iterator[str]:
    """Numbers in every form that exchanges write: zeros at the end, exponents, 40 digits."""
    yield from NOTABLE
    random = Random(20240301)
    digits = "0123456789"
    for number in range(COUNT - len(NOTABLE)):
        kind = number % 8
        whole = str(random.randrange(10 ** random.randrange(1, 8)))
        if kind == 0:
            yield whole
        elif kind == 1:
            yield f"{whole}.{random.randrange(10**8):08d}"
        elif kind == 2:
            yield f"0.{'0' * random.randrange(12)}{random.randrange(1, 10**6)}"
        elif kind == 3:
            yield f"{whole}.{'0' * random.randrange(1, 5)}"
        elif kind == 4:
            power = f"{random.choice('eE')}{random.choice(('', '+', '-'))}{random.randrange(25)}"
            yield f"{whole}.{random.randrange(10**4)}{power}"
        elif kind == 5:
            yield f"1{''.join(random.choices(digits, k=random.randrange(40)))}"
        elif kind == 6:
            yield f"-{whole}.{''.join(random.choices(digits, k=random.randrange(1, 40)))}"
        else:
            yield repr(random.uniform(0, 10.0 ** random.randrange(-9, 18)))


def test_a_million_numbers() -> None:
    _, compiled = emitters("x", ["book_change"])
    compiled.begin("2024-03-01T00:00:00.000001Z")
    batch: list[str] = []
    total = 0
    for text in texts():
        batch.append(text)
        if len(batch) == BATCH:
            _compare(compiled, batch)
            total += len(batch)
            batch = []
    assert (total, batch) == (COUNT, [])


def _compare(compiled, batch: list[str]) -> None:
    quoted = msgspec.json.encode([[text, "1"] for text in batch])
    compiled.book_change("S", False, msgspec.Raw(quoted), msgspec.Raw(b"[]"), 1)
    printed = re.findall(r'"price":([^,]+),', compiled.take().data.decode())
    assert printed == [canonical[text] for text in batch]
    assert printed == [javascript_number(float(text)) for text in batch]
    for text in batch[::EXACTLY_EVERY]:
        assert float(text) == nearest_double(text)
