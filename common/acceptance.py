"""Which acceptance rule goes with which sampling parameters; both services ask here.

Knows rules and parameters. Refuses to know bridges (whether there is a q) and how a rule decides.
"""

from __future__ import annotations

from common.errors import UnfitRule
from common.sampling import SamplingParams
from common.types import AcceptanceRule


def default_rule(sampling: SamplingParams) -> AcceptanceRule:
    """The rule of a session that names none and whose proposals may come without q."""
    if sampling.greedy:
        return AcceptanceRule.GREEDY
    return AcceptanceRule.NO_Q if sampling.seed is None else AcceptanceRule.COUPLED


def check_rule(field: str, rule: AcceptanceRule, sampling: SamplingParams) -> None:
    """Raise UnfitRule, naming `field`, if the rule would not give the law asked for.

    Greedy ignores a temperature, every other rule needs one, and coupled needs the seed by which
    both sides draw the same.
    """
    if sampling.greedy != (rule is AcceptanceRule.GREEDY):
        temperature = sampling.temperature or 0
        limit = "greedy" if sampling.greedy else "no_q, rejection or coupled"
        raise UnfitRule(field, rule.value, f"{limit} at temperature {temperature:g}")
    if rule is AcceptanceRule.COUPLED and sampling.seed is None:
        raise UnfitRule(field, rule.value, "no_q or rejection without a seed")
