/* Sixteen floats at a time, in an order that no compiler and no instruction set changes.
 *
 * Every operation here is one that IEEE 754 defines to the bit (products and sums are fused where
 * the source says so: the build has -ffp-contract=off and never -ffast-math), so a value is the same
 * on every machine.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__FMA__)
#include <immintrin.h>
#endif

#define VECTOR 16

typedef float floats __attribute__((vector_size(64)));
typedef int32_t ints __attribute__((vector_size(64)));
typedef int8_t narrow __attribute__((vector_size(16)));

static inline floats load(const float *from) {
    floats x;
    memcpy(&x, from, sizeof x);
    return x;
}

static inline void store(float *to, floats x) { memcpy(to, &x, sizeof x); }

static inline ints load_ints(const int32_t *from) {
    ints x;
    memcpy(&x, from, sizeof x);
    return x;
}

static inline floats all(float x) { return x - (floats){0}; }

/* a * b + c, rounded once. */
static inline floats multiply_add(floats a, floats b, floats c) {
#if defined(__AVX512F__)
    return (floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    __m256 x[2], y[2], z[2];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    memcpy(z, &c, sizeof z);
    for (int half = 0; half < 2; half++) z[half] = _mm256_fmadd_ps(x[half], y[half], z[half]);
    memcpy(&c, z, sizeof z);
    return c;
#else
    for (int i = 0; i < VECTOR; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#endif
}

static inline floats to_floats(ints x) { return __builtin_convertvector(x, floats); }

/* Of whole numbers that fit. By way of 32 bits, which every processor does sixteen at a time. */
static inline narrow to_narrow(floats x) {
    ints whole = __builtin_convertvector(x, ints);
    return __builtin_convertvector(whole, narrow);
}

static inline ints bits_of(floats x) { return (ints)x; }

static inline floats choose(ints where, floats yes, floats no) {
    return (floats)((where & bits_of(yes)) | (~where & bits_of(no)));
}

static inline floats larger(floats a, floats b) { return choose(a > b, a, b); }

static inline floats smaller(floats a, floats b) { return choose(a < b, a, b); }

/* Halves are added until one is left. */
static inline float sum(floats x) {
    float element[VECTOR];
    store(element, x);
    for (int half = VECTOR / 2; half; half /= 2)
        for (int i = 0; i < half; i++) element[i] += element[i + half];
    return element[0];
}

#define EVERY(a, b, i, j, k, l, m, n, o, p)                                                        \
    __builtin_shufflevector(a, b, i, j, k, l, m, n, o, p, i + 16, j + 16, k + 16, l + 16, m + 16,  \
                            n + 16, o + 16, p + 16)

/* The sums of sixteen vectors at once, with the bits that `sum` gives each: two of them are halved
 * into one, then two of these, until one is left. */
static inline floats sums(floats x[VECTOR]) {
    for (int i = 0; i < 8; i++)
        x[i] = EVERY(x[2 * i], x[2 * i + 1], 0, 1, 2, 3, 4, 5, 6, 7) +
               EVERY(x[2 * i], x[2 * i + 1], 8, 9, 10, 11, 12, 13, 14, 15);
    for (int i = 0; i < 4; i++)
        x[i] = EVERY(x[2 * i], x[2 * i + 1], 0, 1, 2, 3, 8, 9, 10, 11) +
               EVERY(x[2 * i], x[2 * i + 1], 4, 5, 6, 7, 12, 13, 14, 15);
    for (int i = 0; i < 2; i++)
        x[i] = EVERY(x[2 * i], x[2 * i + 1], 0, 1, 4, 5, 8, 9, 12, 13) +
               EVERY(x[2 * i], x[2 * i + 1], 2, 3, 6, 7, 10, 11, 14, 15);
    return EVERY(x[0], x[1], 0, 2, 4, 6, 8, 10, 12, 14) +
           EVERY(x[0], x[1], 1, 3, 5, 7, 9, 11, 13, 15);
}

static inline float largest(floats x) {
    float element[VECTOR];
    store(element, x);
    for (int half = VECTOR / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            element[i] = element[i + half] > element[i] ? element[i + half] : element[i];
    return element[0];
}

/* To the nearest whole number, ties to even; for |x| < 2**22. */
static inline floats rounded(floats x) {
    const floats magic = all(12582912.0f); /* 1.5 * 2**23 */
    return (x + magic) - magic;
}

/* e**x within 2 units in the last place; 0 below -87.3, and never more than e**88. NaN stays NaN.
 * Cody and Waite's reduction, and the polynomial of Cephes' expf. */
static inline floats exponential(floats x) {
    const floats least = all(-87.3f), most = all(88.0f);
    floats clamped = larger(smaller(x, most), least);
    floats n = rounded(clamped * 1.44269504088896341f);
    floats r = clamped - n * 0.693359375f - n * -2.12194440e-4f;
    floats p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    ints power = (__builtin_convertvector(n, ints) + 127) << 23;
    floats result = p * (floats)power;
    result = choose(x < least, all(0.0f), result);
    return choose(x != x, x, result);
}

static inline floats tanh_of(floats x) {
    floats bounded = larger(smaller(x, all(15.0f)), all(-15.0f)); /* 1 in float32 from 9.1 on */
    floats e = exponential(bounded + bounded);
    return choose(x != x, x, (e - 1.0f) / (e + 1.0f));
}
