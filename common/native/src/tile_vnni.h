/* AVX-512 VNNI: unsigned by signed bytes, so 128 is added to each activation and taken off again. */
#include <immintrin.h>

static inline int tiles_supported(void) { return 1; }

static inline void tiles_begin(void) {}

static inline void tiles_end(void) {}

/* Four int8 rows at a time: with two panels, eight sums are under way. */
static void sum_of_four(const int8_t *left_panel, const int8_t *right_panel, const int8_t *rows,
                        const int32_t *channel_sums, int64_t depth, int32_t *to[4][2]) {
    __m512i sums[4][2] = {0};
    const __m512i offset = _mm512_set1_epi8((char)0x80);
    for (int64_t at = 0; at < depth; at += DEPTH, rows += 2 * GROUP * DEPTH)
        for (int four = 0; four < DEPTH / 4; four++) {
            __m512i left = _mm512_load_si512(left_panel + at * PANEL + four * 64);
            __m512i right = _mm512_load_si512(right_panel + at * PANEL + four * 64);
            for (int row = 0; row < 4; row++) {
                int32_t inputs;
                memcpy(&inputs, rows + row * DEPTH + 4 * four, 4);
                __m512i x = _mm512_xor_si512(_mm512_set1_epi32(inputs), offset);
                sums[row][0] = _mm512_dpbusd_epi32(sums[row][0], x, left);
                sums[row][1] = _mm512_dpbusd_epi32(sums[row][1], x, right);
            }
        }
    for (int side = 0; side < 2; side++) {
        __m512i more = _mm512_slli_epi32(_mm512_loadu_si512(channel_sums + side * PANEL), 7);
        for (int row = 0; row < 4; row++)
            _mm512_storeu_si512(to[row][side], _mm512_sub_epi32(sums[row][side], more));
    }
}

static inline void tiles_multiply(const int8_t *left, const int8_t *right, const int8_t *rows,
                                  const int32_t *channel_sums, int64_t depth, int count,
                                  sums_of_tiles *sums) {
    for (int part = 0; part < 2; part++)
        for (int row = 0; row < count; row += 4) {
            int32_t *to[4][2];
            for (int i = 0; i < 4; i++)
                for (int side = 0; side < 2; side++) to[i][side] = sums->of[part][side][row + i];
            sum_of_four(left, right, rows + (part * GROUP + row) * DEPTH, channel_sums, depth, to);
        }
}
