#include "product.h"

#include "floats.h"
#include "tile.h"

#define LEAST 0x1p-100f            /* a row that is all smaller is zeros */
#define MOST_GROUPS 16             /* whose products a thread holds */
#define MOST_ACTIVATIONS (1 << 20) /* bytes of rows that stay in a core's cache with the weights */

static int8_t *group_of(activations rows, int64_t place, int64_t inner) {
    return rows.parts + place / GROUP * 2 * GROUP * inner;
}

void quantise(const float *row, int64_t width, int64_t inner, activations to, int64_t place) {
    ints most = {0};
    for (int64_t i = 0; i < width; i += VECTOR) { /* of floats without a sign, bits order as values */
        ints magnitude = bits_of(load(row + i)) & 0x7fffffff;
        ints where = magnitude > most;
        most = (where & magnitude) | (~where & most);
    }
    float bound = largest((floats)most);
    for (int element = 0; element < VECTOR; element++)
        if (most[element] >= 0x7f800000) bound = __builtin_nanf("");
    to.scales[place] = bound / 127.0f;
    floats inverse = all(bound > LEAST ? 127.0f / bound : 0.0f);
    int8_t *coarse = group_of(to, place, inner) + place % GROUP * DEPTH;
    for (int64_t i = 0; i < inner; i += VECTOR) {
        floats x = i < width ? load(row + i) * inverse : all(0.0f);
        x = larger(smaller(x, all(127.0f)), all(-127.0f)); /* of no numbers too */
        floats whole = rounded(x), rest = rounded((x - whole) * RESIDUAL);
        narrow coarse_part = to_narrow(whole), residual_part = to_narrow(rest);
        int8_t *there = coarse + i / DEPTH * 2 * GROUP * DEPTH + i % DEPTH;
        memcpy(there, &coarse_part, sizeof coarse_part);
        memcpy(there + GROUP * DEPTH, &residual_part, sizeof residual_part);
    }
}

/* Of 16 rows and 32 channels, without the rows' scales. */
typedef struct {
    floats of[2][GROUP];
} products;

static inline void add_sums(const sums_of_tiles *sums, const float *scales, int rows,
                            products *to) {
    for (int side = 0; side < 2; side++) {
        floats scale = load(scales + side * PANEL);
        for (int row = 0; row < rows; row++) {
            floats coarse = to_floats(load_ints(sums->of[0][side][row]));
            floats residual = to_floats(load_ints(sums->of[1][side][row]));
            to->of[side][row] += (coarse * RESIDUAL + residual) * scale;
        }
    }
}

/* Rows [first, last) by 32 channels. What shares scales is done for all rows before the next: these
 * weights then stay in the nearest cache. */
static void multiply_rows(const linear *by, int64_t channel, activations rows, int64_t first,
                          int64_t last, products *to) {
    sums_of_tiles sums;
    const int8_t *left = by->weights + channel * by->inner, *right = left + PANEL * by->inner;
    memset(to, 0, (size_t)((last - first + GROUP - 1) / GROUP) * sizeof *to);
    for (int64_t at = 0, place = channel; at < by->inner; at += SHARED, place += by->outer) {
        int64_t depth = by->inner - at < SHARED ? by->inner - at : SHARED;
        products *group = to;
        for (int64_t row = first; row < last; row += GROUP, group++) {
            int count = last - row < GROUP ? (int)(last - row) : GROUP;
            tiles_multiply(left + at * PANEL, right + at * PANEL,
                           group_of(rows, row, by->inner) + at * 2 * GROUP, by->sums + place,
                           depth, count, &sums);
            add_sums(&sums, by->scales + place, count, group);
        }
    }
}

static inline floats gated(floats gate, floats up, ending end) {
    if (end == SILU) return gate / (exponential(-gate) + 1.0f) * up;
    /* Hendrycks and Gimpel, 2016 (arXiv:1606.08415): the approximation by tanh */
    floats inside = (gate + gate * gate * gate * 0.044715f) * 0.7978845608f;
    return gate * 0.5f * (tanh_of(inside) + 1.0f) * up;
}

static void finish(const products *found, const linear *by, const float *scales, int rows,
                   int64_t channel, ending end, float *out, int64_t stride, int64_t width) {
    for (int row = 0; row < rows; row++) {
        floats both[2];
        for (int side = 0; side < 2; side++) {
            both[side] = found->of[side][row] * (scales[row] / RESIDUAL);
            if (by->bias) both[side] += load(by->bias + channel + side * PANEL);
        }
        float *to = out + row * stride;
        if (end >= SILU) {
            if (channel / 2 < width) store(to + channel / 2, gated(both[0], both[1], end));
            continue;
        }
        for (int side = 0; side < 2; side++) {
            int64_t at = channel + side * PANEL;
            if (at >= width) break;
            if (at + PANEL > width) { /* of the last panel some channels only */
                memcpy(to + at, &both[side], (size_t)(width - at) * sizeof *to);
                continue;
            }
            store(to + at, end == ADDED ? load(to + at) + both[side] : both[side]);
        }
    }
}

void multiply(worker *self, const linear *by, activations rows, int64_t count, ending end,
              float *out, int64_t stride, int64_t width) {
    int64_t pairs = by->outer / (2 * PANEL), inner = by->inner;
    int64_t block = MOST_ACTIVATIONS / (2 * inner) / GROUP * GROUP; /* rows */
    if (block < GROUP) block = GROUP;
    if (block > MOST_GROUPS * GROUP) block = MOST_GROUPS * GROUP;
    int64_t blocks = (count + block - 1) / block;
    int64_t share = pairs / (8 * pool_threads(self->pool));
    if (share < 1) share = 1;
    int64_t shares = (pairs + share - 1) / share;
    products found[MOST_GROUPS];
    tiles_begin();
    for (;;) {
        int64_t item = (int64_t)take(self, 1, (size_t)(blocks * shares));
        if (item == blocks * shares) break;
        int64_t first = item / shares * block, last = first + block < count ? first + block : count;
        int64_t pair = item % shares * share, end_pair = pair + share < pairs ? pair + share : pairs;
        for (; pair < end_pair; pair++) {
            multiply_rows(by, pair * 2 * PANEL, rows, first, last, found);
            for (int64_t row = first; row < last; row += GROUP) {
                int together = last - row < GROUP ? (int)(last - row) : GROUP;
                finish(&found[(row - first) / GROUP], by, rows.scales + row, together,
                       pair * 2 * PANEL, end, out + row * stride, stride, width);
            }
        }
    }
    tiles_end();
}

int product_ready(void) { return tiles_supported(); }
