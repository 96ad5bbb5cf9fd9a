from hashlib import sha256

from tardis_machine.history.filters import Filter, cache_keys, normalize, to_json


def test_one_entry_per_channel_everything_sorted() -> None:
    given = [
        Filter("trade", ("XBTUSD", "ETHUSD")),
        Filter("orderBookL2", ("XBTUSD",)),
        Filter("trade", ("ADAUSD", "XBTUSD")),
    ]
    assert to_json(normalize(given)) == (
        '[{"channel":"orderBookL2","symbols":["XBTUSD"]},'
        '{"channel":"trade","symbols":["ADAUSD","ETHUSD","XBTUSD"]}]'
    )


def test_every_symbol_wins_over_some_and_keeps_its_form() -> None:
    assert normalize([Filter("trade", ("A",)), Filter("trade")]) == [Filter("trade")]
    assert normalize([Filter("trade", ("A",)), Filter("trade", ())]) == [Filter("trade", ())]
    assert normalize([Filter("trade", ()), Filter("trade")]) == [Filter("trade")]
    assert to_json(normalize([Filter("trade", ())])) == '[{"channel":"trade","symbols":[]}]'


def test_text_is_not_escaped() -> None:
    assert to_json([Filter("trade", ("币安",))]) == '[{"channel":"trade","symbols":["币安"]}]'


def test_keys_are_hashes_of_both_clients_forms() -> None:
    assert cache_keys([]) == (sha256(b"[]").hexdigest(),)
    with_symbols = [Filter("trade", ("XBTUSD",))]
    assert cache_keys(with_symbols) == (
        sha256(b'[{"channel":"trade","symbols":["XBTUSD"]}]').hexdigest(),
    )
    assert cache_keys([Filter("trade")]) == (
        sha256(b'[{"channel":"trade"}]').hexdigest(),
        sha256(b'[{"channel":"trade","symbols":null}]').hexdigest(),
    )
