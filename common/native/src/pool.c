#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* Between phases of a step threads spin, since the next one is microseconds away; not so long that
 * they'd burn a core while someone else has another's. */
enum { SPINS = 4000 };

struct pool {
    _Atomic int threads;
    int spins; /* none if there are more threads than cores */
    _Atomic int arrived;
    _Atomic unsigned generation;
    _Atomic size_t next[2]; /* items taken, of this phase and of the one after it */
    int asleep;             /* under lock */
    int ending;
    phases work;
    void *argument;
    pthread_mutex_t lock;
    pthread_cond_t woken;
    worker *workers;
    pthread_t *ids;
};

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void wait_beyond(pool *pool, unsigned generation) {
    for (int i = 0; i < pool->spins; i++) {
        if (atomic_load_explicit(&pool->generation, memory_order_acquire) != generation) return;
        pause_briefly();
    }
    pthread_mutex_lock(&pool->lock);
    pool->asleep++;
    while (atomic_load(&pool->generation) == generation)
        pthread_cond_wait(&pool->woken, &pool->lock);
    pool->asleep--;
    pthread_mutex_unlock(&pool->lock);
}

static void meet(pool *pool) {
    unsigned generation = atomic_load(&pool->generation);
    if (atomic_fetch_add(&pool->arrived, 1) + 1 < pool->threads) {
        wait_beyond(pool, generation);
        return;
    }
    atomic_store(&pool->arrived, 0);
    atomic_store(&pool->next[(generation + 1) & 1], 0);
    pthread_mutex_lock(&pool->lock);
    atomic_store_explicit(&pool->generation, generation + 1, memory_order_release);
    if (pool->asleep) pthread_cond_broadcast(&pool->woken);
    pthread_mutex_unlock(&pool->lock);
}

void barrier(worker *self) { meet(self->pool); }

size_t take(worker *self, size_t count, size_t total) {
    pool *pool = self->pool;
    unsigned phase = atomic_load_explicit(&pool->generation, memory_order_relaxed) & 1;
    size_t begin = atomic_fetch_add_explicit(&pool->next[phase], count, memory_order_relaxed);
    return begin < total ? begin : total;
}

static void *work_until_the_end(void *argument) {
    worker *self = argument;
    pool *pool = self->pool;
    for (;;) {
        meet(pool); /* begin */
        if (pool->ending) return NULL;
        pool->work(self, pool->argument);
        meet(pool); /* end */
    }
}

void pool_run(pool *pool, phases work, void *argument) {
    pool->work = work;
    pool->argument = argument;
    meet(pool);
    work(&pool->workers[0], argument);
    meet(pool);
}

int pool_threads(const pool *pool) { return pool->threads; }

pool *pool_create(int threads) {
    pool *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->threads = 1;
    made->workers = calloc((size_t)threads, sizeof *made->workers);
    made->ids = calloc((size_t)threads, sizeof *made->ids);
    if (!made->workers || !made->ids) {
        pool_destroy(made);
        return NULL;
    }
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->woken, NULL);
    made->threads = threads;
    made->spins = threads <= sysconf(_SC_NPROCESSORS_ONLN) ? SPINS : 0;
    for (int i = 0; i < threads; i++) made->workers[i] = (worker){made, i};
    for (int i = 1; i < threads; i++)
        if (pthread_create(&made->ids[i], NULL, work_until_the_end, &made->workers[i])) {
            made->threads = i; /* as many as the system gives; none waits for those that aren't */
            break;
        }
    return made;
}

void pool_destroy(pool *pool) {
    if (pool->threads > 1) {
        pool->ending = 1;
        meet(pool);
        for (int i = 1; i < pool->threads; i++) pthread_join(pool->ids[i], NULL);
    }
    free(pool->workers);
    free(pool->ids);
    free(pool);
}
