"""Stop strings: whatever the tokens, the result is that of one look at the whole output."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafter.generate.stop_strings import StopFilter

DELTAS = [b"a", b"b", b"ab", b"aa", b"", b"\xc3", b"\xa9", "é".encode(), "中".encode(), b"\xe4\xb8"]
deltas = st.sampled_from(DELTAS)
tokens = st.lists(st.lists(deltas, max_size=3).map(b"".join), max_size=12)
stops = st.lists(
    st.lists(deltas, min_size=1, max_size=4).map(b"".join).filter(bool), max_size=4, unique=True
)


def at_once(output: list[bytes], stops: list[bytes]) -> tuple[int, bytes, bytes | None]:
    """(final tokens, their bytes, the stop string), by looking for every one at every end."""
    whole = b"".join(output)
    for end in range(len(whole) + 1):
        ending = [stop for stop in stops if whole[:end].endswith(stop)]
        if ending:
            found = max(ending, key=len)
            at, begin = end - len(found), 0
            for count, data in enumerate(output):
                inside = begin <= at < begin + len(data)
                if inside:  # the token in which it begins: the last one if it begins in mid-token
                    return count + (begin < at), whole[:at], found
                begin += len(data)
    return len(output), whole, None


def may_belong(text: bytes, stops: list[bytes]) -> int:
    """How many bytes at the end begin a stop string."""
    lengths = [
        n
        for stop in stops
        for n in range(1, len(stop))
        if text.endswith(stop[:n]) and n <= len(text)
    ]
    return max(lengths, default=0)


@settings(max_examples=400)
@given(output=tokens, stops=stops)
@pytest.mark.long
def test_tokens_one_by_one_end_where_one_look_at_the_whole_output_does(
    output: list[bytes], stops: list[bytes]
) -> None:
    stream: StopFilter[int] = StopFilter(stops)
    left: list[tuple[int, bytes]] = []
    come = b""
    for number, data in enumerate(output):
        left += stream.push(number, data)
        come += data
        if stream.found is not None:
            break
        gone = b"".join(data for _, data in left)
        held = may_belong(come, stops)
        # Nothing that may belong to a stop string has left; every other token has.
        assert come.startswith(gone) and len(gone) <= len(come) - held
        begins = [len(b"".join(output[:i])) for i in range(number + 1)]
        certain = len(come) - held
        free = [
            i
            for i in range(number + 1)
            if begins[i] < certain or begins[i] + len(output[i]) <= certain
        ]
        assert [token for token, _ in left] == free
    last, rest = stream.flush()
    left += last
    count, text, found = at_once(output, stops)
    assert stream.found == found
    assert [token for token, _ in left] == list(range(count))
    assert b"".join(data for _, data in left) + rest == text


def run(stops: list[bytes], output: list[bytes]) -> tuple[list[bytes], bytes, bytes | None]:
    """(bytes of each final token, left-over bytes, the stop string)."""
    stream: StopFilter[int] = StopFilter(stops)
    left = []
    for number, data in enumerate(output):
        left += stream.push(number, data)
        if stream.found:
            break
    last, rest = stream.flush()
    return [data for _, data in [*left, *last]], rest, stream.found


@pytest.mark.parametrize(
    ("stops", "output", "kept", "found"),
    [
        ([b"END"], [b"a", b"EN", b"D", b"b"], [b"a"], b"END"),
        ([b"END"], [b"aE", b"N", b"Db"], [b"a"], b"END"),  # begins inside a token, which stays
        ([b"END"], [b"END"], [], b"END"),
        ([b"END"], [b"a", b"E", b"N"], [b"a", b"E", b"N"], None),
        ([b"\n\n", b"\n\nx"], [b"a", b"\n", b"\n", b"x"], [b"a"], b"\n\n"),  # the one whole first
        ([b"\n\nx", b"\n\n"], [b"a\n\nx"], [b"a"], b"\n\n"),
        ([b"bc", b"abc"], [b"xa", b"bc"], [b"x"], b"abc"),  # whole at one byte: the longest
        ([b"abcd", b"bc"], [b"a", b"b", b"c", b"d"], [b"a"], b"bc"),
        ([b"aab"], [b"a", b"a", b"a", b"b"], [b"a"], b"aab"),  # an end of it begins it again
        ([b"x"], [b"a", b"", b"x"], [b"a", b""], b"x"),  # a special token before it stays
        ([b"ax"], [b"a", b"", b"x"], [], b"ax"),  # inside it, it goes
        (["é".encode()], [b"\xe4", b"\xb8\xc3", b"\xa9"], [b"\xe4", b"\xb8"], "é".encode()),
        # A character over three tokens, the first of which ends another character or a space.
        (
            ["中".encode()],
            [b"\xc3", b"\xa9\xe4", b"\xb8", b"\xad"],
            [b"\xc3", b"\xa9"],
            "中".encode(),
        ),
        (["中x".encode()], [b" \xe4", b"\xb8", b"\xadx"], [b" "], "中x".encode()),
        (
            ["中".encode()],
            [b"a", b"\xe4", b"\xb8", b"\xae"],
            [b"a", b"\xe4", b"\xb8", b"\xae"],
            None,
        ),
    ],
)
def test_where_output_ends(
    stops: list[bytes], output: list[bytes], kept: list[bytes], found: bytes | None
) -> None:
    assert run(stops, output) == (kept, b"", found)


def test_a_token_that_left_in_part_has_its_rest_reported_in_the_end() -> None:
    assert run([b"==a", b"c"], [b"x=", b"c"]) == ([b"x"], b"=", b"c")
    assert run([b"==a"], [b"x=", b"=", b"b"]) == ([b"x", b"==", b"b"], b"", None)


def test_without_stop_strings_every_token_leaves_at_once() -> None:
    stream: StopFilter[str] = StopFilter([])
    assert stream.push("t", b"abc") == [("t", b"abc")]
    assert stream.push("special", b"") == [("special", b"")]
    assert stream.flush() == ([], b"")
