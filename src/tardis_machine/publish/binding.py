"""Where each bus goes, in words without secrets: what a journal directory is bound to."""

from collections.abc import Mapping
from pathlib import Path

from tardis_machine.config import options
from tardis_machine.publish.buses.base import BusConfig


def destinations(buses: Mapping[str, BusConfig]) -> dict[str, str]:
    """Say for each bus what goes where: its service, destinations, routes and allow-list."""
    return {name: _destination(config) for name, config in buses.items()}


def _destination(config: BusConfig) -> str:
    parts = []
    for option in options(type(config)):
        if option.name not in (*config.needs, *config.service):
            continue
        value = config.in_force(option.name)
        if value is not None:
            if isinstance(value, tuple):
                value = tuple(sorted(value))
            elif isinstance(value, Path):
                value = value.resolve()
            parts.append(f"{option.name} {option.shown(value)}")
    routing = config.routing()
    if routing.destination is not None:
        parts.append(f"template {routing.destination.text}")
    parts += [f"{case} to {where}" for case, where in sorted(routing.routes.items())]
    if routing.include:
        parts.append(f"only {' and '.join(sorted(routing.include))}")
    return ", ".join(parts)
