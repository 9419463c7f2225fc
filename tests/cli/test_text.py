"""The command line's text: bytes that are none, byte order marks, encodings that can't hold it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from tests.cli.command_line import one_line, run, serving_fake_drafter

ROOT = Path(__file__).parents[2]
ODD = os.fsdecode(b"a\xffb")  # as Python hands over a byte that is no UTF-8


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving_fake_drafter() as found:
        yield found


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("generate", ODD), "PROMPT"),
        (("generate", "x", "--stop", "y", "--stop", ODD), "--stop"),
        (("generate", "x", "--system", ODD), "--system"),
        (("generate", "x", "--address", ODD), "--address"),
        (("models", "--fetch", ODD), "--fetch"),
        (("inspect-pair", "x", ODD), "DRAFT"),
        (("demo", ODD), "PROMPT"),
        (("demo", "--target", ODD), "--target"),
    ],
)
def test_an_argument_that_is_no_text_is_named(arguments: tuple[str, ...], name: str) -> None:
    line = one_line(run(*arguments), 2)
    assert name in line and "character 1 is the byte 0xff; it must be UTF-8" in line


@pytest.mark.parametrize("service", ["verifier", "drafter"])
def test_a_setting_that_is_no_text_is_named(service: str) -> None:
    variable = f"CROSSDRAFT_{service.upper()}_LISTEN"
    for result in (run(service, "--listen", ODD), run(service, env={variable: ODD})):
        assert "listen is 'a\\udcffb'; it must be UTF-8" in one_line(result, 2)


def test_standard_input_that_is_no_text_is_one_line() -> None:
    result = CliRunner().invoke(main, ["generate", "-"], input=b"a\xffb")
    assert "standard input has the byte 0xff at 1; it must be UTF-8" in one_line(result, 2)


def test_a_byte_order_mark_before_standard_input_is_skipped(address: str) -> None:
    sent = run("generate", "-", "--address", address, stdin="\ufefffrom a pipe")
    assert sent.stdout.startswith("from a pipe")


def test_text_that_the_output_cannot_hold_is_one_line(address: str) -> None:
    """The text before it is there, and the line that says why is behind it."""
    arguments = ["generate", "hello ", "--address", address]
    result = CliRunner(charset="ascii").invoke(main, arguments)
    assert (result.exit_code, result.stdout) == (2, "hello \n")
    assert result.stderr == (
        "crossdraft: standard output's encoding is ascii, which has no '\\xe9'; it must be one "
        "that has, as PYTHONIOENCODING=utf-8 makes it\n"
    )


@pytest.mark.parametrize("charset", ["ascii", "latin-1", "utf-8"])
def test_json_fits_every_encoding(charset: str, address: str) -> None:
    arguments = ["generate", "hello ", "--json", "--address", address]
    result = CliRunner(charset=charset).invoke(main, arguments)
    assert json.loads(result.stdout_bytes.decode(charset))["text"] == "hello é\ufffd"


@pytest.mark.parametrize(
    ("encoding", "code", "written"),
    [("ascii", 2, b"hello \n"), ("ascii:replace", 0, b"hello ??\n")],
)
def test_the_environments_encoding_holds(
    encoding: str, code: int, written: bytes, address: str
) -> None:
    command = [sys.executable, "-m", "cli", "generate", "hello ", "--address", address]
    env = os.environ | {"PYTHONIOENCODING": encoding}
    process = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=False)
    assert (process.returncode, process.stdout, process.stderr.count(b"\n")) == (code, written, 1)
