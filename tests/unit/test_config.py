"""Settings: precedence, types, ranges, relations, and refusals in one line (dc-config)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kernel.config import Config, Limit, load, setting_choices
from kernel.engine.settings import Settings
from kernel.errors import InvalidConfig


def loaded(flags: dict[str, Any] | None = None, environ: dict[str, str] | None = None, file: Path | None = None) -> Any:
    return load(flags, environ=environ or {}, file=file)


@pytest.fixture
def toml(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "kernel.toml"
        path.write_text(text)
        return path

    return write


@pytest.mark.req("dc-config")
def test_the_defaults_are_the_articles() -> None:
    config = loaded().config

    assert (config.poll_s, config.scan_s, config.lease_s, config.mismatch_deferral_s) == (5, 30, 30, 3_600)
    assert (config.stale_tries, config.lane_weights, config.lane_burst) == (8, (8, 6, 4, 2), 8)
    assert config.renew_period_s == 10
    assert config.fence_s == 25
    assert (config.deaths_max, config.stuck_grace_s, config.finalizer_timeout_s, config.prepare_timeout_s) == (
        3,
        30,
        60,
        5,
    )
    assert (config.input_bytes_max, config.output_bytes_max, config.instance_bytes_max) == (2**18, 2**18, 2**20)


@pytest.mark.req("dc-config")
def test_flags_win_over_the_environment_over_the_file_over_the_defaults(toml: Any) -> None:
    file = toml('lease_s = 60\npoll_s = 2\nscan_s = 9\nnamespace = "file"\n')
    environ = {"KERNEL_POLL_S": "3", "KERNEL_SCAN_S": "8", "KERNEL_SLOTS": " 4 "}
    made = loaded({"scan_s": 7.0, "workers": None}, environ, file)

    config, origins = made.config, {name: origin.text for name, origin in made.origins.items()}
    assert (config.lease_s, config.poll_s, config.scan_s, config.slots, config.workers) == (60, 3, 7, 4, 2)
    assert (origins["lease_s"], origins["namespace"]) == (f"file {file}:1", f"file {file}:4")
    assert (origins["poll_s"], origins["scan_s"], origins["workers"]) == ("env KERNEL_POLL_S", "flag", "default")
    assert set(origins) == set(Config.__struct_fields__)


@pytest.mark.req("dc-config")
def test_the_line_of_a_setting_is_found_in_any_correct_file(toml: Any) -> None:
    file = toml(
        "# workers = 9\n"
        '"workers" = 3\n'
        'mongodb_database = """\n'
        "lease_s = 1\n"
        '"""  # and not slots = 1\n'
        "  lease_s = 60.0\n"
        "lane_weights = [\n  8, 6,\n  4, 2,\n]\n"
        "[limits.speech]\n"
        "paused = true\n"
    )
    origins = loaded(file=file).origins

    found = {name: origin.text for name, origin in origins.items() if origin.text != "default"}
    assert found == {
        "workers": f"file {file}:2",
        "mongodb_database": f"file {file}:3",
        "lease_s": f"file {file}:6",
        "lane_weights": f"file {file}:7",
        "limits": f"file {file}:11",
    }


