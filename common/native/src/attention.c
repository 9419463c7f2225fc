#include "attention.h"

#include "floats.h"

#define BLOCK 256 /* keys whose probabilities are computed together */

typedef struct {
    float largest, total;
} softmax;

static inline __attribute__((always_inline)) void score(const float *query, int heads,
                                                        const float *key, float scaling, int size,
                                                        float scores[][BLOCK], int at) {
    for (int head = 0; head < heads; head++) {
        floats products = all(0.0f);
        for (int i = 0; i < size; i += LANES)
            products += load(query + head * size + i) * load(key + i);
        scores[head][at] = sum(products) * scaling;
    }
}

/* Scores [count] to weights e**(score - largest so far), 0 from `count` to the end of the lanes. */
static inline float weigh(float *scores, int count, softmax *state) {
    int filled = (count + LANES - 1) / LANES * LANES;
    for (int i = count; i < filled; i++) scores[i] = -__builtin_inff();
    floats most = all(state->largest), total = all(0.0f);
    for (int i = 0; i < filled; i += LANES) most = larger(load(scores + i), most);
    float bound = largest(most);
    float before[LANES];
    store(before, exponential(all(state->largest - bound)));
    for (int i = 0; i < filled; i += LANES) {
        floats weights = exponential(load(scores + i) - bound);
        store(scores + i, weights);
        total += weights;
    }
    state->largest = bound;
    state->total = state->total * before[0] + sum(total);
    return before[0];
}

static inline const float *row_at(const float *all_rows, const cache_view *cache, int kv_head,
                                  int32_t position) {
    int64_t page = cache->pages[position / cache->page_size];
    int64_t slot = page * cache->page_size + position % cache->page_size;
    return all_rows + (slot * cache->kv_heads + kv_head) * cache->head_size;
}

/* Elements [part, part + 16 lanes) of the weighted sum of values. */
static inline __attribute__((always_inline)) void add_values(const float *weights,
                                                             const float *const *values, int count,
                                                             float before, int part, int lanes,
                                                             float *to) {
    floats totals[4];
    for (int i = 0; i < lanes; i++) totals[i] = load(to + part + i * LANES) * before;
    for (int at = 0; at < count; at++)
        for (int i = 0; i < lanes; i++)
            totals[i] += load(values[at] + part + i * LANES) * weights[at];
    for (int i = 0; i < lanes; i++) store(to + part + i * LANES, totals[i]);
}

static inline __attribute__((always_inline)) void attend_sized(const float *query, int heads,
                                                               const cache_view *cache, int kv_head,
                                                               int32_t begin, int32_t end,
                                                               float scaling, float *out,
                                                               int size) {
    float scores[MOST_HEADS][BLOCK] __attribute__((aligned(64)));
    const float *values[BLOCK];
    softmax state[MOST_HEADS];
    for (int head = 0; head < heads; head++) state[head] = (softmax){-__builtin_inff(), 0.0f};
    memset(out, 0, (size_t)heads * size * sizeof *out);
    for (int32_t first = begin; first < end; first += BLOCK) {
        int count = end - first < BLOCK ? end - first : BLOCK;
        for (int at = 0; at < count; at++) {
            values[at] = row_at(cache->values, cache, kv_head, first + at);
            score(query, heads, row_at(cache->keys, cache, kv_head, first + at), scaling, size,
                  scores, at);
        }
        for (int head = 0; head < heads; head++) {
            float before = weigh(scores[head], count, &state[head]);
            float *to = out + head * size;
            int part = 0;
            for (; part + 4 * LANES <= size; part += 4 * LANES)
                add_values(scores[head], values, count, before, part, 4, to);
            for (; part < size; part += LANES)
                add_values(scores[head], values, count, before, part, 1, to);
        }
    }
    for (int head = 0; head < heads; head++)
        for (int i = 0; i < size; i += LANES)
            store(out + head * size + i, load(out + head * size + i) / state[head].total);
}

void attend(const float *query, int heads, const cache_view *cache, int kv_head, int32_t begin,
            int32_t end, float scaling, float *out) {
    switch (cache->head_size) { /* known sizes unroll */
    case 64:
        attend_sized(query, heads, cache, kv_head, begin, end, scaling, out, 64);
        break;
    case 128:
        attend_sized(query, heads, cache, kv_head, begin, end, scaling, out, 128);
        break;
    default:
        attend_sized(query, heads, cache, kv_head, begin, end, scaling, out, cache->head_size);
    }
}
