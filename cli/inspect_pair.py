"""`crossdraft inspect-pair`: what two models' vocabularies share, and what would be refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.fetching import fetch
from cli.options.text import Text

if TYPE_CHECKING:  # it imports torch, which --help can do without
    from cli.inspection.report import PairReport, SideReport


@click.command("inspect-pair")
@click.argument("target", type=Text())
@click.argument("draft", type=Text())
def inspect_pair(target: str, draft: str) -> None:
    """Show how well DRAFT's vocabulary fits TARGET's, without loading weights.

    Both are presets, directories, .gguf files or Hub ids. Exit status 1 if the pair can't be
    served.
    """
    target_dir, draft_dir = fetch([target, draft], Console(stderr=True))
    from cli.inspection import report as inspection

    report = inspection.inspect_pair(target_dir, draft_dir)
    console = Console()
    console.print(_sides(report, target, draft))
    if report.map is not None:
        console.print(_shared(report))
    console.print(f"bridge: {escape(report.bridge)}", highlight=False, soft_wrap=True)
    for refusal in report.refusals:
        console.print(f"note: {escape(refusal)}", highlight=False, soft_wrap=True)
    if report.map is None:
        raise click.exceptions.Exit(1)


def _sides(report: PairReport, target: str, draft: str) -> Table:
    table = Table("", f"target {escape(target)}", f"draft {escape(draft)}")
    sides = (report.target, report.draft)

    def row(name: str, *cells: str) -> None:
        table.add_row(name, *(escape(cell) for cell in cells))

    def number(field: str) -> list[str]:
        return ["refused" if side is None else f"{getattr(side, field):,}" for side in sides]

    row("tokens", *number("tokens"))
    row("width of the logits", *number("width"))
    row("special tokens", *number("special"))
    known = report.target or report.draft
    for role in known.roles if known is not None else ():
        row(role.value, *(_or_none(side and side.roles[role]) for side in sides))
    row("put before prompts", *(_or_none(side and side.bos and (side.bos,)) for side in sides))
    row("chat template", *("yes" if side and side.has_chat_template else "no" for side in sides))
    row("bytes without a token", *number("missing_bytes"))
    return table


def _or_none(cells: SideReport | tuple[str, ...] | str | None) -> str:
    return ", ".join(cells) if isinstance(cells, tuple) and cells else "none"


def _shared(report: PairReport) -> Table:
    table = Table("shared", "tokens", "share")
    found = report.map
    assert found is not None
    specials = found.shared - found.shared_plain
    table.add_row("of the draft's vocabulary", f"{found.shared:,}", f"{found.of_draft:.1%}")
    table.add_row("  of them special, by role", f"{specials:,}", "")
    table.add_row("of the target's vocabulary", "", f"{found.of_target:.1%}")
    in_sample = round(found.of_sample * found.sample_tokens)
    share = f"{found.of_sample:.1%}"
    table.add_row("of English and code", f"{in_sample:,} of {found.sample_tokens:,}", share)
    table.caption = f"map {found.sha256[:16]}"
    return table
