"""Where output ends because of what it says: stop strings, on bytes, while tokens come one by one.

The output ends before the string that is whole first; of those that become whole with the same
byte, the longest. If it begins inside a token, that token is the last one and its bytes are cut;
otherwise the token before it is. Knows bytes. Does not know text, vocabularies and streams.

What may still turn out to belong to a stop string is kept back, and nothing else is. The search is
Aho and Corasick's ("Efficient string matching", CACM 18(6), 1975): its state is the longest end of
the output that begins a stop string, which is exactly what to hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Released(NamedTuple, Generic[T]):
    """A token that is final, and the bytes that are final with it."""

    token: T
    data: bytes


class _State:
    """A beginning of some stop string."""

    def __init__(self, depth: int) -> None:
        self.depth = depth  # bytes
        self.following: dict[int, _State] = {}
        self.shorter: _State | None = None  # the longest proper end of it that begins a stop, too
        self.whole: bytes | None = None  # the longest stop string that it ends with


def _automaton(stops: Sequence[bytes]) -> _State:
    root = _State(0)
    for stop in stops:
        state = root
        for byte in stop:
            state = state.following.setdefault(byte, _State(state.depth + 1))
        state.whole = stop
    line = deque([root])
    while line:  # by depth, so that what is shorter is finished
        state = line.popleft()
        for byte, longer in state.following.items():
            longer.shorter = root if state is root else _step(root, state.shorter or root, byte)
            longer.whole = longer.whole or longer.shorter.whole
            line.append(longer)
    return root


def _step(root: _State, state: _State, byte: int) -> _State:
    """The state after one more byte."""
    while byte not in state.following and state.shorter is not None:
        state = state.shorter
    return state.following.get(byte, root)


class StopFilter(Generic[T]):
    """Tokens in, with their bytes; out come those that are final, in order.

    A token of which some bytes are final leaves at once with these; its others come with the next
    token that leaves, or at the end. A token without bytes leaves behind those before it.
    """

    def __init__(self, stops: Sequence[bytes]) -> None:
        """stops: none of them empty."""
        assert all(stops)
        self._root = self._place = _automaton(stops)
        self._held: list[tuple[T, int, int]] = []  # tokens, each with its bytes' [begin, end)
        self._bytes = bytearray()  # of the output, [left, come)
        self._left = 0  # so many bytes have left
        self._come = 0
        self.found: bytes | None = None  # the stop string that ended the output

    def push(self, token: T, data: bytes) -> list[Released[T]]:
        """One token more. Once `found` is set the output is over, and nothing more may come."""
        assert self.found is None
        begin = self._come
        self._held.append((token, begin, begin + len(data)))
        self._bytes += data
        for byte in data:
            self._come += 1
            self._place = _step(self._root, self._place, byte)
            if self._place.whole is not None:
                self.found = self._place.whole
                return self._cut(self._come - len(self.found))
        return self._release(self._come - self._place.depth)

    def flush(self) -> tuple[list[Released[T]], bytes]:
        """The end: all that was kept back, and then bytes whose token has left already."""
        released = self._release(self._come)
        rest = bytes(self._bytes)
        self._bytes.clear()
        return released, rest

    def _cut(self, at: int) -> list[Released[T]]:
        """Forget the output from byte `at` on."""
        self._come = at
        del self._bytes[at - self._left :]
        released = self._release(at)
        self._held.clear()
        return released

    def _release(self, certain: int) -> list[Released[T]]:
        """Let go of the tokens with a byte before `certain`, and of those without any up to it."""
        count, released = 0, []
        for token, begin, end in self._held:
            if begin >= certain and end > certain:
                break
            count += 1
            data = self._bytes[: min(end, certain) - self._left]
            del self._bytes[: len(data)]
            self._left += len(data)
            released.append(Released(token, bytes(data)))
        del self._held[:count]
        return released
