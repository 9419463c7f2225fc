"""A mode is judged by what the draft model and the bridge gave, whatever lookup made of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from common.sampling.acceptance_rule import AcceptanceRule
from common.sampling.parameters import SamplingParams
from common.types import BridgeMode, OpenSession
from drafter.bridge.bridge import Bridge, from_a_character
from drafter.bridge.proposer import AutoChooser
from drafter.drafting import NOTHING, Drafted, Drafting
from drafter.engine.engine import DraftEngine
from drafter.engine.sampling import DraftSampling
from drafter.statistics import StreamStatistics
from tests.support.fake_pairs import PROMPTS, serving_pair
from tests.support.fake_tokenizers import family

TEXT = BridgeMode.TEXT


@pytest.mark.parametrize(
    ("bridged", "proposed", "committed", "gained"),
    [
        ([1, 2], [1, 2], [1, 2, 9], 3),
        ([1, 2], [1, 2], [1, 9], 2),
        ([1], [1, 2, 3, 4], [1, 2, 3, 4, 9], 2),  # lookup lengthened it
        ([1, 2], [1, 2, 3], [1, 2], 2),  # the session ended inside the run
        ([1, 2], [5, 6, 7], [5, 6, 7, 9], 1),  # lookup overruled it, and was right
        ([1, 2], [5, 6, 7], [1], 1),  # and was wrong
        ([], [5, 6], [5, 6, 9], 1),
    ],
)
def test_lookups_part_of_a_run_is_nobodys_credit(
    bridged: list[int], proposed: list[int], committed: list[int], gained: int
) -> None:
    engine = cast(DraftEngine, SimpleNamespace(open=lambda: None))
    bridge = Bridge(family("byte-level"), family("byte-level"))
    chooser = AutoChooser(0.5, 0.25)
    sampling = DraftSampling(bridge, OpenSession((5,), 8, ""), frozenset(), 64)
    drafting = Drafting(bridge, engine, chooser, {}, TEXT, sampling, None, StreamStatistics())
    drafting.committed([7], NOTHING)
    drafting.committed(committed, Drafted(proposed, TEXT, 3, bridged))
    stats: Any = chooser.pair[TEXT]
    assert (stats.rounds, stats.committed) == (1, gained)
    assert stats.cost == 1 + 0.5 * 3 + 0.25 * len(bridged)


SEED = 11
WARM = {"temperature": 1.0}


@pytest.mark.parametrize(
    ("sampling", "rule", "taught"),
    [
        ({}, AcceptanceRule.GREEDY, True),
        ({**WARM}, AcceptanceRule.TARGET_ONLY, True),
        ({**WARM}, AcceptanceRule.REJECTION, True),
        ({**WARM, "seed": SEED}, AcceptanceRule.COUPLED, True),
        ({**WARM, "seed": SEED}, AcceptanceRule.TARGET_ONLY, False),
        ({**WARM, "seed": SEED}, AcceptanceRule.REJECTION, False),
    ],
)
def test_sessions_that_may_share_random_numbers_teach_nobody(
    sampling: dict[str, Any], rule: AcceptanceRule, taught: bool
) -> None:
    engine = cast(DraftEngine, SimpleNamespace(open=lambda: None))
    bridge = Bridge(family("byte-level"), family("byte-level"))
    chooser = AutoChooser(0.5, 0.25)
    spec = OpenSession((5,), 8, "", rule=rule, sampling=SamplingParams(**sampling))
    own = DraftSampling(bridge, spec, frozenset(), 64)
    drafting = Drafting(bridge, engine, chooser, {}, TEXT, own, None, StreamStatistics())
    drafting.committed([1, 2], Drafted([1, 3], TEXT, 3, [1, 3]))
    learned = chooser if rule is AcceptanceRule.GREEDY else chooser.sampled
    assert learned.pair[TEXT].rounds == (1 if taught else 0)
    assert drafting._mode_stats.rounds == 1  # its own outcomes are committed text, and stay its own


@pytest.mark.parametrize(
    ("data", "rest"),
    [
        (b"", b""),
        (b"abc", b"abc"),
        ("中".encode()[1:] + b"x", b"x"),  # b8 ad: neither 80 nor bf
        ("똻".encode()[2:] + "é".encode(), "é".encode()),
        (b"\x80\xbf", b""),
    ],
)
def test_a_tail_of_text_is_read_from_its_first_whole_character(data: bytes, rest: bytes) -> None:
    assert from_a_character(data) == rest


@pytest.mark.parametrize("only", [{"top_k": 1}, {"min_p": 1.0}, {"top_p": 0.0}])
@pytest.mark.parametrize("rule", [rule for rule in AcceptanceRule if rule.label != "greedy"])
def test_where_a_filter_leaves_one_token_drafts_are_made_as_for_greedy(
    rule: AcceptanceRule, only: dict[str, Any]
) -> None:
    bridge = Bridge(family("byte-level"), family("byte-level"))
    spec = OpenSession((5,), 8, "", rule=rule, sampling=SamplingParams(1.0, seed=3, **only))
    made = DraftSampling(bridge, spec, frozenset(), 64)
    assert made.greedy and made.params(TEXT) is made.params(BridgeMode.INTERSECTION) is None


@pytest.mark.parametrize("kind", ["two byte-level tokenizers", "byte-level for byte fallback"])
async def test_as_much_is_accepted_where_a_filter_leaves_one_token(kind: str) -> None:
    """Healing, lookup and the choice of the bridge mode are those of a greedy request."""
    alone, lengths = list[tuple[int, ...]](), list[float]()
    for sampling in (SamplingParams(), SamplingParams(1.0, top_k=1)):
        async with serving_pair(kind) as pair:  # a new one, which has learned nothing
            output = await pair.generate(PROMPTS[0], 48, ignore_eos=True, sampling=sampling)
        alone.append(output.token_ids)
        lengths.append(output.statistics.mean_acceptance_length)
    assert alone[0] == alone[1] and lengths[0] == lengths[1] > 1.5, lengths