def test_conventional_variables_are_heard_and_ours_win() -> None:
    both = {"MONGO_URI": "mongodb://b/", "MONGODB_URI": "mongodb://a/", "VALKEY_URL": "redis://c/"}

    assert loaded(environ=both).config.mongodb_uri == "mongodb://a/"
    assert loaded(environ=both).config.redis_url == "redis://c/"
    assert loaded(environ=both | {"KERNEL_REDIS_URL": "redis://d/"}).config.redis_url == "redis://d/"
    assert loaded(environ={"KERNEL_SLOTS": "", "KERNEL_TEST_SECRET": "x", "KERNEL_CONFIG": "y"}).config == Config()


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("slots", "0", "slots"),
        ("slots", "many", "slots"),
        ("slots", "1.5", "slots"),
        ("lease_s", "-1", "lease_s"),
        ("lease_s", "0", "lease_s"),
        ("lease_s", "nan", "lease_s"),
        ("durability", "maybe", "durability"),
        ("lane_weights", "8,6,4", "lane_weights"),
        ("lane_weights", "8,6,4,x", "lane_weights"),
        ("deaths_max", "-1", "deaths_max"),
        ("limits", "8", "limits"),
        ("namespace", "A b", "namespace"),
        ("app", "no_colon", "app"),
        ("app", "a b:c", "app"),
        ("data_dir", "a\0b", "data_dir"),
    ],
)
@pytest.mark.req("dc-config")
def test_a_value_out_of_range_is_refused_in_one_line_that_names_it(name: str, raw: str, words: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        loaded(environ={f"KERNEL_{name.upper()}": raw})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dispatch_batch": 301}, "dispatch_batch: at most dispatch_round"),
        ({"dispatch_batch": 501, "dispatch_round": 900}, "dispatch_batch"),
        ({"dispatch_slots": 0}, "dispatch_slots"),
        ({"dispatch_lease_s": 0.0}, "dispatch_lease_s"),
        ({"dispatch_delay_s": 301.0}, "dispatch_delay_s: at most dispatch_delay_max_s"),
    ],
)
@pytest.mark.req("dsp-limits")
def test_limits_of_a_dispatcher_that_contradict_each_other_are_refused(values: dict[str, float], words: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        loaded(values)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lease_s": 30.0, "renew_s": 11.0}, "renew_s: 11 s is more than a third of lease_s (30 s)"),
        ({"lease_s": 3.0, "renew_s": 3.0}, "renew_s"),
        ({"lease_s": 30.0, "fence_margin_s": 30.0}, "fence_margin_s"),
        ({"lease_s": 30.0, "fence_margin_s": 21.0}, "fence_margin_s"),
        ({"lease_s": 1.0, "fence_margin_s": 1e-9, "renew_s": 1.0}, "renew_s"),
    ],
)
@pytest.mark.req("clm-lease-config")
def test_a_lease_that_renewals_can_not_keep_is_refused(values: dict[str, float], words: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        loaded(values)
    assert words in str(caught.value)


@pytest.mark.req("clm-lease-config", "clm-renew-third")
def test_the_renewal_period_is_a_third_of_the_lease_unless_it_is_set() -> None:
    assert loaded({"lease_s": 3.0}).config.renew_period_s == 1.0
    assert loaded({"lease_s": 3.0, "renew_s": 0.5}).config.renew_period_s == 0.5
    settings = Settings.of(loaded({"lease_s": 1.5}).config)
    assert (settings.lease_ms, settings.renew_ms, settings.fence_ms) == (1_500, 500, 1_250)


@pytest.mark.req("dc-config")
def test_the_engine_is_given_every_interval_in_milliseconds() -> None:
    config = loaded({"poll_s": 0.25, "scan_s": 2.0, "slots": 3, "deaths_max": 0, "mismatch_push_s": 0.0004}).config
    settings = Settings.of(config)

    assert (settings.poll_ms, settings.scan_ms, settings.slots, settings.deaths_max) == (250, 2_000, 3, 0)
    assert settings.mismatch_push_ms == 1, "never zero: zero would be a hot loop"
    assert Settings() == Settings.of(Config())


def test_an_unknown_setting_is_refused_with_a_hint(toml: Any) -> None:
    with pytest.raises(InvalidConfig, match="there is no setting 'lease'; did you mean lease_s"):
        loaded(file=toml("lease = 3"))
    with pytest.raises(InvalidConfig, match="env KERNEL_POL_S: there is no setting 'pol_s'; did you mean poll_s"):
        loaded(environ={"KERNEL_POL_S": "3"})
    with pytest.raises(InvalidConfig, match="flag: there is no setting 'zzz'"):
        loaded({"zzz": 1})


def test_a_file_that_is_missing_or_broken_is_told_in_one_line(toml: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="No such file"):
        loaded(file=tmp_path / "nothing.toml")
    with pytest.raises(InvalidConfig, match="config file"):
        loaded(file=toml("lease_s = = 3"))
    (tmp_path / "latin.toml").write_bytes(b'namespace = "\xff"')
    with pytest.raises(InvalidConfig, match=r"latin\.toml"):
        loaded(file=tmp_path / "latin.toml")


@pytest.mark.req("dc-config")
def test_a_folder_of_the_files_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(environ={}).config == Config()

    (tmp_path / "kernel.toml").mkdir()

    with pytest.raises(InvalidConfig, match=r"config file kernel\.toml: Is a directory"):
        load(environ={})


@pytest.mark.req("dc-config")
@pytest.mark.parametrize("raw", ["1e3", "1e1", "2.0", "two"])
def test_a_number_that_is_not_written_as_a_whole_one_is_told_so(raw: str) -> None:
    with pytest.raises(
        InvalidConfig, match=rf"workers \(env KERNEL_WORKERS\): a whole number is expected, got '{raw}'"
    ):
        loaded(environ={"KERNEL_WORKERS": raw})


@pytest.mark.case("A83")
@pytest.mark.parametrize(
    ("line", "is_secret"),
    [
        ('redis_url = "redis://:canary@h/0"', True),
        ('mongodb_uri = "mongodb://u:canary@h/"', True),
        ('observe_mongodb_uri = "mongodb://h/?tlsCertificateKeyFilePassword=canary"', True),
        ('redis_url = "redis://h/0"', False),
        ('namespace = "plain"', False),
    ],
)
@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o604, 0o644])
def test_a_file_with_a_password_is_its_owners_alone(toml: Any, line: str, is_secret: bool, mode: int) -> None:
    file = toml(f"# first\n{line}\n")
    file.chmod(mode)

    if is_secret and mode & 0o077:
        with pytest.raises(InvalidConfig, match=r"kernel\.toml:2\): .* chmod 600 .*kernel\.toml") as refused:
            loaded(file=file)
        assert "canary" not in str(refused.value)
    else:
        assert loaded(file=file).origins[line.partition(" ")[0]].text.endswith("kernel.toml:2")


