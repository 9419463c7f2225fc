/* C alone, for every other machine. */

static inline int tiles_supported(void) { return 1; }

static inline void tiles_begin(void) {}

static inline void tiles_end(void) {}

static inline void tiles_multiply(const int8_t *left, const int8_t *right, const int8_t *rows,
                                  const int32_t *channel_sums, int64_t depth, int count,
                                  sums_of_tiles *sums) {
    (void)channel_sums;
    memset(sums, 0, sizeof *sums);
    for (int side = 0; side < 2; side++)
        for (int part = 0; part < 2; part++)
            for (int row = 0; row < count; row++) {
                int32_t *to = sums->of[part][side][row];
                for (int64_t at = 0; at < depth; at += DEPTH)
                    for (int four = 0; four < DEPTH / 4; four++) {
                        const int8_t *w = (side ? right : left) + at * PANEL + four * 64;
                        const int8_t *x = rows + at * 2 * GROUP + (part * GROUP + row) * DEPTH;
                        for (int channel = 0; channel < PANEL; channel++)
                            for (int i = 0; i < 4; i++)
                                to[channel] += w[4 * channel + i] * x[4 * four + i];
                    }
            }
}
