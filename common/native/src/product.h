/* Products of int8 weights and activations with integer sums.
 *
 * Weights lie in panels of 16 output channels: of each 64 inputs 1,024 bytes, [16][16 channels][4],
 * so that four inputs of a channel are one 32-bit element. That is what an AMX tile, VPDPBUSD and
 * VPMADDWD read alike. A channel has a scale for each 512 inputs. A row of activations is two int8
 * rows, coarse and residual:
 *     x ~ scale * (coarse + residual / 254),   scale = max |x| / 127.
 * Sums of integers are exact in any order, and those that share scales are added up in float32 from
 * the first to the last: a row's product is the same beside any other rows, on any number of
 * threads, and with any of the instructions below.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "pool.h"

#define PANEL 16        /* output channels */
#define DEPTH 64        /* inputs of a tile */
#define SHARED 512      /* inputs of a channel that share a scale */
#define GROUP 16        /* rows of activations that are multiplied together, at most */
#define RESIDUAL 254.0f /* steps of a residual in one of a coarse row */

typedef struct {
    const int8_t *weights; /* [outer / 16][inner / 64][16][16][4] */
    const float *scales;   /* [inner / SHARED, rounded up][outer] */
    const int32_t *sums;   /* likewise, of the weights that share a scale */
    const float *bias;     /* [outer] or NULL */
    int64_t inner;         /* a multiple of 64: inputs, filled up with zeros */
    int64_t outer;         /* a multiple of 32: channels, filled up with zeros */
} linear;

/* Rows that are multiplied, of one linear's width; 16 of them lie as tiles do. */
typedef struct {
    int8_t *parts; /* [rows / 16][inner / 64][2][16][64], coarse and residual */
    float *scales; /* [rows] */
} activations;

typedef enum {
    STORED = 0, /* out[row][channel] = value */
    ADDED = 1,  /* out[row][channel] += value */
    SILU = 2,   /* panels are gate and up in turn: out[row][channel] = silu(gate) * up */
    GELU = 3,   /* likewise with tanh's approximation of GELU */
} ending;

/* A row [width] as activation number `place`, of a linear with `inner` >= width inputs. One with a
 * value that isn't finite gets the scale NaN, which reaches every one of its products. */
void quantise(const float *row, int64_t width, int64_t inner, activations to, int64_t place);

/* The product of rows, one phase; out [rows][stride]. `width` channels are written, of which the
 * gated endings have half of the linear's. */
void multiply(worker *self, const linear *by, activations rows, int64_t count, ending end,
              float *out, int64_t stride, int64_t width);

/* Whether this machine and this process can run what was built; called once, before any product. */
int product_ready(void);
