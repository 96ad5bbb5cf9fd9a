"""Settings declared once; flags, variables, file keys and documentation are derived from them.

A component declares a frozen dataclass of settings:

    @dataclass(frozen=True, kw_only=True)
    class KafkaConfig(Section, section="kafka", title="Kafka"):
        topic: str | None = setting(None, help="topic that receives every event")

The declaration results in the flag `--kafka-topic`, the variable `TM_KAFKA_TOPIC` (a secret also
has `TM_…_FILE`), the key `topic` in the TOML table `[kafka]`, a line of `--help`, a row of the
configuration page, and `from_dict(KafkaConfig, {"topic": …})` for Python.
Precedence: flag, environment, file, default.
"""

from tardis_machine.config.directories import (
    DefaultDirectory,
    check_own,
    claim,
    make_private,
    open_directory,
    unlink_below,
    warn_once,
)
from tardis_machine.config.help import describe
from tardis_machine.config.loading import Loaded, Origin, Parser, add_flags, load, resolve
from tardis_machine.config.section import (
    EMPTY,
    REDACTED,
    ConfigError,
    Option,
    Section,
    Setting,
    bytes_size,
    options,
    pairs,
    readable_by_others,
    setting,
)
from tardis_machine.config.values import from_dict, redacted, to_dict, with_absolute_paths

__all__ = [
    "EMPTY",
    "REDACTED",
    "ConfigError",
    "DefaultDirectory",
    "Loaded",
    "Option",
    "Origin",
    "Parser",
    "Section",
    "Setting",
    "add_flags",
    "bytes_size",
    "check_own",
    "claim",
    "describe",
    "from_dict",
    "load",
    "make_private",
    "open_directory",
    "options",
    "pairs",
    "readable_by_others",
    "redacted",
    "resolve",
    "setting",
    "to_dict",
    "unlink_below",
    "warn_once",
    "with_absolute_paths",
]
