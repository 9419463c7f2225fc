/* AVX2: bytes are widened to 16 bits, whose products are added in pairs to 32. */
#include <immintrin.h>

static inline int tiles_supported(void) { return 1; }

static inline void tiles_begin(void) {}

static inline void tiles_end(void) {}

/* Two sums of each of 4 channels for one int8 row. */
static inline __m256i step(__m256i sums, const int8_t *weights, const int8_t *inputs) {
    int32_t four;
    memcpy(&four, inputs, 4);
    __m256i x = _mm256_cvtepi8_epi16(_mm_set1_epi32(four));
    __m256i w = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)weights));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(w, x));
}

static inline void tiles_multiply(const int8_t *left, const int8_t *right, const int8_t *rows,
                                  const int32_t *channel_sums, int64_t depth, int count,
                                  sums_of_tiles *sums) {
    (void)channel_sums;
    for (int side = 0; side < 2; side++)
        for (int row = 0; row < count; row++) {
            __m256i halves[2][4] = {0};
            for (int64_t at = 0; at < depth; at += DEPTH)
                for (int four = 0; four < DEPTH / 4; four++) {
                    const int8_t *w = (side ? right : left) + at * PANEL + four * 64;
                    const int8_t *x = rows + at * 2 * GROUP + row * DEPTH + 4 * four;
                    for (int part = 0; part < 2; part++)
                        for (int i = 0; i < 4; i++)
                            halves[part][i] =
                                step(halves[part][i], w + 16 * i, x + part * GROUP * DEPTH);
                }
            for (int part = 0; part < 2; part++)
                for (int i = 0; i < 4; i++) {
                    int32_t pairs[8];
                    memcpy(pairs, &halves[part][i], sizeof pairs);
                    for (int channel = 0; channel < 4; channel++)
                        sums->of[part][side][row][4 * i + channel] =
                            pairs[2 * channel] + pairs[2 * channel + 1];
                }
        }
}