def test_limits_come_from_the_file_by_resource(toml: Any) -> None:
    speech = "[limits.speech]\nmax_concurrency = 8\nmax_starts_per_second = 2\n"
    config = loaded(file=toml(f"{speech}[limits.other]\npaused = true\n")).config

    assert config.limits == {"speech": Limit(8, 2), "other": Limit(paused=True)}
    for text in (
        "[limits.Speech]\n",
        "[limits.speech]\nmax = 1\n",
        "[limits.speech]\nmax_concurrency = -1\n",
        "limits = 3",
    ):
        with pytest.raises(InvalidConfig, match="limits"):
            loaded(file=toml(text))


@pytest.mark.req("dc-config")
@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("lease_s = 9\n[limits.a]\npaused = true\n\n[limits.b]\n# three\nmax_concurency = 3\n", 7, "max_concurrency?"),
        ("limits.a.paused = true\nlimits.b.max_concurrency = -1\n", 2, "Expected `int` >= 0"),
        ("[limits]\na = { paused = true }\nb = { max_starts_per_second = 'x' }\n", 3, "Expected `int`"),
        ("[limits]\na = { paused = true }\nB = {}\n", 3, "not a resource name"),
        ("[limits]\na = { paused = true }\nb = [\n  1,\n]\n", 3, "Expected `object`"),
    ],
)
def test_a_wrong_limit_is_told_with_its_own_line(toml: Any, text: str, line: int, words: str) -> None:
    file = toml(text)

    with pytest.raises(InvalidConfig, match=re.escape(words)) as told:
        loaded(file=file)

    assert re.match(rf"limits\.[bB] \(file {re.escape(str(file))}:{line}\): ", str(told.value))


def test_secrets_are_masked_wherever_they_are_shown() -> None:
    config = loaded(environ={"MONGODB_URI": "mongodb://u:canary@h/", "REDIS_URL": "redis://:canary@h/"}).config

    assert config.shown("mongodb_uri") == config.shown("redis_url") == "***"
    assert Config().shown("redis_url") is None
    with pytest.raises(InvalidConfig) as caught:
        loaded({"mongodb_uri": ["canary"]})
    assert "canary" not in str(caught.value)


def test_the_choices_of_a_closed_setting_are_known_to_the_command_line() -> None:
    assert setting_choices("durability") == ("full", "normal")
    assert setting_choices("slots") == ()
