#include "step.h"

#include "attention.h"
#include "floats.h"

typedef struct {
    const model *model;
    const batch *batch;
} pass;

/* Zhang and Sennrich, 2019 (arXiv:1910.07467): x / sqrt(mean(x**2) + epsilon) * weight. */
static void norm(const float *x, const float *weight, int64_t width, float epsilon, float *to) {
    floats squares = all(0.0f);
    for (int64_t i = 0; i < width; i += VECTOR) squares += load(x + i) * load(x + i);
    float mean = sum(squares) / (float)width;
    float inverse = 1.0f / __builtin_sqrtf(mean + epsilon);
    for (int64_t i = 0; i < width; i += VECTOR)
        store(to + i, load(x + i) * inverse * load(weight + i));
}

/* A half's result, which lies in `normed`, to the residual, if that wasn't done by its product. */
static void add_normed(const pass *p, int64_t row, const float *weight) {
    int64_t width = p->model->width;
    float *hidden = p->batch->hidden + row * width, *result = p->batch->normed + row * width;
    norm(result, weight, width, p->model->epsilon, result);
    for (int64_t i = 0; i < width; i += VECTOR)
        store(hidden + i, load(hidden + i) + load(result + i));
}

/* Rows for the next product; `pending`: the norm behind the half before, or NULL. */
static void norm_rows(worker *self, const pass *p, const float *pending, const float *weight) {
    const batch *b = p->batch;
    int64_t width = p->model->width, inner = p->model->layers->qkv.inner;
    for (size_t row; (row = take(self, 1, (size_t)b->rows)) < (size_t)b->rows;) {
        if (pending) add_normed(p, (int64_t)row, pending);
        float *normed = b->normed + row * width;
        norm(b->hidden + row * width, weight, width, p->model->epsilon, normed);
        quantise(normed, width, inner, b->quantised, (int64_t)row);
    }
    barrier(self);
}

static void quantise_rows(worker *self, const batch *b, const float *x, int64_t width,
                          int64_t inner) {
    for (size_t row; (row = take(self, 1, (size_t)b->rows)) < (size_t)b->rows;)
        quantise(x + row * width, width, inner, b->quantised, (int64_t)row);
    barrier(self);
}

static void multiply_rows(worker *self, const batch *b, const linear *by, ending end, float *out,
                          int64_t width) {
    multiply(self, by, b->quantised, b->rows, end, out, width, width);
    barrier(self);
}

/* Su et al., 2021 (arXiv:2104.09864), halves of a head as pairs. */
static void rotate(float *x, const float *cosines, const float *sines, int64_t size) {
    int64_t half = size / 2;
    for (int64_t i = 0; i < half; i++) {
        float first = x[i], second = x[i + half];
        x[i] = first * cosines[i] - second * sines[i];
        x[i + half] = second * cosines[i] + first * sines[i];
    }
}

static void place_heads(worker *self, const pass *p, const layer *l) {
    const model *m = p->model;
    const batch *b = p->batch;
    int64_t size = m->head_size, heads = m->heads + 2 * m->kv_heads;
    size_t items = (size_t)(b->rows * heads);
    for (size_t first; (first = take(self, 8, items)) < items;)
        for (size_t item = first; item < first + 8 && item < items; item++) {
            int64_t row = (int64_t)item / heads, head = (int64_t)item % heads;
            float *x = b->qkv + (int64_t)item * size;
            int64_t kv = head - m->heads;
            if (kv < m->kv_heads) {
                const float *weight = kv < 0 ? l->query_norm : l->key_norm;
                if (weight) norm(x, weight, size, m->epsilon, x);
                int64_t at = (b->ends[row] - 1) * size / 2;
                rotate(x, b->cosines[l->angles] + at, b->sines[l->angles] + at, size);
            }
            if (kv < 0) continue;
            float *kept = kv < m->kv_heads ? l->keys : l->values;
            int64_t place = (int64_t)b->slots[row] * m->kv_heads + kv % m->kv_heads;
            memcpy(kept + place * size, x, (size_t)size * sizeof *x);
        }
    barrier(self);
}

