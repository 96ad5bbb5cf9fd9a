"""`tardis-machine config`: the configuration in force, and the origin of each value."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from tardis_machine.config import EMPTY, Loaded, Section, describe, load
from tardis_machine.history.settings import HistoryConfig
from tardis_machine.live.settings import LiveConfig
from tardis_machine.publish.buses import BUSES
from tardis_machine.publish.config import JournalConfig, PublishConfig
from tardis_machine.server.limits import LimitsConfig
from tardis_machine.server.settings import ServerConfig

_PROG: Final = "tardis-machine config"
_DESCRIPTION: Final = """\
Prints every setting of the server with its value and where that came from: a flag, the
environment, a file, or the default. Secrets are stars. Takes the server's flags, and:

  --set        only what is not a default
  --json       for machines
  --markdown   the page that documents every setting, instead of values"""
_EPILOG: Final = """\
Examples:
  tardis-machine config --config production.toml
  TM_KAFKA_TOPIC=bronze tardis-machine config --set
  tardis-machine config --json | jq .cache_dir"""


_PAGE: Final = """\
# Configuration

A value comes from a flag, else from the environment, else from the TOML file that `--config` (or
`TM_CONFIG`) names, else it is the default. `tardis-machine config` prints what is in force and
where each value came from. A secret may also come from a file: its variable with `_FILE`.
Generated from the settings themselves (`make docs`).

"""


def page() -> str:
    """Return the page that documents every setting of the server."""
    return _PAGE + describe(sections())


def sections() -> tuple[type[Section], ...]:
    """Return the sections of the server's configuration in the order of the documentation."""
    buses = (bus.config_type for bus in BUSES.values())
    return (
        ServerConfig,
        LimitsConfig,
        HistoryConfig,
        LiveConfig,
        PublishConfig,
        JournalConfig,
        *buses,
    )


def lake_sections() -> tuple[type[Section], ...]:
    """Return the sections of the lake's commands, which a server's file may contain as well."""
    from tardis_machine.lake import config as lake  # noqa: PLC0415 - not needed by every command
    from tardis_machine.lake import gold_config  # noqa: PLC0415

    return (
        lake.SparkConfig,
        lake.BackfillConfig,
        lake.StreamConfig,
        lake.SilverConfig,
        lake.ShowConfig,
        lake.MaintainConfig,
        lake.VerifyConfig,
        lake.QuarantineConfig,
        *gold_config.SECTIONS,
    )


def main(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """Print the configuration in force, or the page that documents it."""
    own_flags = {"--json", "--markdown", "--set"}
    chosen = own_flags.intersection(arguments)
    rest = [argument for argument in arguments if argument not in own_flags]
    if "--markdown" in chosen:
        print(page(), end="")
        return 0
    loaded = load(
        sections(),
        rest,
        environ,
        prog=_PROG,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        also=lake_sections(),
    )
    if "--json" in chosen:
        shown = {
            key: entry
            for key, entry in loaded.redacted().items()
            if "--set" not in chosen or entry["from"] != "default"
        }
        print(json.dumps(shown, indent=2))
    else:
        print(_table(loaded, only_set="--set" in chosen))
    return 0


def _table(loaded: Loaded, *, only_set: bool) -> str:
    lines: list[str] = []
    for owner in sections():
        rows = [
            (option.flag[2:], option.shown(value) if value not in EMPTY else "-", str(origin))
            for option, value, origin in loaded.entries()
            if option.owner is owner and not (only_set and origin.kind == "default")
        ]
        if rows:
            lines.append(f"{owner.title}:")
            lines += [f"  {name:<36} {value:<36} {origin}" for name, value, origin in rows]
    lines += [f"warning: {warning}" for warning in loaded.warnings]
    return "\n".join(lines)
