"""A million numbers through both kernels, and through rules that neither of them knows."""

import re
from collections.abc import Iterator
from random import Random

import msgspec
import pytest

from tardis_machine.messages.numbers import canonical
from tests.kernel.implementations import emitters
from tests.kernel.numbers import nearest_double
from tests.support.documents import javascript_number

COUNT = 1_000_000
BATCH = 2_000
EXACTLY_EVERY = 25
ODD = ["01.5", "00", "007", "1.", ".5", "1..5", "1.5.2", "1e", "1e+", "1.5e3.2", "+1", "-", ""]
ODD += [
    " 1",
    "1 ",
    "1_0",
    "0x1",
    "1,5",
    "\u0661",
    "123456789012345.",
    "12345678.12345678",
    "0" * 17,
]
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


@pytest.mark.fuzz
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
    plain = f"[{','.join(f'[1,{text}]' for text in batch)}]".encode()
    compiled.book_change("S", False, msgspec.Raw(quoted), msgspec.Raw(plain), 1)
    bids, asks = compiled.take().data.decode().split(',"asks":')
    printed = re.findall(r'"price":([^,]+),', bids)
    assert printed == [canonical[text] for text in batch]
    assert printed == [javascript_number(float(text)) for text in batch]
    assert printed == re.findall(r'"amount":([^}]+)}', asks)
    for text in batch[::EXACTLY_EVERY]:
        assert float(text) == nearest_double(text)


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("quote", ['"', ""])
def test_what_is_hardly_a_number_is_the_same_to_both(text: str, quote: str) -> None:
    levels = f'[[{quote}{text}{quote},"1"],["2","0.5000"]]'.encode()
    found = []
    for emitter in emitters("x", ["book_change"]):
        emitter.begin("2024-03-01T00:00:00.000001Z")
        error = None
        try:
            emitter.book_change("S", False, msgspec.Raw(levels), msgspec.Raw(b"[]"), 1)
        except Exception as problem:  # noqa: BLE001 - whatever it is, both have it
            error = type(problem)
        found.append((emitter.take().data, error))
    assert found[0] == found[1]
