"""The benchmarks' own arithmetic: what is counted, compared, classified and sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from bench.__main__ import Steps
from bench.speed.batch import Crowd, rows, steady_rate
from bench.speed.comparison import Measured, curves
from bench.speed.measures import Run, divergences, ratio, summarise
from bench.speed.rows import medians
from bench.speed.schedule import ALONE, ASSISTED, NO_LOOKUP, PLAIN, cells, estimate_s, order
from bench.speed.transformers_baseline import run_of
from bench.support.picture import write
from bench.support.prompts import PROMPTS
from bench.support.results import write as write_results
from bench.support.tables import divergence_table, stages_table, systems_table
from common.types import BridgeMode

TEXT, INTERSECTION, AUTO = BridgeMode.TEXT, BridgeMode.INTERSECTION, BridgeMode.AUTO


def run(prompt: str = "a", ids: tuple[int, ...] = (1, 2, 3, 4), **changes: object) -> Run:
    values: dict[str, object] = {
        "system": ALONE,
        "draft_steps": 0,
        "prompt": prompt,
        "token_ids": ids,
        "rounds": len(ids) - 1,
        "time_to_first_token_s": 1.0,
        "total_s": 2.0,
    }
    return Run(**{**values, **changes})  # type: ignore[arg-type]


# Measures.


def test_rates_are_sums_over_sums() -> None:
    fast = run("a", tuple(range(9)), rounds=4, drafted_by_position=(4, 4), wire_bytes=80)
    slow = run("b", tuple(range(3)), rounds=2, total_s=5.0, drafted_by_position=(1,), wire_bytes=40)
    both = summarise([fast, slow])
    assert both.mean_acceptance_length == pytest.approx((8 + 2) / 6)
    assert both.tokens_per_s == pytest.approx((8 + 2) / (1 + 4))
    assert both.wire_bytes_per_token == pytest.approx(10)
    assert both.mean_time_to_first_token_s == 1.0


def test_acceptance_by_position_counts_rounds_that_drafted_so_far() -> None:
    first = run(drafted_by_position=(4, 4), accepted_by_position=(3, 1))
    second = run(drafted_by_position=(1,), accepted_by_position=(1,))
    assert list(summarise([first, second]).acceptance_by_position) == [4 / 5, 1 / 4]


def test_shares_of_a_round_add_up() -> None:
    stages = {"draft_model": 0.2, "verifier_forward": 0.5, "draft_queue": 0.1, "network": 0.05}
    one = summarise([run(stage_s=stages, rounds=10)])
    assert [one.model_share, one.queue_share] == pytest.approx([0.7, 0.1])
    assert one.outside_share == pytest.approx(0.2)  # network, and what no stage counted
    assert one.stage_ms_per_round["network"] == pytest.approx(5)
    assert one.round_ms == pytest.approx(100)


def test_ratios_are_over_the_prompts_that_both_have() -> None:
    alone = [run("a"), run("b", total_s=101.0)]
    assert ratio([run("a", total_s=1.5)], alone) == pytest.approx(2)
    assert ratio([run("c")], alone) is None


@pytest.mark.parametrize(
    ("got", "at", "expected", "instead"),
    [((1, 2, 9, 4), 2, 3, 9), ((1, 2), 2, 3, None), ((1, 2, 3, 4, 5), 4, None, 5)],
)
def test_the_first_divergence(
    got: tuple[int, ...], at: int, expected: int | None, instead: int | None
) -> None:
    (found,) = divergences([run(ids=got)], [run()])
    assert (found.at, found.expected, found.got) == (at, expected, instead)


def test_equal_outputs_diverge_nowhere() -> None:
    assert divergences([run("a"), run("b")], [run("b"), run("a"), run("c")]) == []


# transformers.


def test_transformers_rounds_are_passes_after_the_first() -> None:
    answer = {
        "token_ids": [5, 6, 7, 8, 9, 10, 11],
        "run_sizes": [2, 4, 1],
        "drafted": [3, 3, 2],
        "draft_steps": [3, 3, 3],
        "time_to_first_token_s": 1.0,
        "total_s": 3.0,
    }
    one = run_of(ASSISTED, 3, "a", answer)
    assert (one.rounds, one.first_run, one.committed) == (2, 2, 5)
    assert one.drafted_by_position == (2, 2, 1)
    assert one.accepted_by_position == (1, 1, 1)
    assert summarise([one]).mean_acceptance_length == 2.5


# The schedule.


def test_every_system_answers_a_prompt_before_the_next() -> None:
    planned = cells((TEXT, INTERSECTION, AUTO), (1, 3), 3, 3, 1, 2)
    asked = list(order(planned, 3))
    assert [number for number, _ in asked] == sorted(number for number, _ in asked)
    counts = {cell: sum(each is cell for _, each in asked) for cell in planned}
    assert counts == {cell: cell.prompts for cell in planned}
    begins = [next(cell for at, cell in asked if at == number).system for number in range(3)]
    assert len(set(begins)) == 3  # who begins moves on
    systems = {(cell.system, cell.draft_steps): cell.prompts for cell in planned}
    assert systems[ALONE, 0] == systems[ASSISTED, 3] == systems["auto", 3] == 3
    assert systems["text" + NO_LOOKUP, 3] == systems["auto" + NO_LOOKUP, 3] == 3
    assert (systems[PLAIN, 0], systems["text", 1]) == (2, 1)
    assert estimate_s(planned, 10, 5.0) > estimate_s(planned[:1], 10, 5.0) == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("given", "steps"), [("1-3", (1, 2, 3)), ("5", (5,)), ("2,1-2,16", (1, 2, 16))]
)
def test_lists_of_steps(given: str, steps: tuple[int, ...]) -> None:
    assert Steps().convert(given, None, None) == steps


@pytest.mark.parametrize("given", ["", "0", "x", "1-17", "3-1"])
def test_other_lists_are_refused(given: str) -> None:
    with pytest.raises(click.BadParameter):
        Steps().convert(given, None, None)


def test_the_prompts() -> None:
    assert len(PROMPTS) == len({prompt.name for prompt in PROMPTS}) == 24


# Many streams.


def test_the_steady_rate_leaves_out_prefill_and_stragglers() -> None:
    early, late = [0.0, 1.0, 2.0, 3.0], [2.0, 2.5, 3.0, 3.5, 9.0]
    assert steady_rate([early, late]) == pytest.approx(3.0)  # 3.0; 2.5 and 3.0; in one second
    assert steady_rate([[0.0, 1.0], [2.0, 3.0]]) == 0.0


def test_crowds_are_compared_with_one_stream_alone() -> None:
    def crowd(streams: int, steps: int, speed: float) -> Crowd:
        runs = tuple(run(str(i), draft_steps=steps) for i in range(streams))
        return Crowd(streams, steps, speed, speed / 2, (speed / streams,) * streams, runs)

    found = rows([crowd(1, 0, 4), crowd(1, 0, 6), crowd(8, 0, 16), crowd(8, 3, 20)])
    assert [(row.streams, row.rounds.draft_steps) for row in found] == [(1, 0), (8, 0), (8, 3)]
    assert [row.ratio for row in found] == pytest.approx([1.0, 16 / 5, 4.0])
    assert found[2].per_stream == pytest.approx(2.5)


def test_medians_of_row_counts() -> None:
    found = medians({1: [0.01, 0.5, 0.01], 9: [0.012, 0.012, 0.9]})
    assert list(found[9]) == pytest.approx([12, 1.2])


# What is shown and written.


def measured() -> Measured:
    found = Measured()
    stages = {"draft_model": 0.1, "verifier_forward": 0.5}
    for prompt in "ab":
        found.runs.append(run(prompt, stage_s={"verifier_forward": 0.9}))
        for k in (1, 3):
            shown: dict[str, Any] = {
                "draft_steps": k,
                "rounds": 2,
                "stage_s": stages,
                "drafted_by_position": (2,),
            }
            for system in ("text", "text" + NO_LOOKUP, "auto"):
                found.runs.append(run(prompt, system=system, **shown))
    found.runs.append(run("a", (1, 2, 9, 4), system=ASSISTED, draft_steps=3, rounds=2))
    return found


def test_tables_have_a_line_per_system() -> None:
    rows_found = measured().rows(3)
    assert [row["summary"].system for row in rows_found][:3] == [ALONE, "text", "text"]
    assert {row["summary"].system: row["same"] for row in rows_found}[ASSISTED] == 0
    assert systems_table(rows_found, "", "").row_count == len(rows_found) == 8
    # transformers has no stages to report
    assert stages_table([row["summary"] for row in rows_found], "").row_count == 7
    assert divergence_table({}) is None
    different = divergences(measured().of(ASSISTED, 3), measured().of(ALONE, 0))
    table = divergence_table({ASSISTED: different})
    assert table is not None and table.row_count == 1


def test_the_picture_is_over_the_prompts_that_all_answered(tmp_path: Path) -> None:
    lines, levels = curves(measured())
    assert {mode: [k for k, _ in points] for mode, points in lines.items()} == {
        "text": [1, 3],
        "auto": [1, 3],
    }
    assert set(levels) == {ALONE, f"{ASSISTED}, k = 3"}
    path = tmp_path / "new" / "tokens.png"
    write(path, "draft → target", ("k", "tokens/s"), lines, levels, "a machine")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_results_say_where_they_come_from(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    write_results(path, {"cpu": "one"}, {"out": tmp_path}, rows=[1])
    parsed = json.loads(path.read_text())
    assert parsed["hardware"] == {"cpu": "one"}
    assert parsed["rows"] == [1] and "written" in parsed
