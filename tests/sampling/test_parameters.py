"""Sampling parameters are refused by name, before anything is computed with them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from common.errors import InvalidField
from common.sampling.parameters import SamplingParams

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [NAN, INF, -INF, -1.0, -1e-9, 1e-7, 100.5]),
        ("top_k", [0, -1, 2**31, 1.5, NAN]),
        ("top_p", [NAN, -0.1, 1.1, INF]),
        ("min_p", [NAN, -0.1, 1.1]),
        ("seed", [-1, 2**64, 0.5]),
        ("repetition_penalty", [NAN, 0.0, -1.0, INF, 5e-324, 0.009, 100.1]),
        ("presence_penalty", [NAN, -2.1, 2.1]),
        ("frequency_penalty", [NAN, -2.1, 2.1]),
        ("min_new_tokens", [-1, 2**31]),
        ("logprobs", [-1, 21]),
        ("logit_bias", [((-1, 0.0),), ((5, NAN),), ((5, 100.5),), ((5, 1.0), (5, 1.0))]),
        ("logit_bias", [tuple((i, 1.0) for i in range(4097))]),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidField, match=f"sampling.{name}") as refused:
            SamplingParams(**{name: value})
        assert refused.value.field == f"sampling.{name}"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [0, 0.0, 1e-6, 1, 100.0]),
        ("top_k", [1, 2**31 - 1]),
        ("top_p", [0, 0.0, 1]),
        ("min_p", [0.0, 1.0]),
        ("seed", [0, 2**64 - 1]),
        ("repetition_penalty", [0.01, 1.0, 100.0]),
        ("presence_penalty", [-2, 0, 2.0]),
        ("frequency_penalty", [-2.0, 2.0]),
        ("min_new_tokens", [0, 5]),
        ("logprobs", [0, 20]),
        ("logit_bias", [(), ((0, -100.0), (1, 100.0)), tuple((i, 1.0) for i in range(1024))]),
    ],
)
def test_the_edges_are_allowed(name: str, values: list[Any]) -> None:
    for value in values:
        assert getattr(SamplingParams(**{name: value}), name) == value


def test_nothing_set_is_greedy_and_changes_no_logit() -> None:
    params = SamplingParams()
    assert params.greedy and not params.processes_logits
    assert SamplingParams(temperature=0.0).greedy
    assert not SamplingParams(temperature=1e-6).greedy


@pytest.mark.parametrize(
    ("given", "one_token"),
    [
        ({}, True),
        ({"temperature": 0.0, "top_k": 5}, True),
        ({"temperature": 1.0}, False),
        ({"temperature": 1.0, "top_k": 1}, True),
        ({"temperature": 1.0, "top_k": 2, "top_p": 0.01, "min_p": 0.99}, False),
        ({"temperature": 1.0, "top_p": 0.0}, True),
        ({"temperature": 1.0, "min_p": 1.0}, True),
    ],
)
def test_filters_that_keep_the_likeliest_alone_leave_one_token(
    given: dict[str, Any], one_token: bool
) -> None:
    assert SamplingParams(**given).one_token is one_token


@pytest.mark.parametrize(
    ("given", "processes_logits"),
    [
        ({"repetition_penalty": 1.0, "presence_penalty": 0.0, "top_p": 0.5}, False),
        ({"repetition_penalty": 1.1}, True),
        ({"presence_penalty": -2.0}, True),
        ({"frequency_penalty": 2.0}, True),
        ({"min_new_tokens": 1}, True),
        ({"logit_bias": ((3, 1.0),)}, True),
    ],
)
def test_only_what_changes_logits_by_token_says_so(
    given: dict[str, Any], processes_logits: bool
) -> None:
    assert SamplingParams(**given).processes_logits is processes_logits


def test_a_biased_id_must_be_the_targets() -> None:
    params = SamplingParams(logit_bias=((99, 1.0),))
    params.check_ids(100)
    with pytest.raises(InvalidField, match="99"):
        params.check_ids(99)
