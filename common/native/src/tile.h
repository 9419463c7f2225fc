/* Sums of up to 16 rows with 32 channels, by the best instructions that this file is built with.
 *
 * Rows are [depth / 64][2][16][64], coarse and residual; weights two panels, each
 * [depth / 64][16][16][4]; channel_sums [32], of the weights.
 */
#pragma once

#include <stdint.h>

#include "product.h"

typedef struct {
    int32_t of[2][2][GROUP][PANEL]; /* [coarse, residual][panel][row][channel] */
} __attribute__((aligned(64))) sums_of_tiles;

static inline int tiles_supported(void);
static inline void tiles_begin(void);
static inline void tiles_end(void);
static inline void tiles_multiply(const int8_t *left, const int8_t *right, const int8_t *rows,
                                  const int32_t *channel_sums, int64_t depth, int count,
                                  sums_of_tiles *sums);

#if defined(__AMX_INT8__)
#include "tile_amx.h"
#elif defined(__AVX512VNNI__)
#include "tile_vnni.h"
#elif defined(__AVX2__)
#include "tile_avx2.h"
#else
#include "tile_plain.h"
#endif
