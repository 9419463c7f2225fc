"""`python -m bench.acceptance.optimum`: each rule's acceptance against its theory.

Live rounds of a pair leave rows of p and q (bench/acceptance/optimum_rows.py). On each of them the
drafter's own sample and the verifier's acceptance are run many times over, with fixed seeds, and
the share of accepted drafts is put beside what it must be: for rejection sum min(p, q), which no
rule beats. Knows the theory. Does not know where rows come from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch
from rich.table import Table
from torch import Tensor

from bench.device.parts.acceptance_oracle import sampling
from bench.support import hardware, results, tables
from bench.support.progress import showing_progress
from bench.support.prompts import PROMPTS
from cli.fetching import fetch
from common.device import native
from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.distribution import SparseDistributions
from common.sampling.parameters import SamplingParams
from common.sampling.rng import Purpose
from common.vocabulary.files import TokenizerFiles
from drafter.engine.distribution import propose
from verifier.acceptance.rules import accept

if TYPE_CHECKING:
    from bench.acceptance.optimum_rows import Meeting, Row

CONTEXT = 1024
RULES = (AcceptanceRule.REJECTION, AcceptanceRule.COUPLED, AcceptanceRule.TARGET_ONLY)


def expected(rule: AcceptanceRule, p: Tensor, q: Tensor) -> float:
    """The probability that a draft sampled from q is accepted. p, q: float [ids], distributions.

    Coupled: the chance that argmin e / p and argmin e / q are one id (Daliri, Musco and Suresh,
    2024, arXiv:2408.07978), by id: 1 / sum over y of max(p_y / p_x, q_y / q_x).
    """
    p, q = p.double() / p.double().sum(), q.double() / q.double().sum()
    if rule == AcceptanceRule.REJECTION:
        return float(torch.minimum(p, q).sum())
    if rule == AcceptanceRule.TARGET_ONLY:
        return float((p * q).sum())
    assert rule == AcceptanceRule.COUPLED
    both = (p > 0) & (q > 0)
    order = (p / q).nan_to_num(0.0).argsort(descending=True)  # infinite first, 0 / 0 wherever
    p, q, both = p[order], q[order], both[order]
    # The greater ratio p / q is the maximum of the two.
    above, below = p.cumsum(0), 1 - q.cumsum(0)  # x's own max is 1 either way
    total = above / p + below.clamp(min=0) / q
    return float((1 / total[both]).sum())


def measured(rule: AcceptanceRule, meeting: Meeting, trials: int, position: int) -> float:
    """The share of `trials` drafts that are accepted, by the services' own functions.

    position: any; rows with one of their own share no random numbers.
    """
    width = len(meeting.p)
    own = torch.arange(width)
    seed, at = torch.arange(trials), torch.full((trials,), position)
    distribution = SparseDistributions(own.expand(trials, -1), meeting.q.expand(trials, -1))
    purpose = Purpose.COUPLED if rule == AcceptanceRule.COUPLED else Purpose.PROPOSE
    drafts = propose(distribution, own, seed, at, purpose)
    # Two rows each: the draft's, and the one behind it, whose token nobody asks for.
    tokens = torch.stack([drafts, torch.zeros_like(drafts)], dim=1).reshape(-1)
    q = None
    if rule == AcceptanceRule.REJECTION:
        ids, probs = own.int().expand(2 * trials, -1), meeting.q.expand(2 * trials, -1)
        q = SparseDistributions(ids, probs)
    batch = sampling(trials, width, rule=int(rule), seed=seed, first_position=at)
    logits = meeting.p.log().expand(2 * trials, -1)
    made = accept(logits, tokens, 2 * torch.arange(trials + 1), batch, q)
    return float(made.accepted_lengths.double().mean())


def meeting_of(row: Row, rule: AcceptanceRule) -> Meeting:
    """With the distribution from which a session of that rule drafts."""
    return {
        AcceptanceRule.REJECTION: row.sent,
        AcceptanceRule.COUPLED: row.coupled,
        AcceptanceRule.TARGET_ONLY: row.likeliest,
    }[rule]


@dataclass(frozen=True)
class Comparison:
    """One rule over the rows of one draft position, or of all (None)."""

    rule: str
    position: int | None
    rows: int
    measured: float  # mean acceptance
    theory: float  # what it must be with the distributions that were drafted from
    error: float  # one standard deviation of `measured`, given the rows
    optimum: float  # mean sum min(p, q), q the draft's whole distribution over what it may draft
    live: float | None  # share accepted in the rounds themselves, which are rejection's

    @property
    def off(self) -> float:
        """Relative to the theory."""
        return self.measured / self.theory - 1


def compare(rows: Sequence[Row], trials: int) -> list[Comparison]:
    """Each rule over all rows, then by position."""
    assert rows
    positions: list[int | None] = [None, *sorted({row.position for row in rows})]
    found = []
    for rule in RULES:
        meetings = [meeting_of(row, rule) for row in rows]
        must = torch.tensor([expected(rule, each.p, each.q) for each in meetings]).double()
        got = torch.tensor(
            [measured(rule, each, trials, place) for place, each in enumerate(meetings)]
        ).double()
        whole = torch.tensor([row.whole for row in rows]).double()
        accepted = torch.tensor([row.accepted for row in rows]).double()
        for position in positions:
            some = torch.tensor([position in (None, row.position) for row in rows])
            variance = (must * (1 - must)).clamp(min=0)[some].sum() / trials
            found.append(
                Comparison(
                    rule.name.lower(),
                    position,
                    int(some.sum()),
                    float(got[some].mean()),
                    float(must[some].mean()),
                    float(variance.sqrt() / some.sum()),
                    float(whole[some].mean()),
                    float(accepted[some].mean()) if rule == AcceptanceRule.REJECTION else None,
                )
            )
    return found


def shown(found: Sequence[Comparison], title: str, caption: str) -> Table:
    headings = ["rule", "draft position", "rows", "accepted", "theory", "off", "± (1 σ)"]
    made = tables.table(title, [*headings, "Σ min(p, q), q uncut", "of it", "live"], caption)
    for each in found:
        made.add_row(
            each.rule,
            "all" if each.position is None else str(each.position + 1),
            str(each.rows),
            f"{each.measured:.4f}",
            f"{each.theory:.4f}",
            f"{each.off:+.2%}",
            f"{each.error / each.theory:.2%}",
            f"{each.optimum:.4f}",
            f"{each.measured / each.optimum:.1%}",
            "" if each.live is None else f"{each.live:.4f}",
        )
    return made


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--target", default="qwen2.5-coder-1.5b", show_default=True, help="The large model.")
@click.option("--draft", default="smollm2-135m", show_default=True, help="The small model.")
@click.option("--prompts", type=click.IntRange(1, len(PROMPTS)), default=24, show_default=True)
@click.option("--max-new-tokens", type=click.IntRange(3), default=64, show_default=True)
@click.option("--draft-steps", type=click.IntRange(1, 16), default=3, show_default=True)
@click.option("--temperature", type=click.FloatRange(1e-6, 100), default=1.0, show_default=True)
@click.option("--top-p", type=click.FloatRange(0, 1), help="Left out: all of the distribution.")
@click.option("--trials", type=click.IntRange(1), default=256, show_default=True, help="Per row.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for results.")
def main(target: str, draft: str, out: Path | None, **options: Any) -> None:
    """Record rows of p and q in live rounds, and accept drafts on them again and again."""
    native.settle()
    console = tables.console()
    machine = hardware.describe()
    folders = fetch([target, draft], console)
    folder = results.folder(out, target, draft)
    params = SamplingParams(temperature=options["temperature"], top_p=options["top_p"])
    rows = _record(folders, params, options, console)
    found = compare(rows, options["trials"])
    distribution = f"temperature {params.temperature:g}"
    distribution += "" if params.top_p is None else f", top-p {params.top_p:g}"
    console.print(
        shown(
            found,
            f"{draft} → {target}, {distribution}, {options['draft_steps']} draft steps",
            f"{hardware.caption(machine)}. accepted: share of {options['trials']} drafts a row. "
            "theory: rejection Σ min(p, q), coupled Σ 1 / Σ max, target-only p(draft). off: to be "
            "within 1%. live: the recorded rounds' own share.",
        )
    )
    results.write(
        folder / "optimum.json",
        machine,
        {"target": target, "draft": draft, **options},
        comparisons=[{**asdict(each), "off": each.off} for each in found],
    )
    console.print(f"[dim]results in {folder}[/dim]")


def _record(
    folders: Sequence[Path], params: SamplingParams, options: dict[str, Any], console: Any
) -> list[Row]:
    from bench.acceptance.optimum_rows import Rounds
    from bench.support.target_prompts import target_prompts
    from common.model.paged_model import PagedModel

    target, draft = folders
    files = TokenizerFiles.from_directory(target)
    made = Rounds(
        PagedModel.load(target),
        files,
        PagedModel.load(draft, "fp16"),
        TokenizerFiles.from_directory(draft),
        CONTEXT,
        params,
    )
    asked = target_prompts(files, options["prompts"])
    with showing_progress(console) as report_progress, made.running():
        asyncio.run(
            made.record(asked, options["max_new_tokens"], options["draft_steps"], report_progress)
        )
    return made.rows


if __name__ == "__main__":
    main()
