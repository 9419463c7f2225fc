"""What both services check of any message: token ids, counts, required features.

Knows no message and no limit of a configuration; the caller passes the size of the vocabulary.
Fields of a newer version are ignored, as proto3 has it: what a message can't be understood without
is named in its `required_features`.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.errors import InvalidField, UnknownFeature

MAX_STOP_IDS = 1024
MAX_FEATURES = 32
# What required_features may name, at either service. A name is added with whatever an older version
# would misunderstand; tests/services/test_versions.py asks for each.
FEATURES = frozenset({"chat_time", "identity", "logprobs", "resume", "sampling"})


def check_ids(field: str, ids: Sequence[int], vocab_size: int) -> None:
    """Refuse the first id outside [0, vocab_size), naming its index."""
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidField(f"{field}[{index}]", token_id, f"in [0, {vocab_size})")


def check_stop_count(field: str, count: int) -> None:
    """Refuse more stop ids than a session may have."""
    if count > MAX_STOP_IDS:
        raise InvalidField(field, f"{count} ids long", f"at most {MAX_STOP_IDS}")


def check_features(field: str, required: Sequence[str]) -> None:
    """Raise UnknownFeature for the first that this version doesn't have."""
    if len(required) > MAX_FEATURES:
        raise InvalidField(field, f"{len(required)} names long", f"at most {MAX_FEATURES}")
    for index, name in enumerate(required):
        if name not in FEATURES:
            raise UnknownFeature(f"{field}[{index}]", name, FEATURES)
