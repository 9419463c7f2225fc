"""A variable-length batch as arrays: every row, tile and split is where the chunks say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from common.kv.pages import PagePool
from common.model.batch import Chunk, flatten

PAGE_SIZE, TILE_ROWS, SPLIT = 4, 3, 8
CHUNKS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=5
)


@given(CHUNKS)
def test_rows_tiles_and_splits_are_what_the_chunks_say(shapes: list[tuple[int, int, int]]) -> None:
    pool = PagePool(64, PAGE_SIZE)
    chunks: list[Chunk] = []
    for begin, count, wanted in shapes:
        table = pool.table()
        table.reserve(begin + count)
        table.extend(begin)
        tokens = [100 * len(chunks) + i for i in range(count)]
        chunks.append(Chunk(tokens, table, min(wanted, count)))
    rows = flatten(chunks, PAGE_SIZE, TILE_ROWS, SPLIT)
    assert rows.ids.tolist() == [token for chunk in chunks for token in chunk.tokens]
    row = 0
    wanted_rows: list[int] = []
    for chunk in chunks:
        count = len(chunk.tokens)
        wanted_rows += range(row + count - chunk.logit_rows, row + count)
        for place in range(count):
            position = chunk.table.length + place
            assert rows.positions[row] == position
            page, offset = divmod(position, PAGE_SIZE)
            assert rows.slots[row] == chunk.table.pages[page] * PAGE_SIZE + offset
            assert rows.rows_in_tile[row] == place % TILE_ROWS
            for split in range(position // SPLIT + 1):
                work_tile = rows.work_tiles[rows.row_tiles[row] + split]
                first_page, first_row, tile_rows, first_position, number = work_tile.tolist()
                assert number == split
                assert first_row == row - rows.rows_in_tile[row]
                assert first_position == position - rows.rows_in_tile[row]
                assert tile_rows == min(TILE_ROWS, count - place + rows.rows_in_tile[row])
                assert rows.pages[first_page + page] == chunk.table.pages[page]
            row += 1
    assert rows.rows == row
    assert rows.wanted.tolist() == wanted_rows
    for most in (1, 5, 1000):
        groups = rows.groups(most)
        assert sum(work_tiles for _, work_tiles, _, _ in groups) == len(rows.work_tiles)
        assert sum(count for _, _, _, count in groups) == rows.rows
