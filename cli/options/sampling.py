"""The flags of `crossdraft generate` that say how tokens are sampled, and the values they make.

Knows names, meanings and which flags may come more than once. Does not know ranges
(common/sampling/parameters.py) and what the drafter makes of them.
"""

from __future__ import annotations

from typing import Any

import click

from common.errors import InvalidField
from common.sampling.parameters import SamplingParams


class _Bias(click.ParamType):
    """ID=BIAS."""

    name = "ID=BIAS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        if isinstance(value, tuple):
            return value
        token_id, _, bias = str(value).partition("=")
        try:
            return int(token_id), float(bias)
        except ValueError:
            self.fail(f"{value!r} isn't a token id, an equals sign and a number", param, ctx)


_OPTIONS = (
    click.option(
        "--temperature",
        type=float,
        help="Above 0, tokens are sampled: below 1 likely ones more often, above 1 less. Left out "
        "or 0, the likeliest is taken each time.",
    ),
    click.option("--top-k", type=int, help="Sample from the K likeliest tokens only."),
    click.option(
        "--top-p",
        type=float,
        help="Sample from the fewest likeliest tokens whose probabilities reach P together.",
    ),
    click.option(
        "--min-p",
        type=float,
        help="Sample from tokens at least P times as probable as the likeliest one.",
    ),
    click.option(
        "--seed",
        type=int,
        help="The same seed, prompt and flags give the same text again, with any drafter.",
    ),
    click.option(
        "--repetition-penalty",
        type=float,
        help="Above 1, tokens of the prompt and the output become less likely.",
    ),
    click.option(
        "--presence-penalty",
        type=float,
        help="Taken from the logits of tokens that the output has.",
    ),
    click.option(
        "--frequency-penalty",
        type=float,
        help="Taken from a token's logit for each time that the output has it.",
    ),
    click.option(
        "--logit-bias",
        type=_Bias(),
        multiple=True,
        help="Add BIAS to the logit of the target's token ID. May be given many times.",
    ),
    click.option(
        "--min-new-tokens",
        type=int,
        default=0,
        help="No end before so many tokens; stop strings still hold.",
    ),
    click.option(
        "--logprobs",
        type=int,
        metavar="N",
        help="Return each token's log-probability and the N likeliest tokens in its place, in the "
        "JSON object; implies --json.",
    ),
)


def sampling_options(command: Any) -> Any:
    """Decorate a click command with one flag for each field of SamplingParams."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def sampling_of(values: dict[str, Any]) -> SamplingParams:
    """What the flags came to. Raises click.UsageError, naming the flag, its value and limit."""
    try:
        return SamplingParams(**values)
    except InvalidField as error:
        field = error.field.removeprefix("sampling.")
        message = str(error).replace(f"sampling.{field}", f"--{field.replace('_', '-')}", 1)
        raise click.UsageError(message) from error
