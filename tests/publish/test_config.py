"""Settings of journal and publisher: what is read, and what is refused with the flag's name."""

from pathlib import Path

import pytest

from tardis_machine.config import ConfigError, from_dict, load
from tardis_machine.publish.config import JournalConfig, PublishConfig


def journal(*flags: str, **environ: str) -> JournalConfig:
    return load([JournalConfig], flags, environ)[JournalConfig]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("interval:500ms", 0.5), ("interval:2s", 2.0), ("batch", 0.0), ("never", None)],
)
def test_fsync(text: str, seconds: float | None) -> None:
    assert journal("--journal-fsync", text).fsync_s == seconds


@pytest.mark.parametrize("text", ["sometimes", "interval:", "interval:0ms", "interval:5"])
def test_fsync_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--journal-fsync .*interval:500ms") as raised:
        journal("--journal-fsync", text)
    assert raised.value.value == text


def test_sizes_have_units_and_a_lower_bound() -> None:
    assert journal("--journal-max-bytes", "2GiB").max_bytes == 2 << 30
    assert journal().max_bytes == 8 << 30
    with pytest.raises(ConfigError, match="--journal-max-bytes"):
        journal("--journal-max-bytes", "1000")


def test_a_ring_is_none_or_large_enough() -> None:
    assert journal("--journal-ring-bytes", "0").ring_bytes == 0
    assert journal("--journal-ring-bytes", "1MiB").ring_bytes == 1 << 20
    for text in ("1000", "2GiB"):
        with pytest.raises(ConfigError, match="--journal-ring-bytes"):
            journal("--journal-ring-bytes", text)


def test_directory(tmp_path: Path) -> None:
    assert journal("--journal-dir", str(tmp_path)).path == tmp_path
    assert journal(TM_JOURNAL_DIR=str(tmp_path)).path == tmp_path
    assert journal().path.parts[-2:] == ("tardis-machine", "journal")
    assert PublishConfig().dead_letters(tmp_path) == tmp_path / "dead-letters"


def test_dropping_is_warned_of() -> None:
    loaded = load([JournalConfig], ["--journal-when-full", "drop"], {})
    assert any("--journal-when-full drop" in warning for warning in loaded.warnings)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--publish-flows", "http-replay,carrier-pigeon"), "--publish-flows"),
        (("--publish-flows", ","), "--publish-flows"),
        (("--drain-timeout-s", "-1"), "--drain-timeout-s"),
        (("--retry-max", "0"), "--retry-max"),
        (("--retry-min-ms", "5000", "--retry-max-s", "1"), "--retry-min-ms"),
        (("--journal-when-full", "explode"), "--journal-when-full"),
    ],
)
def test_refused_at_start(flags: tuple[str, ...], named: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load([PublishConfig, JournalConfig], flags, {})
    assert raised.value.flag == named


def test_flows_are_all_by_default() -> None:
    assert load([PublishConfig], [], {})[PublishConfig].publish_flows == (
        "http-replay",
        "ws-replay",
        "ws-stream",
    )


@pytest.mark.parametrize("name", ["drain_timeout_s", "send_timeout_s", "retry_max_s"])
def test_nobody_waits_longer_than_a_clock_can_tell(name: str) -> None:
    """With more the drain failed, and said that nothing was delivered."""
    year = 365 * 24 * 3600
    assert getattr(from_dict(PublishConfig, {name: year}), name) == year
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} .* to {year}"):
        from_dict(PublishConfig, {name: 1e12})
