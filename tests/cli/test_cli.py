"""The command line: help, errors in one line, and what is shown beside a generation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from cli.children import Child, free_addresses
from cli.comparison import comparison
from cli.main import main
from client.client import Output, Statistics, TokenDelta
from common.types import FinishReason, Origin
from tests.cli.command_line import one_line, run

ROOT = Path(__file__).parents[2]
COMMANDS = ("verifier", "drafter", "generate", "models", "inspect-pair", "demo")


def test_help_names_every_command() -> None:
    text = run("--help").output
    assert all(f"\n  {name}" in text for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_has_help(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    for parameter in main.commands[command].params:
        assert not isinstance(parameter, click.Option) or parameter.help, parameter.name


def test_help_does_not_load_torch() -> None:
    code = "import sys, cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_an_unknown_flag_suggests_the_closest() -> None:
    line = one_line(run("verifier", "--max-sesions", "3"), 2)
    assert "--max-sessions" in line


@pytest.mark.parametrize("service", ["verifier", "drafter"])
def test_an_unknown_key_in_the_file_is_refused(service: str, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[verifier]\nmax_sesions = 1\n")
    line = one_line(run(service, "--config", str(file)), 2)
    assert "unknown key verifier.max_sesions; did you mean max_sessions?" in line


def test_an_unknown_variable_is_refused() -> None:
    line = one_line(run("drafter", env={"CROSSDRAFT_DRAFTER_DRAFT_STEP": "3"}), 2)
    assert "did you mean CROSSDRAFT_DRAFTER_DRAFT_STEPS?" in line


def test_a_value_out_of_range_is_refused() -> None:
    line = one_line(run("verifier", "--max-sessions", "0"), 2)
    assert "--max-sessions is 0; it must be a whole number from 1 to 65536" in line


def test_models_lists_presets_and_what_is_cached(tmp_path: Path) -> None:
    env = {"CROSSDRAFT_CACHE": str(tmp_path), "COLUMNS": "200"}
    output = run("models", env=env).output
    assert "smollm2-135m" in output
    assert "Gemma terms" in output
    line = one_line(run("models", "--fetch", "nonsense", env=env), 1)
    assert "neither a preset" in line


@pytest.mark.parametrize("service", ["verifier", "drafter"])
def test_fetching_only_takes_the_model_that_would_be_served(service: str, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(f'[{service}]\nmodel = "{tmp_path}"\n')
    result = run(service, "--config", str(file), "--fetch-only")
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path}\n")


def statistics(**changes) -> Statistics:
    fields = {
        "finish_reason": FinishReason.STOP,
        "prompt_tokens": 3,
        "output_tokens": 1,
        "rounds": 0,
        "mean_acceptance_length": 0.0,
        "drafted_by_position": (),
        "accepted_by_position": (),
        "time_to_first_token_s": 0.0,
        "total_s": 0.0,
        "stage_s": {},
        "wire_bytes": 0,
        "intersection_rounds": 0,
        "text_rounds": 0,
        "drafting": True,
    }
    return Statistics(**{**fields, **changes})


def test_the_comparison_survives_an_output_of_one_token() -> None:
    output = Output("x", (1,), (Origin.VERIFIER,), statistics())
    assert comparison(output, output).row_count >= 6
    shares = statistics(drafted_by_position=(4, 0), accepted_by_position=(3, 0))
    assert shares.acceptance_by_position == (0.75, 0.0)
    assert TokenDelta(1, "x", Origin.DRAFT).text == "x"


async def test_a_child_that_dies_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    (address,) = free_addresses(1)
    arguments = ["verifier", "--max-sessions", "0"]
    with (
        Child(arguments, address, tmp_path / "log") as child,
        pytest.raises(click.ClickException) as caught,
    ):
        await child.wait_serving(60)
    assert "the verifier ended with status 2" in caught.value.message
    assert "--max-sessions is 0" in caught.value.message
