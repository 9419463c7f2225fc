/* Attention of one row over its own keys, read in pages. */
#pragma once

#include <stdint.h>

#define MOST_HEADS 32 /* query heads that share a KV head */

typedef struct {
    const float *keys, *values; /* [slots][kv_heads][head_size] */
    const int32_t *pages;       /* the sequence's */
    int32_t page_size, kv_heads, head_size;
} cache_view;

/* Some query heads of one row, [heads][head_size], over keys [begin, end) of one KV head, in blocks
 * from `begin` on: -> [heads][head_size]. A row is one call's on one thread, so nothing that runs
 * beside it matters. Softmax as in Milakov and Gimelshein, 2018 (arXiv:1805.02867). */
void attend(const float *query, int heads, const cache_view *cache, int kv_head, int32_t begin,
            int32_t end, float scaling, float *out);
