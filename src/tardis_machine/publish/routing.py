"""Where an event goes: allow-list, route, template and headers, all of it checked at start."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import TYPE_CHECKING, Final, cast

from tardis_machine.config import ConfigError
from tardis_machine.messages import PAYLOAD_CASES
from tardis_machine.publish.record import Headers, Record, Records, Target

if TYPE_CHECKING:
    from tardis_machine.bronze import Context, EncodedBatch, Event, Series

CONTENT_TYPE: Final = "application/x-protobuf"
DEFAULT_KEY: Final = "{{exchange}}|{{symbol}}|{{payloadCase}}"
MISSING: Final = "_"
"""What a value that is not there renders as."""

_OF_SERIES: Final = {
    "exchange": "exchange",
    "symbol": "symbol",
    "payloadCase": "payload_case",
    "dataType": "data_type",
}
_OF_CONTEXT: Final = ("source", "origin")
_META: Final = "meta."
_PLACEHOLDER: Final = re.compile(r"\{\{(.*?)\}\}")
_PLACEHOLDERS: Final = ", ".join(
    f"{{{{{name}}}}}" for name in (*_OF_SERIES, *_OF_CONTEXT, f"{_META}KEY")
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_HEADER_NAME: Final = re.compile(r"[!-9;-~]+")
RESERVED_HEADERS: Final = frozenset({"event-id", "payload-case", "content-type"})
_CASES: Final = {
    **{case: case for case in PAYLOAD_CASES},
    **{re.sub(r"(?=[A-Z])", "_", case).lower(): case for case in PAYLOAD_CASES},
}
_CACHED_ROUTES: Final = 100_000


class Template:
    """Text with placeholders, split once at start."""

    def __init__(self, text: str, flag: str) -> None:
        self.text = text
        # Odd places hold placeholders, even ones the text between them.
        self._parts = _PLACEHOLDER.split(text)
        for name in self.placeholders:
            if not _known(name):
                raise ConfigError(
                    flag, text, f"unknown placeholder {{{{{name}}}}}; expected {_PLACEHOLDERS}"
                )
        if any("{{" in literal or "}}" in literal for literal in self._parts[::2]):
            raise ConfigError(flag, text, f"unpaired braces; expected {_PLACEHOLDERS}")

    @property
    def placeholders(self) -> Sequence[str]:
        """Name what it needs, without braces."""
        return self._parts[1::2]

    def render(self, value: Callable[[str], str]) -> str:
        """Fill in each placeholder with what `value` gives for its name."""
        parts = list(self._parts)
        parts[1::2] = [value(name) for name in self.placeholders]
        return "".join(parts)


def payload_cases(given: Iterable[str], flag: str) -> frozenset[str]:
    """Read an allow-list: camelCase names, snake_case accepted."""
    return frozenset(_payload_case(name, flag) for name in given)


def routes(
    given: Mapping[str, str], flag: str, check: Callable[[str, str], object] | None = None
) -> dict[str, str]:
    """Read `payloadCase:destination` pairs; `check(destination, flag)` refuses a bad one."""
    found: dict[str, str] = {}
    for name, destination in given.items():
        case = _payload_case(name, flag)
        if case in found:
            raise ConfigError(flag, name, f"expected each payload case once, {case} is there twice")
        if not destination:
            raise ConfigError(flag, f"{name}:", "expected payloadCase:destination,…")
        if check is not None:
            check(destination, flag)
        found[case] = destination
    return found


def static_headers(given: Mapping[str, str], flag: str) -> Headers:
    """Read headers that every record carries."""
    for name, value in given.items():
        if name.lower() in RESERVED_HEADERS or name.lower().startswith("nats-"):
            taken = ", ".join(sorted(RESERVED_HEADERS))
            raise ConfigError(flag, name, f"expected a name of your own, not {taken} or Nats-…")
        if not _HEADER_NAME.fullmatch(name):
            raise ConfigError(flag, name, "expected a name of printable ASCII without : and blanks")
        if _CONTROL.search(value):
            raise ConfigError(flag, f"{name}:{value}", "expected no control characters")
    return tuple(given.items())


@dataclass(frozen=True, kw_only=True)
class Routing:
    """The rules of one bus, already checked.

    The destination is the payload case's route, else the template's, else the base. Without a key
    template the destination is the key. `clean` is what a value must suffer to fit into a
    destination, `clean_header` to fit into a header, `fit_key` what a whole key must.
    """

    base: str
    routes: Mapping[str, str]
    include: frozenset[str]
    destination: Template | None = None
    key: Template | None = None
    headers: Headers = ()
    header_templates: Sequence[tuple[str, Template]] = ()
    meta_headers_prefix: str | None = None
    clean: Callable[[str], str] = str
    clean_header: Callable[[str], str] = str
    fit_key: Callable[[str], str] = str

    @property
    def destinations(self) -> tuple[str, ...]:
        """Name every destination that is known before the first event."""
        return tuple(dict.fromkeys([self.base, *self.routes.values()]))

    @property
    def unused_routes(self) -> tuple[str, ...]:
        """Name the payload cases that have a route but are not in the allow-list."""
        if not self.include:
            return ()
        return tuple(case for case in self.routes if case not in self.include)


class Router:
    """Turns events into records. Assign `context` whenever it changes, before routing.

    `overhead` is what a service counts of every record to a target besides its value; `weigh` is
    what it counts of a value of so many bytes.
    """

    def __init__(
        self,
        routing: Routing,
        overhead: Callable[[Target], int],
        weigh: Callable[[int], int],
    ) -> None:
        # Here, since settings are checked in processes that never see an envelope.
        from tardis_machine.bronze.context import REQUEST_META  # noqa: PLC0415

        self._request_meta = REQUEST_META
        self._routing = routing
        self._overhead = overhead
        self._weigh = weigh
        self._targets: dict[Series, Target | None] = {}
        self._values: dict[str, str] = {}
        templates = [t for t in (routing.destination, routing.key) if t is not None]
        templates += [template for _, template in routing.header_templates]
        names = [name for template in templates for name in template.placeholders]
        self._used = frozenset(name for name in names if name not in _OF_SERIES)

    @property
    def context(self) -> "Context":
        """What the events' envelopes have in common."""
        return self._context

    @context.setter
    def context(self, context: "Context") -> None:
        named = {name: getattr(context, name) for name in self._request_meta}
        meta = context.meta | {name: value for name, value in named.items() if value}
        values = {f"{_META}{name}": value for name, value in meta.items()}
        values["source"] = context.source
        values["origin"] = context.origin.name.lower()
        self._context = context
        if self._depend(values) != self._depend(self._values):
            self._targets.clear()
        self._values = values

    def route(self, events: Sequence["Event"]) -> list[Record]:
        """Give the records of those events that the allow-list lets through, in order."""
        weigh = self._weigh
        return [
            Record(event, target, weigh(len(event.value)) + target.weight)
            for event in events
            if (target := self._target(event.series)) is not None
        ]

    def route_batch(self, batch: "EncodedBatch") -> Records:
        """Do the same with a batch, which knows its series, in columns."""
        found = batch.columns()
        targets = [self._target(series) for series in found.table]
        if None in targets:
            found = found.only([targets[place] is not None for place in found.series])
        overheads = [0 if target is None else target.weight for target in targets]
        sizes = list(map(len, found.values))
        weighed = {size: self._weigh(size) for size in set(sizes)}
        return Records(
            found.values,
            found.event_ids,
            cast("list[Target]", list(map(targets.__getitem__, found.series))),
            list(
                map(
                    add,
                    map(weighed.__getitem__, sizes),
                    map(overheads.__getitem__, found.series),
                )
            ),
            found.local_us,
            found.positions,
        )

    def _target(self, series: "Series") -> Target | None:
        try:
            return self._targets[series]
        except KeyError:
            return self._resolve(series)

    def _depend(self, values: Mapping[str, str]) -> list[tuple[str, str]]:
        """Give those values of the context that targets are made of."""
        if self._routing.meta_headers_prefix is not None:
            return sorted(values.items())
        return [(name, values.get(name, "")) for name in self._used]

    def _resolve(self, series: "Series") -> Target | None:
        if len(self._targets) >= _CACHED_ROUTES:
            self._targets.clear()
        target = None
        if not self._routing.include or series.payload_case in self._routing.include:
            destination = self._destination(series)
            template = self._routing.key
            key = destination if template is None else template.render(self._lookup(series))
            key = self._routing.fit_key(key)
            plain = Target(series, destination, key, self._headers(series))
            target = plain._replace(weight=self._overhead(plain))
        self._targets[series] = target
        return target

    def _destination(self, series: "Series") -> str:
        routing = self._routing
        routed = routing.routes.get(series.payload_case)
        if routed is not None:
            return routed
        if routing.destination is None:
            return routing.base
        value = self._lookup(series)
        return routing.destination.render(lambda name: routing.clean(value(name)))

    def _headers(self, series: "Series") -> Headers:
        prefix = self._routing.meta_headers_prefix
        meta: list[tuple[str, str]] = []
        if prefix is not None:
            meta = [
                (prefix + name.removeprefix(_META), value)
                for name, value in self._values.items()
                if name.startswith(_META)
            ]
        value = self._lookup(series)
        rendered = [
            (name, self._routing.clean_header(template.render(value)))
            for name, template in self._routing.header_templates
        ]
        return (
            ("payload-case", series.payload_case),
            ("content-type", CONTENT_TYPE),
            *self._routing.headers,
            *rendered,
            *meta,
        )

    def _lookup(self, series: "Series") -> Callable[[str], str]:
        def value(name: str) -> str:
            attribute = _OF_SERIES.get(name)
            found = self._values.get(name) if attribute is None else getattr(series, attribute)
            return found or MISSING

        return value


def _payload_case(name: str, flag: str) -> str:
    try:
        return _CASES[name.strip()]
    except KeyError:
        allowed = ", ".join(PAYLOAD_CASES)
        raise ConfigError(flag, name, f"unknown payload case; expected some of {allowed}") from None


def _known(name: str) -> bool:
    return name in _OF_SERIES or name in _OF_CONTEXT or re.fullmatch(r"meta\..+", name) is not None
