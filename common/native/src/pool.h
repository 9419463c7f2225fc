/* Threads that run one function together, with barriers between its phases. */
#pragma once

#include <stddef.h>

typedef struct pool pool;

/* What one of the threads gets. */
typedef struct {
    pool *pool;
    int thread;
} worker;

typedef void (*phases)(worker *self, void *argument);

pool *pool_create(int threads); /* or as many as the system gives; NULL: it has no memory */
void pool_destroy(pool *pool);
int pool_threads(const pool *pool);

/* Run `work` on all threads, the caller's own included; returns when all are done. */
void pool_run(pool *pool, phases work, void *argument);

/* Wait until every thread is here. */
void barrier(worker *self);

/* Take the next `count` of `total` items of this phase, whoever is free: the first of them, or
 * `total` if none is left. A barrier begins a new phase. */
size_t take(worker *self, size_t count, size_t total);
