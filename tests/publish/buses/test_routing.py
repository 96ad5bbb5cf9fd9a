"""Allow-list, route, template and headers, and what is refused of them at start."""

import msgspec
import pytest

from tardis_machine.bronze import Context, Encoder, Event, Origin, Series
from tardis_machine.config import ConfigError
from tardis_machine.messages import PAYLOAD_CASES
from tardis_machine.publish.routing import (
    DEFAULT_KEY,
    Router,
    Routing,
    Template,
    payload_cases,
    routes,
    static_headers,
)
from tests.support.events import lines

EVENT = Event(
    value=b"envelope",
    series=Series("deribit", "BTC-PERPETUAL", "tradeBar", "trade_bar_1s"),
    event_id="0f" * 16,
    local_us=1,
    position=0,
)


def router(context: Context | None = None, **rules: object) -> Router:
    routing = Routing(**{"base": "base", "routes": {}, "include": frozenset(), **rules})
    made = Router(routing, lambda _: 5, lambda size: size)
    made.context = context or Context(origin=Origin.REPLAY, request_id="r1", meta={"k": "v"})
    return made


def key_of(template: str, context: Context | None = None) -> str:
    [record] = router(context, key=Template(template, "--flag")).route([EVENT])
    return record.key


@pytest.mark.parametrize(
    ("template", "key"),
    [
        (DEFAULT_KEY, "deribit|BTC-PERPETUAL|tradeBar"),
        ("{{dataType}}", "trade_bar_1s"),
        ("{{source}}/{{origin}}", "tardis-machine/replay"),
        ("{{meta.k}}-{{meta.request_id}}", "v-r1"),
        ("{{meta.absent}}|{{meta.session_id}}", "_|_"),
        ("constant", "constant"),
        ("", ""),
    ],
)
def test_a_template_renders(template: str, key: str):
    assert key_of(template) == key


def test_a_context_that_changes_changes_the_key():
    made = router(key=Template("{{meta.request_id}}", "--flag"))
    first = made.route([EVENT])[0].key
    made.context = Context(request_id="r2")

    assert (first, made.route([EVENT])[0].key) == ("r1", "r2")


def test_a_context_that_changes_changes_the_meta_headers():
    made = router(meta_headers_prefix="x-")
    first = dict(made.route([EVENT])[0].headers)
    made.context = Context(session_id="s")
    second = dict(made.route([EVENT])[0].headers)

    assert (first["x-k"], first["x-request_id"]) == ("v", "r1")
    assert {name for name in second if name.startswith("x-")} == {"x-session_id"}


@pytest.mark.parametrize(
    "template",
    ["{{symbols}}", "{{}}", "{{meta.}}", "{{ symbol }}", "{{symbol", "symbol}}", "{{a{{b}}"],
)
def test_an_unknown_placeholder_is_refused_with_those_that_exist(template: str):
    with pytest.raises(ConfigError, match=r"--flag.*\{\{exchange\}\}.*\{\{meta\.KEY\}\}"):
        Template(template, "--flag")


def test_the_route_comes_before_the_template_and_that_before_the_base():
    rules = {"routes": {"trade": "routed"}, "destination": Template("t.{{symbol}}", "--flag")}
    trade = msgspec.structs.replace(EVENT, series=EVENT.series._replace(payload_case="trade"))

    assert [r.destination for r in router(**rules).route([trade, EVENT])] == [
        "routed",
        "t.BTC-PERPETUAL",
    ]
    assert router().route([EVENT])[0].destination == "base"


def test_only_the_allow_list_passes():
    trade = msgspec.structs.replace(EVENT, series=EVENT.series._replace(payload_case="trade"))
    made = router(include=frozenset({"trade"}))

    assert [record.event for record in made.route([EVENT, trade, EVENT])] == [trade]


@pytest.mark.usefixtures("each_kernel")
def test_a_batch_goes_the_way_of_its_events():
    batch = Encoder(Context()).encode_lines(lines(40))
    rules = {"routes": {"bookChange": "books"}, "key": Template("{{symbol}}", "--flag")}

    assert len({record.target for record in router(**rules).route_batch(batch)}) > 4
    for include in (frozenset(), frozenset({"bookChange"})):
        records = router(**rules, include=include).route_batch(batch)
        assert list(records) == router(**rules, include=include).route(batch.events())
        assert {record.weight - len(record.value) for record in records} == {5}


def test_headers_come_in_order():
    made = router(headers=(("a", "1"), ("b", "2")))

    assert made.route([EVENT])[0].headers == (
        ("event-id", "0f" * 16),
        ("payload-case", "tradeBar"),
        ("content-type", "application/x-protobuf"),
        ("a", "1"),
        ("b", "2"),
    )


def test_payload_cases_may_be_spelled_in_snake_case():
    assert payload_cases(["book_change", "tradeBar"], "--flag") == {"bookChange", "tradeBar"}
    assert routes({"grouped_book_snapshot": "x"}, "--flag") == {"groupedBookSnapshot": "x"}


@pytest.mark.parametrize("name", ["trades", "BookChange", "book-change", ""])
def test_an_unknown_payload_case_is_refused_with_those_that_exist(name: str):
    for read in (lambda: payload_cases([name], "--flag"), lambda: routes({name: "x"}, "--flag")):
        with pytest.raises(ConfigError) as caught:
            read()
        assert (caught.value.flag, caught.value.value) == ("--flag", name)
        assert all(case in str(caught.value) for case in PAYLOAD_CASES)


def test_a_url_is_a_valid_destination():
    url = "https://sqs.eu-west-1.amazonaws.com/123/trades.fifo"

    assert routes({"trade": url}, "--flag") == {"trade": url}


@pytest.mark.parametrize("given", [{"trade": ""}, {"bookChange": "a", "book_change": "b"}])
def test_a_route_without_destination_or_given_twice_is_refused(given: dict[str, str]):
    with pytest.raises(ConfigError, match="--flag"):
        routes(given, "--flag")


@pytest.mark.parametrize(
    "given",
    [
        {"event-id": "x"},
        {"Nats-Msg-Id": "x"},
        {"a b": "x"},
        {"a:b": "x"},
        {"": "x"},
        {"a": "x\r\ny"},
    ],
)
def test_a_header_that_would_break_the_record_is_refused(given: dict[str, str]):
    with pytest.raises(ConfigError, match="--flag"):
        static_headers(given, "--flag")


def test_routes_outside_the_allow_list_are_named():
    rules = Routing(base="b", routes={"trade": "t", "quote": "q"}, include=frozenset({"trade"}))

    assert rules.unused_routes == ("quote",)
    assert rules.destinations == ("b", "t", "q")
