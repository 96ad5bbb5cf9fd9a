"""MEXC's frames: Protobuf on the wire, the JSON of the recorded feed to mappers."""

import msgspec

from tardis_machine import exchanges

DEALS = "spot@public.aggre.deals.v3.api.pb@10ms"


def _field(number: int, content: bytes | int) -> bytes:
    """One field as Protobuf writes it."""
    if isinstance(content, int):
        return _varint(number << 3) + _varint(content)
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes((*written, value))


def _decoded(frame: bytes) -> bytes:
    dialect = exchanges.get("mexc").live
    assert dialect is not None
    return dialect.decode(frame)


def test_a_frame_becomes_the_message_that_history_has() -> None:
    deal = (
        _field(1, b"0.4210")
        + _field(2, b"12.5")
        + _field(3, 1)
        + _field(4, 1_770_000_000_001)
        + _field(5, b"77X0")
    )
    frame = (
        _field(1, f"{DEALS}@KASUSDT".encode())
        + _field(3, b"KASUSDT")
        + _field(6, 1_770_000_000_002)
        + _field(314, _field(1, deal) + _field(2, DEALS.encode()))
        + _field(999, b"of a later version")
    )
    assert _decoded(frame).decode() == (
        f'{{"channel":"{DEALS}@KASUSDT","symbol":"KASUSDT","sendTime":"1770000000002",'
        '"publicAggreDeals":{"deals":[{"price":"0.4210","quantity":"12.5","tradeType":1,'
        f'"time":"1770000000001","tradeId":"77X0"}}],"eventType":"{DEALS}"}}}}'
    )


def test_sides_without_levels_are_empty_and_other_fields_stay_absent() -> None:
    frame = _field(3, b"KASUSDT") + _field(313, _field(4, b"100"))
    assert msgspec.json.decode(_decoded(frame)) == {
        "symbol": "KASUSDT",
        "publicAggreDepths": {"asks": [], "bids": [], "fromVersion": "100"},
    }


def test_answers_are_json_already() -> None:
    answer = b'{"id":0,"code":0,"msg":"PONG"}'
    assert _decoded(answer) is answer
