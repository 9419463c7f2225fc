"""The drafter reads what a verifier serves: model and tokenizer that belong together."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import VerifierUnavailable
from tests.drafter.fake_verifier import FILES, FakeVerifier, client_of


async def test_a_verifier_that_changes_while_it_is_described_is_asked_again() -> None:
    fake = FakeVerifier()
    fake.sha256 = ["of another", FILES.sha256]
    async with client_of(fake) as client:
        info, files = await client.describe()
    assert info.tokenizer_sha256 == files.sha256 == FILES.sha256
    assert files.files == FILES.files


async def test_a_verifier_that_stays_silent_while_it_is_described_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("drafter.verifier_client.description.LIMIT_S", 0.2)
    fake = FakeVerifier()
    fake.silences = 1
    async with client_of(fake) as client:
        info, _ = await client.describe()
    assert info.tokenizer_sha256 == FILES.sha256 and not fake.silences


@pytest.mark.parametrize("changes", [{"sha256": ["of another"]}, {"short": 1}])
async def test_a_tokenizer_that_isnt_the_models_is_never_taken(changes: dict[str, Any]) -> None:
    fake = FakeVerifier()
    vars(fake).update(changes)
    async with client_of(fake, timeout_s=0.05) as client:
        with pytest.raises(VerifierUnavailable):
            await client.describe()
