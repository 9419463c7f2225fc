"""How much a message may hold, asked before anything goes through all of it.

Knows counts, and the limits that GetModel reports. Does not know values. A message of 16 MiB that
is nothing but ids would otherwise keep the event loop, and every session, until all were walked.
"""

from __future__ import annotations

from typing import Any

from common.errors import InvalidDistribution, InvalidField, PromptTooLong
from common.wire.checks import check_stop_count
from verifier.engine import Limits

SHA256_LENGTH = 64  # hexadecimal digits


def check_verify_request(request: Any, limits: Limits) -> None:
    """A VerifyRequest. Raises InvalidField, InvalidDistribution or PromptTooLong."""
    if request.HasField("open"):
        _check_open(request.open, limits)
    elif request.HasField("proposal"):
        _check_draft("proposal.token_ids", request.proposal.token_ids, limits)
        _check_q("proposal.q", request.proposal.q, limits)


def check_verify_once(request: Any, limits: Limits) -> None:
    """A VerifyOnceRequest. Raises the same."""
    _check_open(request.open, limits)
    _check_draft("draft_token_ids", request.draft_token_ids, limits)
    _check_q("q", request.q, limits)


def _check_open(message: Any, limits: Limits) -> None:
    length = len(message.prompt_token_ids)
    if length >= limits.max_context_length:
        raise PromptTooLong(length, limits.max_context_length - 1)
    if len(message.tokenizer_sha256) > SHA256_LENGTH:
        raise InvalidField(
            "open.tokenizer_sha256",
            f"{len(message.tokenizer_sha256)} characters long",
            f"{SHA256_LENGTH} hexadecimal digits",
        )
    check_stop_count("open.stop_token_ids", len(message.stop_token_ids))


def _check_draft(field: str, ids: Any, limits: Limits) -> None:
    if len(ids) > limits.max_draft_tokens:
        raise InvalidField(field, f"{len(ids)} tokens long", f"at most {limits.max_draft_tokens}")


def _check_q(field: str, rows: Any, limits: Limits) -> None:
    if len(rows) > limits.max_draft_tokens:
        raise InvalidDistribution(
            field, f"{len(rows)} rows long", f"at most {limits.max_draft_tokens}"
        )
    for index, row in enumerate(rows):
        count = max(len(row.token_ids), len(row.probabilities))
        if count > limits.max_q_entries:
            name = f"{field}[{index}].token_ids"
            raise InvalidDistribution(name, f"{count} long", f"at most {limits.max_q_entries}")
