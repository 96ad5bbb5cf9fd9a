"""Flags, environment and file derive from the same dataclasses."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tardis_machine.config import (
    ConfigError,
    Loaded,
    Parser,
    Section,
    add_flags,
    bytes_size,
    describe,
    from_dict,
    load,
    pairs,
    redacted,
    resolve,
    setting,
    to_dict,
)


@dataclass(frozen=True, kw_only=True)
class Serving(Section, title="Serving"):
    port: int = setting(
        8000, help="HTTP port", minimum=1, maximum=65534, env_override="PORT", short="-p"
    )
    api_key: str | None = setting(None, help="key of the API", secret=True)
    debug: bool = setting(False, help="more logs")
    cache_dir: Path = setting(Path("/tmp/cache"), help="where slices are kept")
    allow_origin: tuple[str, ...] = setting((), help="browser origins")


@dataclass(frozen=True, kw_only=True)
class Bus(Section, section="bus", title="Bus", note="A bus."):
    topic: str | None = setting(None, help="topic")
    topic_routing: dict[str, str] = setting({}, help="routes")
    acks: str = setting("all", help="acks", choices=("all", "1", "0"))
    idempotent: bool = setting(True, help="no duplicates by retries")
    max_bytes: int = setting(2**20, help="batch size", minimum=1, parse=bytes_size)
    least_bytes: int = setting(2**20, help="least", minimum=2**20, parse=bytes_size)
    delay: float = setting(0.5, help="delay", minimum=0)
    sasl_password: str | None = setting(None, help="password", secret=True)
    payloads: tuple[str, ...] = setting((), help="payloads", choices=("trade", "bookChange"))

    def validate(self) -> None:
        if self.topic_routing and not self.topic:
            raise ConfigError(
                self.flag("topic_routing"), str(self.topic_routing), "expected --bus-topic as well"
            )

    def warnings(self) -> list[str]:
        return [] if self.acks == "all" else ["acks below all"]


def loaded(*arguments: str, **environ: str) -> Loaded:
    return load((Serving, Bus), arguments, environ)


def test_defaults_are_the_dataclass_s() -> None:
    found = loaded()
    assert found[Serving] == Serving()
    assert found[Bus] == Bus()
    assert not found.has_values(Bus)
    assert {origin.kind for _, _, origin in found.entries()} == {"default"}


def test_every_type_from_flags() -> None:
    found = loaded(
        *("--port", "9000", "--debug", "--cache-dir=/x", "--allow-origin", "a,b"),
        *("--allow-origin", "c", "--bus-topic", "t", "--bus-topic-routing", "trade:x:y,quote=z"),
        *("--bus-acks", "1", "--no-bus-idempotent", "--bus-max-bytes", "2MiB", "--bus-delay", "1"),
    )
    assert found[Serving] == Serving(
        port=9000, debug=True, cache_dir=Path("/x"), allow_origin=("a", "b", "c")
    )
    assert found[Bus] == Bus(
        topic="t",
        topic_routing={"trade": "x:y", "quote": "z"},
        acks="1",
        idempotent=False,
        max_bytes=2 * 2**20,
        delay=1.0,
    )
    assert found.warnings == ["acks below all"]
    assert found.has_values(Bus)


def test_precedence_is_flag_environment_file_default(tmp_path: Path) -> None:
    file = tmp_path / "tm.toml"
    file.write_text('port = 1\ndebug = true\n[bus]\ntopic = "file"\nacks = "0"\n')
    found = loaded(
        *("--config", str(file), "--bus-topic", "flag"), TM_BUS_TOPIC="env", TM_BUS_ACKS="1"
    )
    assert found[Bus].topic == "flag"
    assert found[Bus].acks == "1"
    assert found[Serving].port == 1
    assert found.origins["bus_topic"] == ("flag", "--bus-topic")
    assert found.origins["bus_acks"] == ("environment", "TM_BUS_ACKS")
    assert found.origins["port"] == ("file", f"{file} port")
    assert found.origins["bus_delay"].kind == "default"


def test_port_comes_from_PORT_before_everything() -> None:  # noqa: N802 - the variable's name
    found = loaded("--port", "2", PORT="3", TM_PORT="4")
    assert found[Serving].port == 3
    assert loaded("--port", "2", TM_PORT="4")[Serving].port == 2
    assert loaded(TM_PORT="4")[Serving].port == 4


@pytest.mark.parametrize("text", ["1", "TRUE", "yes", "on"])
def test_only_true_turns_a_boolean_on_from_the_environment(text: str) -> None:
    found = loaded(TM_DEBUG=text)
    assert found[Serving].debug is False
    assert any("TM_DEBUG" in warning for warning in found.warnings)
    assert loaded(TM_DEBUG="true")[Serving].debug is True


def test_an_empty_variable_is_no_value() -> None:
    assert loaded(TM_BUS_TOPIC="")[Bus].topic is None


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--port", "0"], ["--port 0", "1 to 65534"]),
        (["--port", "65535"], ["--port 65535", "1 to 65534"]),
        (["--port", "x"], ["--port 'x'", "whole number"]),
        (["--bus-acks", "maybe"], ["--bus-acks 'maybe'", "all, 1, 0"]),
        (["--bus-payloads", "trade,tarde"], ["--bus-payloads 'tarde'", "trade, bookChange"]),
        (["--bus-delay", "nan"], ["--bus-delay nan"]),
        (["--bus-topic-routing", "trade"], ["--bus-topic-routing", "key:value", "'trade'"]),
        (["--bus-topic-routing", "a:b,a:c"], ["--bus-topic-routing", "twice"]),
        (["--bus-topic-routing", "a:b"], ["--bus-topic-routing", "--bus-topic as well"]),
        (["--debug", "perhaps"], ["--debug", "perhaps", "true or false"]),
        (["--prot", "1"], ["--prot", "unknown flag", "--port"]),
        (["--por", "1"], ["--por", "unknown flag"]),
        (["stray"], ["stray", "unknown argument"]),
        (["--bus-max-bytes", "many"], ["--bus-max-bytes 'many'", "8GiB"]),
        (["--bus-max-bytes", "9" * 400], ["--bus-max-bytes", "8GiB"]),
        (["--bus-least-bytes", "1"], ["--bus-least-bytes 1", "1048576 or more"]),
        (["--cache-dir", ""], ["--cache-dir ''", "a path"]),
        (["--cache-dir", "  "], ["--cache-dir '  '", "a path"]),
        (["--cache-dir", "a\0b"], ["--cache-dir", "no NUL"]),
        (["--cache-dir", "x" * 300], ["--cache-dir", "File name too long"]),
        (["--cache-dir", "caf\udce9"], ["--cache-dir", "UTF-8"]),
        (["--bus-topic", "caf\udce9"], ["--bus-topic", "UTF-8"]),
        (["--bus-topic-routing", "trade:\0"], ["--bus-topic-routing", "no NUL"]),
        (["--allow-origin", "a,caf\udce9"], ["--allow-origin", "UTF-8"]),
        (["--port"], ["--port", "expected one argument"]),
        (["--config", ""], ["--config ''", "a file"]),
        (["--config", " "], ["--config ' '", "a file"]),
    ],
)
def test_errors_name_the_flag_the_value_and_what_is_allowed(
    arguments: list[str], parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(*arguments)
    for part in parts:
        assert part in str(caught.value)


def test_errors_name_the_variable_the_value_came_from() -> None:
    with pytest.raises(ConfigError, match="TM_BUS_ACKS") as caught:
        loaded(TM_BUS_ACKS="2")
    assert caught.value.flag == "--bus-acks"


def test_secrets_come_from_files_and_are_never_shown(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("s3cret\n")
    found = loaded("--bus-sasl-password", "hunter2", TM_API_KEY_FILE=str(secret))
    assert found[Serving].api_key == "s3cret"
    assert found.origins["api_key"] == ("environment", "TM_API_KEY_FILE")
    assert any("--bus-sasl-password" in warning for warning in found.warnings)
    shown = str(found.redacted()) + str(redacted(found[Bus])) + str(found.warnings)
    assert "hunter2" not in shown
    assert "s3cret" not in shown
    assert found.redacted()["api_key"]["value"] == "***"


def test_a_secret_s_file_must_be_readable_and_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TM_API_KEY_FILE"):
        loaded(TM_API_KEY_FILE=str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="not both"):
        loaded(TM_API_KEY_FILE=str(tmp_path / "absent"), TM_API_KEY="x")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("prot = 1", "did you mean port"),
        ("[bus]\ntopics = 'x'", "did you mean topic"),
        ("[bos]\ntopic = 'x'", "did you mean bus"),
        ("port = '1'\n[bus]\nacks = 1", "expected text"),
        ("port = 1.5", "expected a whole number"),
        ("port = true", "expected a whole number"),
        ("debug = 'true'", "true or false"),
        ("port = ", "is not TOML"),
        ('cache_dir = ""', "a path"),
        ('[bus]\ntopic = "a\\u0000"', "no NUL"),
    ],
)
def test_a_file_is_checked(tmp_path: Path, text: str, part: str) -> None:
    file = tmp_path / "tm.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        loaded(TM_CONFIG=str(file))
    assert part in str(caught.value)


def test_an_absent_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        loaded("--config", str(tmp_path / "absent.toml"))


def test_a_file_may_hold_tables_of_other_commands(tmp_path: Path) -> None:
    file = tmp_path / "tm.toml"
    file.write_text('[bus]\ntopic = "x"\n')
    assert load((Serving,), ["--config", str(file)], {}, also=(Bus,))[Serving] == Serving()
    with pytest.raises(ConfigError, match="unknown key"):
        load((Serving,), ["--config", str(file)], {})


def test_a_file_s_tables_may_nest(tmp_path: Path) -> None:
    file = tmp_path / "tm.toml"
    file.write_text(
        '[bus]\ntopic = "x"\nmax-bytes = "1KiB"\n[bus.topic_routing]\n"trade" = "a,b"\n'
        '[bus.sasl]\npassword = "p"\n'
    )
    assert loaded("--config", str(file))[Bus] == Bus(
        topic="x", topic_routing={"trade": "a,b"}, sasl_password="p", max_bytes=1024
    )


def test_from_dict_takes_both_spellings_and_reads_back_what_to_dict_writes() -> None:
    found = from_dict(
        Bus,
        {"topic": "t", "topicRouting": {"trade": "x"}, "sasl": {"password": "p"}, "maxBytes": 5},
    )
    assert found == Bus(topic="t", topic_routing={"trade": "x"}, sasl_password="p", max_bytes=5)
    assert from_dict(Bus, to_dict(found)) == found
    assert from_dict(Serving, to_dict(Serving())) == Serving()
    with pytest.raises(ConfigError, match=r"bus\.topics.*did you mean topic"):
        from_dict(Bus, {"topics": "t"})
    with pytest.raises(ConfigError, match="expected one of all, 1, 0"):
        from_dict(Bus, {"acks": "none"})
    with pytest.raises(ConfigError, match="--bus-topic as well"):
        from_dict(Bus, {"topic_routing": {"trade": "x"}})


def test_variables_that_mean_nothing_are_said() -> None:
    warnings = loaded(TM_BUS_TOPICS="x").warnings
    assert warnings == [
        "TM_BUS_TOPICS is not a setting and has no effect; did you mean TM_BUS_TOPIC?"
    ]


def test_a_command_with_arguments_of_its_own() -> None:
    parser = Parser(prog="lake")
    parser.add_argument("what")
    add_flags(parser, (Bus,))
    given = vars(parser.parse_args(["backfill", "--bus-topic", "t"]))
    assert given["what"] == "backfill"
    assert resolve((Bus,), given, {})[Bus].topic == "t"


def test_help_shows_prefixed_sections_by_name_only(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        loaded("--help")
    assert done.value.code == 0
    short = capsys.readouterr().out
    assert "-p --port N" in short
    assert "HTTP port (1..65534) [8000]" in short
    assert "--bus-topic-routing" in short
    assert "no duplicates by retries" not in short
    with pytest.raises(SystemExit):
        loaded("--help", "bus")
    full = capsys.readouterr().out
    assert "--no-bus-idempotent" in full
    assert "no duplicates by retries" in full
    assert "HTTP port" not in full
    assert all(len(line) <= 100 for line in (short + full).splitlines())


def test_describe_is_a_row_per_setting() -> None:
    page = describe((Serving, Bus))
    assert "`PORT` `TM_PORT`" in page
    assert "`TM_BUS_SASL_PASSWORD` `TM_BUS_SASL_PASSWORD_FILE`" in page
    assert "all\\|1\\|0" in page
    rows = [line for line in page.splitlines() if line.startswith(("| `--", "| `-p"))]
    assert len(rows) == 14


@pytest.mark.parametrize(
    ("text", "size"), [("5", 5), ("1k", 1024), ("8GiB", 2**33), ("1.5 MB", 3 * 2**19), ("7B", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert bytes_size(text) == size


def test_pairs_split_at_the_first_separator() -> None:
    assert pairs("a:https://x:1/y,b=c:d") == {"a": "https://x:1/y", "b": "c:d"}
    assert pairs("") == {}
