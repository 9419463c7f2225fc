"""Streamed text equals one-shot decoding, whatever the chunking."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from drafter.generate.detokenize import StreamingText
from tests.support.fake_tokenizers import blobs


@given(data=blobs(), sizes=st.lists(st.integers(1, 4)))
def test_streamed_text_equals_one_shot(data: bytes, sizes: list[int]) -> None:
    stream = StreamingText()
    deltas = []
    at = 0
    for size in [*sizes, max(1, len(data))]:
        deltas.append(stream.push(data[at : at + size]))
        at += size
    assert "".join([*deltas, stream.flush()]) == data.decode("utf-8", "replace")


def test_a_split_character_is_held_back() -> None:
    stream = StreamingText()
    emoji = "🙂".encode()
    assert [stream.push(bytes([byte])) for byte in emoji] == ["", "", "", "🙂"]
    assert stream.flush() == ""


def test_an_unfinished_character_is_flushed_as_u_fffd_only_at_the_end() -> None:
    stream = StreamingText()
    assert stream.push("a🙂".encode()[:-1]) == "a"
    assert stream.flush() == "\ufffd"
