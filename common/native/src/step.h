/* One pass of a decoder-only transformer over rows of many sequences.
 *
 * The layers of Llama, Mistral, Qwen2, Qwen3 and Gemma 3: a norm, queries, keys and values as one
 * product, rotary positions, attention, a product; a norm, gates and values as one product, a
 * product; each half's result is added to the residual, by some after one more norm.
 * Mirrored by common/native/structs.py.
 */
#pragma once

#include "pool.h"
#include "product.h"

typedef struct {
    linear qkv, out, gates, down;
    const float *before_attention, *before_mlp; /* weights of norms [width] */
    const float *after_attention, *after_mlp;   /* or NULL */
    const float *query_norm, *key_norm;         /* [head_size] or NULL */
    float *keys, *values;                       /* [slots][kv_heads][head_size] */
    int64_t window;                             /* keys that a row sees at most, 0: all before it */
    int64_t angles;                             /* which of a batch's rotary angles */
} layer;

typedef struct {
    const layer *layers;
    const float *last_norm;
    linear head;
    int64_t depth, width, heads, kv_heads, head_size, mlp_width, vocab;
    int64_t activation; /* an `ending`, SILU or GELU */
    float epsilon, scaling;
} model;

typedef struct {
    float *hidden;                  /* [rows][width]: embeddings, then whatever */
    const float *cosines[2];        /* [positions][head_size / 2] */
    const float *sines[2];          /* [positions][head_size / 2] */
    const int32_t *slots;           /* [rows], where keys and values are kept */
    const int32_t *ends;            /* [rows], the row's position and one */
    const int32_t *tables;          /* [rows], where its sequence's pages begin in `pages` */
    const int32_t *pages;
    const int32_t *wanted;          /* [wanted_rows] */
    float *logits;                  /* [wanted_rows][vocab] */
    int64_t rows, wanted_rows, page_size;
    /* Scratch, whose contents don't matter: */
    float *qkv;      /* [rows][(heads + 2 kv_heads) head_size] */
    float *attended; /* [rows][heads head_size] */
    float *gated;    /* [rows][mlp_width] */
    float *normed;   /* [rows][width] */
    activations quantised; /* for as many rows, up to 16 more, of the widest linear */
} batch;

/* Raised with every change of the structures above, or of any function's arguments. */
int64_t interface_version(void);

/* A pass; logits and the rows' keys and values are written. */
void step(pool *pool, const model *model, const batch *batch);

/* out [rows][width] = rows of `x` [rows][inner_width] times a linear. */
void product(pool *pool, const linear *by, const float *x, int64_t inner_width, int64_t rows,
             activations scratch, float *out, int64_t width);
