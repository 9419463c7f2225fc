"""A fleet's ratios follow from measured costs as the closed forms say."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bench.load.scaling import Costs, main

ms = st.floats(0.01, 1e4)
costs = st.builds(
    Costs, ms, ms, ms, st.integers(1, 16), st.floats(1, 17), round_trip_ms=ms, overhead_ms=ms
)


def test_without_a_network_speedup_is_that_of_the_paper() -> None:
    """Leviathan et al. (2023), theorem 3.8: (1 - a^(g+1)) / ((1 - a)(g c + 1))."""
    rate, steps, cost = 0.8, 5, 0.02
    length = (1 - rate ** (steps + 1)) / (1 - rate)
    made = Costs(cost * 30, 30, 30, steps, length)
    assert made.speedup == pytest.approx(length / (steps * cost + 1))


@given(costs)
def test_at_the_longest_round_trip_drafting_is_worth_nothing(made: Costs) -> None:
    there = Costs(**{**vars(made), "round_trip_ms": made.longest_round_trip_ms})
    assert there.speedup == pytest.approx(1)


@given(costs)
def test_a_fleet_at_these_ratios_is_busy_and_gives_what_is_reported(made: Costs) -> None:
    """So many groups of sessions, one verifier, and drafters by the ratio, over one hour."""
    rounds = 3.6e6 / made.round_ms * made.groups
    assert rounds * made.verify_ms == pytest.approx(3.6e6)
    assert rounds * made.drafting_ms == pytest.approx(3.6e6 * made.drafters_per_verifier)
    alone = 3.6e6 / made.alone_ms
    gain = rounds * made.mean_acceptance_length / alone
    assert gain == pytest.approx(made.throughput_gain)
    assert gain / (1 + made.drafters_per_verifier) == pytest.approx(made.gain_per_device)


def test_the_documents_example_is_what_the_command_prints() -> None:
    flags = "--draft-step-ms 1.21 --verify-ms 6.74 --alone-ms 5.02 --mean-acceptance-length 2.36"
    with open("docs/scaling.md") as page:
        text = page.read()
    assert flags in text
    output = CliRunner().invoke(main, flags.split())
    assert output.exit_code == 0, output.output
    rows = [line.split("│") for line in output.output.splitlines() if "│" in line]
    assert len(rows) == 8
    for _, words, value, _ in rows:
        assert f"| {words.strip()} | {value.strip()} |" in text


@pytest.mark.parametrize("flag", ["--draft-step-ms", "--verify-ms", "--alone-ms"])
def test_a_pass_takes_time(flag: str) -> None:
    given_ = [
        "--draft-step-ms",
        "1",
        "--verify-ms",
        "1",
        "--alone-ms",
        "1",
        "--mean-acceptance-length",
        "2",
    ]
    given_[given_.index(flag) + 1] = "0"
    output = CliRunner().invoke(main, given_)
    assert output.exit_code == 2 and flag in output.output
