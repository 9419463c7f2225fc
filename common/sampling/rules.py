"""Which acceptance rule goes with which sampling parameters; both services ask here.

Knows rules and parameters. Refuses to know bridges (whether there is a q) and how a rule decides.
"""

from __future__ import annotations

from enum import Enum

from common.errors import UnfitRule
from common.sampling.parameters import SamplingParams


class AcceptanceRule(Enum):
    """How draft tokens are accepted; every rule is lossless."""

    GREEDY = "greedy"  # accept while the draft token is p's argmax
    TARGET_ONLY = "target_only"  # accept x with probability p(x)
    REJECTION = "rejection"  # accept x with probability min(1, p(x) / q(x))
    COUPLED = "coupled"  # accept while the draft token is the one that the seed samples from p


def default_rule(sampling: SamplingParams) -> AcceptanceRule:
    """The rule of a session that names none and whose proposals may come without q."""
    if sampling.greedy:
        return AcceptanceRule.GREEDY
    return AcceptanceRule.TARGET_ONLY if sampling.seed is None else AcceptanceRule.COUPLED


def check_rule(field: str, rule: AcceptanceRule, sampling: SamplingParams) -> None:
    """Raise UnfitRule, naming `field`, if the rule would not give the distribution asked for.

    Greedy ignores a temperature, every other rule needs one, and coupled needs the seed by which
    both sides sample the same.
    """
    if sampling.greedy != (rule is AcceptanceRule.GREEDY):
        temperature = sampling.temperature or 0
        limit = "greedy" if sampling.greedy else "target_only, rejection or coupled"
        raise UnfitRule(field, rule.value, f"{limit} at temperature {temperature:g}")
    if rule is AcceptanceRule.COUPLED and sampling.seed is None:
        raise UnfitRule(field, rule.value, "target_only or rejection without a seed")
