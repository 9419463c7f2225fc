"""What telemetry costs is measured for every hook that the services call."""

from __future__ import annotations

from click.testing import CliRunner

from bench.load.telemetry import main


def test_each_hook_has_its_line() -> None:
    result = CliRunner().invoke(main, ["--repeats", "8"])
    assert result.exit_code == 0, result.output
    rows = [line.split("|")[1].strip() for line in result.output.splitlines()[2:]]
    assert [row.partition(",")[0].partition(" ")[0] for row in rows] == [
        "pass",
        "round",
        "round",
        "call",
        "call",
        "round",
    ]
    assert all(float(line.split("|")[2]) for line in result.output.splitlines()[2:])