static void attend_rows(worker *self, const pass *p, const layer *l) {
    const model *m = p->model;
    const batch *b = p->batch;
    int64_t size = m->head_size, group = m->heads / m->kv_heads;
    /* Heads that share keys are read together, unless there'd be too little to share out. */
    int64_t parts = 1;
    while (b->rows * m->kv_heads * parts < 2 * pool_threads(self->pool) && group % (2 * parts) == 0)
        parts *= 2;
    if (parts == 1 && b->rows * m->kv_heads < pool_threads(self->pool)) parts = group;
    int64_t heads = group / parts, items = b->rows * m->kv_heads * parts;
    for (int64_t item; (item = (int64_t)take(self, 1, (size_t)items)) < items;) {
        int64_t row = item / (m->kv_heads * parts), place = item % (m->kv_heads * parts);
        cache_view cache = {.keys = l->keys,
                            .values = l->values,
                            .pages = b->pages + b->tables[row],
                            .page_size = (int32_t)b->page_size,
                            .kv_heads = (int32_t)m->kv_heads,
                            .head_size = (int32_t)size};
        int32_t end = b->ends[row];
        int32_t begin = l->window && end > l->window ? end - (int32_t)l->window : 0;
        int64_t head = place * heads;
        attend(b->qkv + (row * (m->heads + 2 * m->kv_heads) + head) * size, (int)heads, &cache,
               (int)(place / parts), begin, end, m->scaling,
               b->attended + (row * m->heads + head) * size);
    }
    barrier(self);
}

static void add_product(worker *self, const pass *p, const linear *by, const float *after) {
    float *to = after ? p->batch->normed : p->batch->hidden;
    multiply_rows(self, p->batch, by, after ? STORED : ADDED, to, p->model->width);
}

static void last_rows(worker *self, const pass *p, const float *pending) {
    const model *m = p->model;
    const batch *b = p->batch;
    for (size_t i; (i = take(self, 1, (size_t)b->wanted_rows)) < (size_t)b->wanted_rows;) {
        int64_t row = b->wanted[i];
        if (pending) add_normed(p, row, pending);
        float *normed = b->normed + row * m->width;
        norm(b->hidden + row * m->width, m->last_norm, m->width, m->epsilon, normed);
        quantise(normed, m->width, m->head.inner, b->quantised, (int64_t)i);
    }
    barrier(self);
    multiply(self, &m->head, b->quantised, b->wanted_rows, STORED, b->logits, m->vocab, m->vocab);
}

static void run_layers(worker *self, void *argument) {
    const pass *p = argument;
    const model *m = p->model;
    const batch *b = p->batch;
    const float *pending = NULL;
    for (const layer *l = m->layers; l < m->layers + m->depth; l++) {
        norm_rows(self, p, pending, l->before_attention);
        multiply_rows(self, b, &l->qkv, STORED, b->qkv,
                      (m->heads + 2 * m->kv_heads) * m->head_size);
        place_heads(self, p, l);
        attend_rows(self, p, l);
        quantise_rows(self, b, b->attended, m->heads * m->head_size, l->out.inner);
        add_product(self, p, &l->out, l->after_attention);
        norm_rows(self, p, l->after_attention, l->before_mlp);
        multiply_rows(self, b, &l->gates, (ending)m->activation, b->gated, m->mlp_width);
        quantise_rows(self, b, b->gated, m->mlp_width, l->down.inner);
        add_product(self, p, &l->down, l->after_mlp);
        pending = l->after_mlp;
    }
    last_rows(self, p, pending);
}

void step(pool *pool, const model *model, const batch *batch) {
    pass p = {model, batch};
    pool_run(pool, run_layers, &p);
}

typedef struct {
    const linear *by;
    const float *x;
    int64_t inner_width, rows, width;
    activations scratch;
    float *out;
} one_product;

static void run_product(worker *self, void *argument) {
    const one_product *p = argument;
    for (size_t row; (row = take(self, 1, (size_t)p->rows)) < (size_t)p->rows;)
        quantise(p->x + (int64_t)row * p->inner_width, p->inner_width, p->by->inner, p->scratch,
                 (int64_t)row);
    barrier(self);
    multiply(self, p->by, p->scratch, p->rows, STORED, p->out, p->width, p->width);
}

void product(pool *pool, const linear *by, const float *x, int64_t inner_width, int64_t rows,
             activations scratch, float *out, int64_t width) {
    one_product p = {by, x, inner_width, rows, width, scratch, out};
    pool_run(pool, run_product, &p);
}

int64_t interface_version(void) { return 1; }
