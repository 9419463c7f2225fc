"""Attention on the CPU: every query row in a call of its own, over pages of keys and values.

Knows a variable-length batch of segments, each with its own pages. Does not know sessions and
sampling.

The promise: a row's value is the same whatever runs beside it. So every query row goes through the
same call on its own, over exactly the keys that it may see, in prefill, decode and verification
alike; a masked call over several rows is faster and not bitwise the same. Grouped-query attention
(Ainslie et al., 2023, arXiv:2305.13245) makes that call larger: the query heads that share a
KV head are its rows, and no mask is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from common.kv.store import KVStore
from common.model.batch import Chunk

# Keys up to which a row's attention is one call. Waking a second thread costs more than the work
# (measured with 64-wide heads and 100 keys: 12 us on one thread, 97 us on two that sleep). Longer
# rows are a call for each KV head, which threads share. A call itself always runs on one thread:
# torch splits sums among several, for one KV head and for some shapes of more.
_ONE_CALL_KEYS = 2048


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of one sequence: positions [begin, end) of it run in this batch."""

    pages: Tensor | range  # int64 [n], covering [0, end); a range if they follow each other
    begin: int
    end: int


@dataclass(frozen=True)
class RowBatch:
    """What attention needs to know beside queries, keys and values."""

    store: KVStore
    segments: Sequence[Segment]
    slots: Tensor  # int64 [rows], where each row's keys and values are kept

    def attend(
        self,
        layer: int,
        query: Tensor,  # [1, heads, rows, head_size]
        key: Tensor,  # [1, kv_heads, rows, head_size]
        value: Tensor,
        scaling: float | None,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """See common/model/attention_interface.py: -> [1, rows, heads, head_size]."""
        self.store.write(layer, self.slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
        _, heads, rows, size = query.shape
        kv_heads = key.shape[1]
        groups = query[0].view(kv_heads, heads // kv_heads, rows, size)
        groups = groups.permute(2, 0, 1, 3).contiguous()  # [rows, kv_heads, group, head_size]
        out = torch.empty_like(groups)
        # Views are made for all rows at once: for a small model, making them is most of the work.
        query_rows, output_rows = (
            groups[:, None].unbind(),
            out[:, None].unbind(),
        )  # [1, kv_heads, group, size]
        own_sinks = None if sinks is None else sinks.view(1, kv_heads, heads // kv_heads, 1)
        everything = self.store.read(layer)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        short: list[Call] = []
        long: list[Call] = []
        row = 0
        try:
            for segment in self.segments:
                keys, values = everything
                first = 0  # where position 0 is in them
                if isinstance(segment.pages, range):
                    first = segment.pages.start * self.store.page_size
                else:
                    keys, values = self.store.read(layer, segment.pages)
                for end in range(segment.begin + 1, segment.end + 1):
                    begin = max(0, end - window) if window else 0
                    at, count = first + begin, end - begin
                    seen = keys.narrow(2, at, count), values.narrow(2, at, count)
                    call = (output_rows[row], query_rows[row], *seen, own_sinks)
                    row += 1
                    if count > _ONE_CALL_KEYS:
                        long += _by_head(call)
                    else:
                        short.append(call)
            _attend_rows(short, scaling, softcap)
            if long:
                _share(long, threads, partial(_attend_rows, scaling=scaling, softcap=softcap))
        finally:
            torch.set_num_threads(threads)
        return out.view(1, rows, heads, size)


# Output and query [1, kv_heads, group, head_size], keys and values [1, kv_heads, positions,
# head_size], sinks [1, kv_heads, group, 1].
Call = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]


def _by_head(call: Call) -> list[Call]:
    *tensors, sinks = call
    heads = call[0].shape[1]
    parts = zip(*(tensor.split(1, dim=1) for tensor in tensors), strict=True)
    own = [None] * heads if sinks is None else sinks.split(1, dim=1)
    return [(*part, each) for part, each in zip(parts, own, strict=True)]


def _share(calls: list[Call], threads: int, attend: Callable[[list[Call]], None]) -> None:
    """Each call on one thread of so many, this one included."""
    others = [
        _workers(threads - 1).submit(attend, calls[number::threads])
        for number in range(1, min(threads, len(calls)))
    ]
    attend(calls[::threads])
    for other in others:
        other.result()


@cache
def _workers(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "attention", partial(torch.set_num_threads, 1))


@torch.inference_mode()
def _attend_rows(calls: Sequence[Call], scaling: float | None, softcap: float | None) -> None:
    for output, query, keys, values, sinks in calls:
        output.copy_(_attend_row(query, keys, values, scaling, softcap, sinks))


def row_batch(chunks: Sequence[Chunk], store: KVStore) -> tuple[Tensor, Tensor, RowBatch, Tensor]:
    """The chunks as model code takes them: (ids, positions, the batch, rows that are wanted)."""
    segments: list[Segment] = []
    slots: list[int] = []
    ids: list[int] = []
    positions: list[int] = []
    wanted: list[int] = []
    for chunk in chunks:
        begin, end = chunk.table.length, chunk.table.length + len(chunk.tokens)
        pages = chunk.table.pages[: -(-end // store.page_size)]
        in_line = range(pages[0], pages[0] + len(pages))
        read = in_line if pages == list(in_line) else torch.tensor(pages)
        segments.append(Segment(read, begin, end))
        slots.extend(store.slots(pages, begin, end))
        ids.extend(chunk.tokens)
        positions.extend(range(begin, end))
        wanted.extend(range(len(ids) - chunk.logit_rows, len(ids)))
    batch = RowBatch(store, segments, torch.tensor(slots))
    return (
        torch.tensor(ids),
        torch.tensor(positions),
        batch,
        torch.tensor(wanted, dtype=torch.int64),
    )


def _attend_row(
    query: Tensor,  # [1, kv_heads, group, head_size]
    keys: Tensor,  # [1, kv_heads, positions, head_size]
    values: Tensor,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,  # [1, kv_heads, group, 1]
) -> Tensor:  # [1, kv_heads, group, head_size]
    if softcap is None and sinks is None:
        return scaled_dot_product_attention(query, keys, values, scale=scaling)
    scores = torch.matmul(query, keys.transpose(2, 3))
    scores = scores * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)  # Gemma 2, arXiv:2408.00118
    if sinks is None:
        return torch.matmul(torch.softmax(scores, dim=-1), values)
    # gpt-oss: a logit of each head that takes probability and has no value (arXiv:2309.17453).
    weights = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]
    return torch.matmul(weights, values)
