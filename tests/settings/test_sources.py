"""Settings: where each comes from, which goes first, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from cli.main import main
from cli.serving import SECTIONS
from common.errors import ConfigError
from common.settings.sources import env_name, options, read_file, refuse_unknown_environment
from drafter.config import DrafterConfig
from verifier.config import VerifierConfig


def read(section: str, arguments: list[str], env: dict[str, str] | None = None) -> Any:
    """The config that a command of `section` would run with; raises ConfigError."""
    made = []

    @click.command()
    @options(section, SECTIONS)
    def command(**settings: Any) -> None:
        made.append(SECTIONS[section](**settings))

    result = CliRunner().invoke(command, arguments, env=env)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return made[0]


def toml(folder: Path, text: str) -> str:
    path = folder / "crossdraft.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("section", SECTIONS)
def test_defaults_are_the_dataclass_s(section: str) -> None:
    assert read(section, []) == SECTIONS[section]()


def test_flag_before_environment_before_file_before_default(tmp_path: Path) -> None:
    file = toml(tmp_path, "[verifier]\nmax_sessions = 2\npage_size = 32\nmax_batch_tokens = 77")
    env = {
        "CROSSDRAFT_VERIFIER_MAX_SESSIONS": "3",
        "CROSSDRAFT_VERIFIER_PAGE_SIZE": "64",
        "CROSSDRAFT_CONFIG": file,
    }
    config = read("verifier", ["--max-sessions", "4"], env)
    assert config == VerifierConfig(max_sessions=4, page_size=64, max_batch_tokens=77)


def test_one_file_serves_both_services(tmp_path: Path) -> None:
    file = toml(tmp_path, '[verifier]\nlinear = "plain"\n[drafter]\ndraft_steps = 5\ngrace_s = 3')
    assert read("verifier", ["--config", file]) == VerifierConfig(linear="plain")
    assert read("drafter", ["--config", file]) == DrafterConfig(draft_steps=5, grace_s=3.0)


def test_switches_have_a_no() -> None:
    assert read("drafter", []).lookup is True
    assert read("drafter", ["--no-lookup"]).lookup is False
    assert read("drafter", [], {"CROSSDRAFT_DRAFTER_LOOKUP": "false"}).lookup is False


@pytest.mark.parametrize("section", SECTIONS)
def test_reflection_is_off_unless_asked_for(section: str) -> None:
    assert read(section, []).reflection is False
    assert read(section, ["--reflection"]).reflection is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[verifier]\nmax_sesions = 1",
            r"unknown key verifier\.max_sesions; did you mean max_sess",
        ),
        ("[drafter]\nmodle = 'x'", r"unknown key drafter\.modle; did you mean model"),
        ("[verifer]\nmodel = 'x'", r"unknown \[verifer\]; did you mean verifier"),
        ("model = 'x'", r"unknown 'model' outside of a table"),
        (
            "[verifier]\nmax_sessions = '1'",
            r"verifier\.max_sessions is '1'; it must be of type int",
        ),
        ("[verifier]\nmax_sessions = true", r"verifier\.max_sessions is True; it must be of type"),
        ("[verifier", r"can't read"),
        (
            "[drafter]\nmax_sessions = 0",
            r"toml: drafter\.max_sessions is 0; it must be from 1 to 65536",
        ),
        ("[verifier]\ngrace_s = inf", r"verifier\.grace_s is inf; it must be from 0 to"),
    ],
)
def test_a_file_is_refused_with_the_closest_known_name(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_file(Path(toml(tmp_path, text)), SECTIONS)


def test_a_byte_order_mark_before_a_file_is_skipped(tmp_path: Path) -> None:
    file = toml(tmp_path, "\ufeff[verifier]\nmax_sessions = 2\n")
    assert read("verifier", ["--config", file]) == VerifierConfig(max_sessions=2)


@pytest.mark.parametrize("text", [f"[verifier]\ngrace_s = {'9' * 5000}", "a = " + "[" * 100_000])
def test_a_file_that_no_parser_can_hold_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="can't read"):
        read_file(Path(toml(tmp_path, text)), SECTIONS)


def test_a_number_out_of_range_is_refused_by_the_name_that_it_was_given_under() -> None:
    by_flag = CliRunner().invoke(main, ["verifier", "--grace-s", "nan"])
    assert "--grace-s is nan; it must be a number from 0 to 2000000" in by_flag.stderr
    variable = "CROSSDRAFT_DRAFTER_PAGE_SIZE"
    by_variable = CliRunner().invoke(main, ["drafter"], env={variable: "1.5"})
    assert f"{variable} is 1.5; it must be a whole number from 1 to 4096" in by_variable.stderr
    assert (by_flag.exit_code, by_variable.exit_code) == (2, 2)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't read"):
        read("verifier", ["--config", str(tmp_path / "none.toml")])


@pytest.mark.parametrize("section", SECTIONS)
def test_an_unknown_variable_of_either_service_is_refused(section: str) -> None:
    with pytest.raises(ConfigError, match=r"did you mean CROSSDRAFT_VERIFIER_MODEL\?"):
        read(section, [], {"CROSSDRAFT_VERIFIER_MODLE": "x"})
    with pytest.raises(ConfigError, match=r"did you mean CROSSDRAFT_DRAFTER_BRIDGE\?"):
        read(section, [], {"CROSSDRAFT_DRAFTER_BRIGDE": "x"})


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("CROSSDRAFT_VERIFER_MODEL", r"did you mean CROSSDRAFT_VERIFIER_MODEL\?"),
        ("CROSSDRAFT_CACHES", r"did you mean CROSSDRAFT_CACHE\?"),
        ("CROSSDRAFT_MODE", "known: CROSSDRAFT_ADDRESS, .*, CROSSDRAFT_VERIFIER_…"),
    ],
)
def test_an_unknown_variable_of_no_service_is_refused(variable: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read("verifier", [], {variable: "x"})


def test_variables_that_kubernetes_sets_are_left_alone() -> None:
    address = "tcp://10.0.0.1:50051"
    given = {
        "CROSSDRAFT_VERIFIER_SERVICE_HOST": "10.0.0.1",
        "CROSSDRAFT_VERIFIER_SERVICE_PORT": "50051",
        "CROSSDRAFT_VERIFIER_SERVICE_PORT_GRPC": "50051",
        "CROSSDRAFT_VERIFIER_PORT": address,
        "CROSSDRAFT_VERIFIER_PORT_50051_TCP": address,
        "CROSSDRAFT_VERIFIER_PORT_50051_TCP_ADDR": "10.0.0.1",
        "CROSSDRAFT_VERIFIER_HEADLESS_SERVICE_HOST": "10.0.0.1",
        "CROSSDRAFT_SERVICE_HOST": "10.0.0.1",
        "CROSSDRAFT_METRICS_PORT_9090_TCP": address,
        **dict.fromkeys(("CROSSDRAFT_ADDRESS", "CROSSDRAFT_CACHE", "CROSSDRAFT_CONFIG"), "x"),
    }
    refuse_unknown_environment(given, SECTIONS)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (VerifierConfig, {"max_sessions": 0}, "max_sessions is 0; it must be from 1 to 65536"),
        (VerifierConfig, {"max_draft_tokens": 4096}, "it must be from 0 to 1024"),
        (
            VerifierConfig,
            {"linear": "fast"},
            "linear is 'fast'; it must be one of exact, int8",
        ),
        (VerifierConfig, {"kv_memory_mib": 0}, "kv_memory_mib is 0; it must be from 1 to 16777216"),
        (VerifierConfig, {"grace_s": float("nan")}, "grace_s is nan; it must be from 0 to"),
        (VerifierConfig, {"max_connection_age_s": 3e6}, "it must be from 0.1 to 2000000"),
        (DrafterConfig, {"idle_timeout_s": float("inf")}, "idle_timeout_s is inf; it must be from"),
        (VerifierConfig, {"threads": 1.5}, "threads is 1.5; it must be of type int"),
        (VerifierConfig, {"tls_key": "k.pem"}, "set together"),
        (VerifierConfig, {"tls_client_ca": "ca.pem"}, "tls_client_ca needs"),
        (VerifierConfig, {"max_metadata_bytes": 10}, "max_metadata_bytes is 10; it must be from"),
        (DrafterConfig, {"verifier_tls_name": "x"}, "verifier_tls_name needs verifier_tls_ca"),
        (VerifierConfig, {"max_batch_tokens": 16}, "more than max_draft_tokens, which is 16"),
        (DrafterConfig, {"max_batch_tokens": 1}, "max_batch_tokens is 1; it must be from 2 to"),
        (DrafterConfig, {"draft_steps": 17}, "draft_steps is 17; it must be at most"),
        (DrafterConfig, {"bridge": "magic"}, "bridge is 'magic'"),
    ],
)
def test_values_outside_their_range_name_field_value_and_limit(
    config: type, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**changes)


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_has_a_flag_a_variable_and_a_help_text(section: str) -> None:
    @click.command()
    @options(section, SECTIONS)
    def command(**settings: Any) -> None: ...

    text = CliRunner().invoke(command, ["--help"], terminal_width=200).output
    words = set(text.replace(";", " ").split())
    for field in dataclasses.fields(SECTIONS[section]):
        assert "--" + field.name.replace("_", "-") in words
        assert env_name(section, field.name) in text
        assert field.metadata["help"].endswith(".")
