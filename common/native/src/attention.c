#include "attention.h"

#include "floats.h"

#define BLOCK 256 /* keys whose probabilities are computed together */

typedef struct {
    float largest, total;
} softmax;

/* Of one query with `count` keys; up to 15 numbers behind them are written, too. */
static inline __attribute__((always_inline)) void score(const float *query,
                                                        const float *const *keys, int count,
                                                        float scaling, int size, float *scores) {
    for (int first = 0; first < count; first += VECTOR) {
        const float *key[VECTOR];
        for (int i = 0; i < VECTOR; i++) key[i] = keys[first + i < count ? first + i : first];
        floats products[VECTOR];
        for (int i = 0; i < VECTOR; i++) products[i] = all(0.0f);
        for (int part = 0; part < size; part += VECTOR) {
            floats q = load(query + part);
#pragma GCC unroll 16
            for (int i = 0; i < VECTOR; i++)
                products[i] = multiply_add(q, load(key[i] + part), products[i]);
        }
        store(scores + first, sums(products) * scaling);
    }
}

/* Scores [count] to weights e**(score - largest so far), 0 from `count` to the end of the vectors. */
static inline float weigh(float *scores, int count, softmax *state) {
    int filled = (count + VECTOR - 1) / VECTOR * VECTOR;
    for (int i = count; i < filled; i++) scores[i] = -__builtin_inff();
    floats most = all(state->largest), total = all(0.0f);
    for (int i = 0; i < filled; i += VECTOR) most = larger(load(scores + i), most);
    float bound = largest(most);
    float before[VECTOR];
    store(before, exponential(all(state->largest - bound)));
    for (int i = 0; i < filled; i += VECTOR) {
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

/* Elements of the weighted sum of values: so many vectors of them from `part` on. */
static inline __attribute__((always_inline)) void add_values(const float *weights,
                                                             const float *const *values, int count,
                                                             float before, int part, int vectors,
                                                             float *to) {
    floats totals[8];
    for (int i = 0; i < vectors; i++) totals[i] = load(to + part + i * VECTOR) * before;
    for (int at = 0; at < count; at++) {
        floats weight = all(weights[at]);
        for (int i = 0; i < vectors; i++)
            totals[i] = multiply_add(load(values[at] + part + i * VECTOR), weight, totals[i]);
    }
    for (int i = 0; i < vectors; i++) store(to + part + i * VECTOR, totals[i]);
}

static inline __attribute__((always_inline)) void attend_sized(const float *query, int heads,
                                                               const cache_view *cache, int kv_head,
                                                               int32_t begin, int32_t end,
                                                               float scaling, float *out,
                                                               int size) {
    float scores[MOST_HEADS][BLOCK] __attribute__((aligned(64)));
    const float *keys[BLOCK], *values[BLOCK];
    softmax state[MOST_HEADS];
    for (int head = 0; head < heads; head++) state[head] = (softmax){-__builtin_inff(), 0.0f};
    memset(out, 0, (size_t)heads * size * sizeof *out);
    for (int32_t first = begin; first < end; first += BLOCK) {
        int count = end - first < BLOCK ? end - first : BLOCK;
        for (int at = 0; at < count; at++) {
            keys[at] = row_at(cache->keys, cache, kv_head, first + at);
            values[at] = row_at(cache->values, cache, kv_head, first + at);
        }
        for (int head = 0; head < heads; head++) {
            score(query + head * size, keys, count, scaling, size, scores[head]);
            float before = weigh(scores[head], count, &state[head]);
            float *to = out + head * size;
            int part = 0;
            for (; part + 8 * VECTOR <= size; part += 8 * VECTOR)
                add_values(scores[head], values, count, before, part, 8, to);
            for (; part + 4 * VECTOR <= size; part += 4 * VECTOR)
                add_values(scores[head], values, count, before, part, 4, to);
            for (; part < size; part += VECTOR)
                add_values(scores[head], values, count, before, part, 1, to);
        }
    }
    for (int head = 0; head < heads; head++)
        for (int i = 0; i < size; i += VECTOR)
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
