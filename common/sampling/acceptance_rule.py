"""Which acceptance rule goes with which sampling parameters; both services ask here.

Knows rules and parameters. Does not know bridges (whether there is a q) and how a rule is computed
(verifier/acceptance/rules.py, verifier/kernels/).
"""

from __future__ import annotations

from enum import IntEnum

from common.errors import UnfitRule
from common.sampling.parameters import SamplingParams


class AcceptanceRule(IntEnum):
    """How draft tokens are accepted; every rule is lossless.

    The numbers are those of tensors and of sampling.proto. Flags, messages and metrics use the
    label.
    """

    GREEDY = 1  # accept while the draft token is p's argmax
    TARGET_ONLY = 2  # accept x with probability p(x)
    REJECTION = 3  # accept x with probability min(1, p(x) / q(x))
    COUPLED = 4  # accept while the draft token is the one that the seed samples from p

    @property
    def label(self) -> str:
        return self.name.lower()


def default_rule(sampling: SamplingParams) -> AcceptanceRule:
    """The rule of a session that names none and whose proposals may come without q."""
    if sampling.greedy:
        return AcceptanceRule.GREEDY
    return AcceptanceRule.TARGET_ONLY if sampling.seed is None else AcceptanceRule.COUPLED


def check_rule(field: str, rule: AcceptanceRule, sampling: SamplingParams) -> None:
    """Raise UnfitRule, naming `field`, if the rule would not give the requested distribution.

    Greedy ignores a temperature, every other rule needs one, and coupled needs the seed by which
    both sides sample the same.
    """
    if sampling.greedy != (rule is AcceptanceRule.GREEDY):
        temperature = sampling.temperature or 0
        limit = "greedy" if sampling.greedy else "target_only, rejection or coupled"
        raise UnfitRule(field, rule.label, f"{limit} at temperature {temperature:g}")
    if rule is AcceptanceRule.COUPLED and sampling.seed is None:
        raise UnfitRule(field, rule.label, "target_only or rejection without a seed")
