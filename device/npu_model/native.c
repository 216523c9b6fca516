/* Loops that NumPy has no fast form of: 16-bit float conversions, window gathering, depthwise products and the PPE.
 *
 * Built on first use by native.py; every function has a NumPy form beside its caller that gives the same bits. So: no
 * contraction into fused operations (-ffp-contract=off), no reassociation, and one order of every sum.
 */
#include "native.h"
#include <math.h>
#include <string.h>

static inline float bits_f32(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint32_t f32_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }

/* ---- scalar conversions ------------------------------------------------------------------------------------- */

static inline float f16_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff;
    if (magnitude > 0x7c00) /* NaN: quiet, payload kept */
        return bits_f32(sign | 0x7fc00000 | magnitude << 13);
    if (magnitude == 0x7c00)
        return bits_f32(sign | 0x7f800000);
    /* exponent rebias by a multiplication with a power of two: exact, also for subnormals */
    return bits_f32(sign | f32_bits(bits_f32(magnitude << 13) * 0x1p112f));
}

static inline uint16_t f32_f16(float f)
{
    uint32_t u = f32_bits(f), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x47800000) /* 65536 and more; the rounding below takes 65520 to infinity too */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000)  /* subnormal result: adding 0.5 leaves the rounded value in the low bits */
        return (uint16_t)(sign | (f32_bits(bits_f32(magnitude) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

static inline float bf16_f32(uint16_t b)
{
    uint32_t u = (uint32_t)b << 16;
    return bits_f32((u & 0x7fffffff) > 0x7f800000 ? u | 0x400000 : u);
}

static inline uint16_t f32_bf16(float f)
{
    uint32_t u = f32_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* ---- rows of one type to float or double; the F16C forms are picked at run time ------------------------------- */

#if defined(__x86_64__)
#include <immintrin.h>
#define X86_AVX2 __attribute__((target("avx2,f16c,fma")))

int npu_has_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") && __builtin_cpu_supports("fma");
}

int npu_has_avx512(void)
{
    return npu_has_avx2() && __builtin_cpu_supports("avx512f");
}

X86_AVX2 static void f16_f32_avx2(const uint16_t *in, float *out, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in + i))));
    for (; i < n; i++)
        out[i] = f16_f32(in[i]);
}

X86_AVX2 static void f16_f64_avx2(const uint16_t *in, double *out, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 f = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(in + i)));
        _mm256_storeu_pd(out + i, _mm256_cvtps_pd(_mm256_castps256_ps128(f)));
        _mm256_storeu_pd(out + i + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(f, 1)));
    }
    for (; i < n; i++)
        out[i] = f16_f32(in[i]);
}

X86_AVX2 static void f32_f16_avx2(const float *in, uint16_t *out, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++)
        out[i] = f32_f16(in[i]);
}
#else
#define X86_AVX2
int npu_has_avx2(void) { return 0; }
int npu_has_avx512(void) { return 0; }
#define f16_f32_avx2 npu_f16_f32_plain
#define f16_f64_avx2 npu_f16_f64_plain
#define f32_f16_avx2 npu_f32_f16_plain
#endif

static void npu_f16_f32_plain(const uint16_t *in, float *out, size_t n) { for (size_t i = 0; i < n; i++) out[i] = f16_f32(in[i]); }
static void npu_f16_f64_plain(const uint16_t *in, double *out, size_t n) { for (size_t i = 0; i < n; i++) out[i] = f16_f32(in[i]); }
static void npu_f32_f16_plain(const float *in, uint16_t *out, size_t n) { for (size_t i = 0; i < n; i++) out[i] = f32_f16(in[i]); }

void npu_f16_to_f32(const uint16_t *in, float *out, size_t n, int avx2) { (avx2 ? f16_f32_avx2 : npu_f16_f32_plain)(in, out, n); }
void npu_f16_to_f64(const uint16_t *in, double *out, size_t n, int avx2) { (avx2 ? f16_f64_avx2 : npu_f16_f64_plain)(in, out, n); }
void npu_f32_to_f16(const float *in, uint16_t *out, size_t n, int avx2) { (avx2 ? f32_f16_avx2 : npu_f32_f16_plain)(in, out, n); }
/* How many of n fp16 values are infinite. */
int64_t npu_f16_infinities(const uint16_t *in, size_t n)
{
    int64_t count = 0;
    while (n) {
        size_t part = n < 32768 ? n : 32768;
        uint16_t found = 0; /* as wide as the values, so that lanes add up */
        for (size_t i = 0; i < part; i++)
            found += (uint16_t)((in[i] & 0x7fff) == 0x7c00);
        count += found;
        in += part;
        n -= part;
    }
    return count;
}
void npu_bf16_to_f32(const uint16_t *in, float *out, size_t n) { for (size_t i = 0; i < n; i++) out[i] = bf16_f32(in[i]); }
void npu_bf16_to_f64(const uint16_t *in, double *out, size_t n) { for (size_t i = 0; i < n; i++) out[i] = bf16_f32(in[i]); }
void npu_f32_to_bf16(const float *in, uint16_t *out, size_t n) { for (size_t i = 0; i < n; i++) out[i] = f32_bf16(in[i]); }

void npu_row_f64(const uint8_t *in, double *out, size_t n, int dtype, int32_t zero_point, int avx2)
{
    switch (dtype) {
    case F16:  npu_f16_to_f64((const uint16_t *)in, out, n, avx2); break;
    case BF16: npu_bf16_to_f64((const uint16_t *)in, out, n); break;
    case F32:  for (size_t i = 0; i < n; i++) out[i] = ((const float *)in)[i]; break;
    case I8:   for (size_t i = 0; i < n; i++) out[i] = (int8_t)in[i] - zero_point; break;
    default:   for (size_t i = 0; i < n; i++) out[i] = in[i] - zero_point; break;
    }
}

void npu_row_f32(const uint8_t *in, float *out, size_t n, int dtype, int32_t zero_point, int avx2)
{
    switch (dtype) {
    case F16:  npu_f16_to_f32((const uint16_t *)in, out, n, avx2); break;
    case BF16: npu_bf16_to_f32((const uint16_t *)in, out, n); break;
    case F32:  memcpy(out, in, n * sizeof *out); break;
    case I8:   for (size_t i = 0; i < n; i++) out[i] = (float)((int8_t)in[i] - zero_point); break;
    default:   for (size_t i = 0; i < n; i++) out[i] = (float)(in[i] - zero_point); break;
    }
}

/* ---- windows -------------------------------------------------------------------------------------------------- */

/* Neighbouring columns of a row that lie side by side in memory are converted at once. */
void npu_window_row(const struct npu_window *w, int64_t pixel, int64_t first, int64_t n, void *out, int wide, int avx2)
{
    int64_t size = w->dtype == F32 ? 4 : w->dtype <= BF16 ? 2 : 1, unit = wide ? 8 : 4, row = w->kernel_x * w->channels;
    int64_t y = w->first_y + pixel / w->out_x * w->step_y, x = w->first_x + pixel % w->out_x * w->step_x, part;
    int whole = w->dilation_x == 1 && w->stride_x == w->channels * size && x >= 0 && x + w->kernel_x <= w->in_x;
    uint8_t *to = out;
    y += first / row * w->dilation_y;
    for (int64_t at = first % row; n > 0; n -= part, to += part * unit, at += part) {
        if (at == row)
            at = 0, y += w->dilation_y;
        int64_t column = whole ? 0 : at / w->channels, within = at - column * w->channels;
        part = (whole ? row : w->channels) - within;
        part = part < n ? part : n;
        int64_t reached = x + column * w->dilation_x;
        if (y < 0 || y >= w->in_y || (!whole && (reached < 0 || reached >= w->in_x))) {
            memset(to, 0, (size_t)(part * unit));
            continue;
        }
        const uint8_t *from = w->act + y * w->stride_y + reached * w->stride_x + within * size;
        if (wide) npu_row_f64(from, (double *)to, (size_t)part, w->dtype, w->zero_point, avx2);
        else npu_row_f32(from, (float *)to, (size_t)part, w->dtype, w->zero_point, avx2);
    }
}

void npu_im2col(const struct npu_window *w, int64_t begin, int64_t end, void *out, int wide, int avx2)
{
    int64_t k = w->kernel_y * w->kernel_x * w->channels;
    for (int64_t pixel = begin; pixel < end; pixel++)
        npu_window_row(w, pixel, 0, k, (uint8_t *)out + (pixel - begin) * k * (wide ? 8 : 4), wide, avx2);
}

/* One output pixel: acc[z] = sum over the taps, in order, of in[t][z] * weights[t][z]; weights NULL sums in[t][z]. */
typedef double doubles __attribute__((vector_size(32), aligned(8), may_alias));
#define DEPTHWISE_BODY                                                                                                 \
    int64_t z = 0;                                                                                                     \
    for (; z + 16 <= channels; z += 16) {                                                                              \
        doubles s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};                                                                \
        for (int64_t t = 0; weights && t < taps; t++) {                                                                \
            const doubles *x = (const doubles *)(in[t] + z), *y = (const doubles *)(weights[t] + z);                   \
            s0 += x[0] * y[0], s1 += x[1] * y[1], s2 += x[2] * y[2], s3 += x[3] * y[3];                                \
        }                                                                                                              \
        for (int64_t t = 0; !weights && t < taps; t++) {                                                               \
            const doubles *x = (const doubles *)(in[t] + z);                                                           \
            s0 += x[0], s1 += x[1], s2 += x[2], s3 += x[3];                                                            \
        }                                                                                                              \
        doubles *to = (doubles *)(acc + z);                                                                            \
        to[0] = s0, to[1] = s1, to[2] = s2, to[3] = s3;                                                                \
    }                                                                                                                  \
    for (; z < channels; z++) {                                                                                        \
        double sum = 0;                                                                                                \
        for (int64_t t = 0; t < taps; t++) sum += weights ? in[t][z] * weights[t][z] : in[t][z];                       \
        acc[z] = sum;                                                                                                  \
    }

#define DEPTHWISE_ARGUMENTS const double **in, const double **weights, int64_t taps, double *acc, int64_t channels
X86_AVX2 static void depthwise_pixel_avx2(DEPTHWISE_ARGUMENTS) { DEPTHWISE_BODY }
static void depthwise_pixel_plain(DEPTHWISE_ARGUMENTS) { DEPTHWISE_BODY }

/* acc[pixel][channel] = sum over the taps inside the input, row-major, of act * weights[tap][channel]; weights NULL sums
 * the window. Input rows are converted once: `rows` holds `row_count` of them, columns [low, high] each, row y in slot
 * y % row_count; row_count is at least the rows between the first and the last tap, or in_y. `held` [row_count] starts
 * as -1, `taps` has room for 2 * kernel_y * kernel_x pointers. */
void npu_depthwise(const struct npu_window *w, int64_t out_y, const double *weights, double *acc, double *rows, int64_t row_count,
                   int64_t *held, void *taps, int avx2)
{
    int64_t last = w->first_x + (w->out_x - 1) * w->step_x + (w->kernel_x - 1) * w->dilation_x;
    int64_t low = w->first_x > 0 ? w->first_x : 0, high = last < w->in_x - 1 ? last : w->in_x - 1;
    int64_t size = w->dtype == F32 ? 4 : w->dtype <= BF16 ? 2 : 1, channels = w->channels, row = (high - low + 1) * channels;
    const double **in = taps, **tap_weights = in + w->kernel_y * w->kernel_x;
    for (int64_t oy = 0; oy < out_y; oy++) {
        int64_t y0 = w->first_y + oy * w->step_y;
        for (int64_t ky = 0; ky < w->kernel_y && row > 0; ky++) {
            int64_t y = y0 + ky * w->dilation_y;
            if (y < 0 || y >= w->in_y || held[y % row_count] == y)
                continue;
            double *to = rows + y % row_count * row;
            held[y % row_count] = y;
            if (w->stride_x == channels * size)
                npu_row_f64(w->act + y * w->stride_y + low * w->stride_x, to, (size_t)row, w->dtype, w->zero_point, avx2);
            else
                for (int64_t x = low; x <= high; x++)
                    npu_row_f64(w->act + y * w->stride_y + x * w->stride_x, to + (x - low) * channels, (size_t)channels, w->dtype, w->zero_point, avx2);
        }
        for (int64_t ox = 0; ox < w->out_x; ox++, acc += channels) {
            int64_t count = 0, x0 = w->first_x + ox * w->step_x;
            for (int64_t ky = 0; ky < w->kernel_y; ky++) {
                int64_t y = y0 + ky * w->dilation_y;
                if (y < 0 || y >= w->in_y)
                    continue;
                for (int64_t kx = 0; kx < w->kernel_x; kx++) {
                    int64_t x = x0 + kx * w->dilation_x;
                    if (x < 0 || x >= w->in_x)
                        continue;
                    in[count] = rows + y % row_count * row + (x - low) * channels;
                    tap_weights[count++] = weights ? weights + (ky * w->kernel_x + kx) * channels : NULL;
                }
            }
            (avx2 ? depthwise_pixel_avx2 : depthwise_pixel_plain)(in, weights ? tap_weights : NULL, count, acc, channels);
        }
    }
}

/* ---- exact sums ------------------------------------------------------------------------------------------------ */

/* At least the Euclidean norm of a row: rounding errors are covered. */
static inline __attribute__((always_inline)) double norm(const double *row, int64_t k)
{
    double s[16] = {0}, sum = 0;
    int64_t z = 0;
    for (; z + 16 <= k; z += 16)
        for (int j = 0; j < 16; j++) s[j] += row[z + j] * row[z + j];
    for (; z < k; z++) s[0] += row[z] * row[z];
    for (int j = 0; j < 16; j++) sum += s[j];
    return sqrt(sum) * (1 + 0x1p-20);
}

X86_AVX2 static void norms_avx2(const double *m, int64_t rows, int64_t k, double *out)
{
    for (int64_t i = 0; i < rows; i++) out[i] = norm(m + i * k, k);
}

static void norms_plain(const double *m, int64_t rows, int64_t k, double *out)
{
    for (int64_t i = 0; i < rows; i++) out[i] = norm(m + i * k, k);
}

void npu_norms(const double *m, int64_t rows, int64_t k, double *out, int avx2) { (avx2 ? norms_avx2 : norms_plain)(m, rows, k, out); }

/* Sum of a[i] * b[i * step] without any error, as a double rounded to odd: its rounding to float is that of the exact sum. The
 * factors are float values, so a product is exact in double; it is added to a fixed-point number of 24 limbs of 32 bits
 * (carries kept apart until the end) whose lowest bit is 2^-400. k at most 2^30. */
static double exact_dot_limbs(const double *a, const double *b, int64_t step, int64_t k)
{
    enum { LIMBS = 24, LOWEST = -400 };
    int64_t limb[LIMBS] = {0};
    for (int64_t i = 0; i < k; i++) {
        double p = a[i] * b[i * step];
        uint64_t u;
        memcpy(&u, &p, 8);
        if (!(u << 1))
            continue;
        int at = (int)(u >> 52 & 0x7ff) - 1075 - LOWEST;
        unsigned __int128 x = (unsigned __int128)((u & 0xfffffffffffff) | 0x10000000000000) << (at & 31);
        int64_t sign = u >> 63 ? -1 : 1, *to = limb + (at >> 5);
        to[0] += sign * (int64_t)(uint32_t)x;
        to[1] += sign * (int64_t)(uint32_t)(x >> 32);
        to[2] += sign * (int64_t)(uint32_t)(x >> 64);
    }
    int negative = 0, top;
    for (int pass = 0; pass < 2; pass++) {
        int64_t carry = 0;
        for (int i = 0; i < LIMBS; i++) {
            carry += limb[i];
            limb[i] = carry & 0xffffffff;
            carry >>= 32;
        }
        if (!carry)
            break;
        negative = 1; /* the carry is -1: two's complement */
        for (int i = 0; i < LIMBS; i++)
            limb[i] = -limb[i];
        limb[LIMBS - 1] += (int64_t)1 << 32; /* the negated carry */
    }
    for (top = LIMBS - 1; top >= 0 && !limb[top]; top--)
        ;
    if (top < 0)
        return 0;
    unsigned __int128 x = (unsigned __int128)(uint64_t)limb[top] << 64;
    uint64_t sticky = 0;
    if (top >= 1) x |= (unsigned __int128)(uint64_t)limb[top - 1] << 32;
    if (top >= 2) x |= (uint64_t)limb[top - 2];
    for (int i = 0; i < top - 2; i++)
        sticky |= (uint64_t)limb[i];
    int shift = 64 + 31 - __builtin_clz((uint32_t)limb[top]) - 52;
    if (x & (((unsigned __int128)1 << shift) - 1))
        sticky = 1;
    double value = ldexp((double)((uint64_t)(x >> shift) | (sticky != 0)), shift + 32 * (top - 2) + LOWEST);
    return negative ? -value : value;
}

/* The same where every product is below 2^32 and a multiple of 2^-48, as those of two finite fp16 values are, and k at most
 * 2^13: parts above and below 2^-8 add without error in double. */
typedef double four __attribute__((vector_size(32)));
static inline __attribute__((always_inline)) double exact_dot_f16(const double *a, const double *b, int64_t step, int64_t k)
{
    const double shift = 0x1.8p44; /* its last bit is 2^-8 */
    four high = {0}, low = {0};
    int64_t i = 0;
    for (; i + 4 <= k; i += 4) {
        four x, y = {b[i * step], b[(i + 1) * step], b[(i + 2) * step], b[(i + 3) * step]};
        memcpy(&x, a + i, sizeof x);
        four p = x * y, top = (p + shift) - shift;
        high += top, low += p - top;
    }
    double h = high[0] + high[1] + high[2] + high[3], l = low[0] + low[1] + low[2] + low[3];
    for (; i < k; i++) {
        double p = a[i] * b[i * step], top = (p + shift) - shift;
        h += top, l += p - top;
    }
    double sum = h + l, part = sum - h, rest = (h - (sum - part)) + (l - part); /* sum + rest is exact */
    uint64_t u;
    memcpy(&u, &sum, 8);
    if (rest != 0 && !(u & 1)) /* round to odd: towards what is left */
        u += (rest > 0) == (sum > 0) ? 1 : -1;
    memcpy(&sum, &u, 8);
    return sum;
}

double npu_exact_dot(const double *a, const double *b, int64_t step, int64_t k, int f16)
{
    return f16 && k <= 1 << 13 ? exact_dot_f16(a, b, step, k) : exact_dot_limbs(a, b, step, k);
}

#define SETTLE_BODY                                                                                                    \
    double unit = (double)k * (0x1p-53 + 0x1p-73), largest = 0;                                                        \
    for (int64_t z = 0; z < columns; z++) largest = b_norms[z] > largest ? b_norms[z] : largest;                       \
    for (int64_t i = 0; i < rows; i++) {                                                                               \
        double a_norm = norm(a + i * k, k), reach = unit * a_norm;                                                     \
        for (int64_t z = 0; z < columns && !(a_norm * largest <= exact_below); z += 64) {                              \
            int64_t n = columns - z < 64 ? columns - z : 64;                                                           \
            double *v = acc + i * stride + z;                                                                          \
            int doubtful = 0;                                                                                          \
            for (int64_t j = 0; j < n; j++) {                                                                          \
                double bound = reach * b_norms[z + j];                                                                 \
                doubtful |= (float)(v[j] - bound) != (float)(v[j] + bound);                                            \
            }                                                                                                          \
            for (int64_t j = 0; doubtful && j < n; j++) {                                                              \
                double bound = reach * b_norms[z + j];                                                                 \
                if (isfinite(v[j]) && isfinite(bound) && (float)(v[j] - bound) != (float)(v[j] + bound))               \
                    v[j] = npu_exact_dot(a + i * k, b + (z + j) * k, 1, k, exact_below > 0);                           \
            }                                                                                                          \
        }                                                                                                              \
    }

#define SETTLE_ARGUMENTS double *acc, int64_t stride, const double *a, int64_t rows, \
    const double *b, const double *b_norms, int64_t columns, int64_t k, double exact_below
X86_AVX2 static void settle_avx2(SETTLE_ARGUMENTS) { SETTLE_BODY }
static void settle_plain(SETTLE_ARGUMENTS) { SETTLE_BODY }
void npu_settle(SETTLE_ARGUMENTS, int avx2) { (avx2 ? settle_avx2 : settle_plain)(acc, stride, a, rows, b, b_norms, columns, k, exact_below); }

/* ---- PPE ------------------------------------------------------------------------------------------------------ */

static inline __attribute__((always_inline)) float ppe_value(const struct npu_ppe *p, float v, float scale, float bias)
{
    v = v * scale;
    v = v + bias;
    float slope = v * p->lrelu_slope;
    v = p->fn == 0 ? v : v < 0 ? (p->fn == 1 ? 0.0f : slope) : v;
    v = v < p->clamp_low ? p->clamp_low : v;
    return v > p->clamp_high ? p->clamp_high : v;
}

/* The last step of integers: round to nearest even, add the zero point, saturate, NaN becomes 0. In double, where int32 is exact. */
static inline double saturate(const struct npu_ppe *p, float v, double low, double high)
{
    double r = rint((double)v) + p->zero_point;
    return r != r ? 0 : r < low ? low : r > high ? high : r;
}

static inline float canonical(float v) { return v == v ? v : bits_f32(0x7fc00000); }

#define PPE_BODY(ROW_F16)                                                                                              \
    float row[256];                                                                                                    \
    for (int64_t r = 0; r < rows; r++)                                                                                 \
        for (int64_t z = 0; z < channels; z += 256) {                                                                  \
            int64_t n = channels - z < 256 ? channels - z : 256, at = r * out_stride + z;                               \
            if (wide) for (int64_t i = 0; i < n; i++) row[i] = (float)((const double *)acc)[r * acc_stride + z + i];   \
            else memcpy(row, (const float *)acc + r * acc_stride + z, (size_t)n * 4);                                  \
            if (p->offset) for (int64_t i = 0; i < n; i++) {                                                           \
                double sum = wide ? ((const double *)acc)[r * acc_stride + z + i] : (double)row[i];                    \
                row[i] = (float)(int32_t)((uint32_t)(int32_t)sum + (uint32_t)p->offset[z + i]);                        \
            }                                                                                                          \
            if (p->scale) for (int64_t i = 0; i < n; i++) row[i] = ppe_value(p, row[i], p->scale[z + i], p->bias[z + i]); \
            else for (int64_t i = 0; i < n; i++) row[i] = ppe_value(p, row[i], p->uniform_scale, p->uniform_bias);     \
            switch (p->dtype) {                                                                                        \
            case F16: for (int64_t i = 0; i < n; i++) row[i] = canonical(row[i]); ROW_F16(row, (uint16_t *)out + at, (size_t)n); break; \
            case BF16: for (int64_t i = 0; i < n; i++) ((uint16_t *)out)[at + i] = f32_bf16(canonical(row[i])); break; \
            case F32: for (int64_t i = 0; i < n; i++) ((float *)out)[at + i] = canonical(row[i]); break;               \
            case I8: for (int64_t i = 0; i < n; i++) ((int8_t *)out)[at + i] = (int8_t)saturate(p, row[i], -128, 127); break; \
            case U8: for (int64_t i = 0; i < n; i++) ((uint8_t *)out)[at + i] = (uint8_t)saturate(p, row[i], 0, 255); break; \
            case I16: for (int64_t i = 0; i < n; i++) ((int16_t *)out)[at + i] = (int16_t)saturate(p, row[i], -32768, 32767); break; \
            case U16: for (int64_t i = 0; i < n; i++) ((uint16_t *)out)[at + i] = (uint16_t)saturate(p, row[i], 0, 65535); break; \
            default: for (int64_t i = 0; i < n; i++) ((int32_t *)out)[at + i] = (int32_t)saturate(p, row[i], -2147483648.0, 2147483647.0); break; \
            }                                                                                                          \
        }

#define PPE_ARGUMENTS const struct npu_ppe *p, const void *acc, int64_t acc_stride, int wide, int64_t rows, int64_t channels, \
    void *out, int64_t out_stride
X86_AVX2 static void ppe_avx2(PPE_ARGUMENTS) { PPE_BODY(f32_f16_avx2) }
static void ppe_plain(PPE_ARGUMENTS) { PPE_BODY(npu_f32_f16_plain) }

void npu_ppe_run(PPE_ARGUMENTS, int avx2)
{
    (avx2 ? ppe_avx2 : ppe_plain)(p, acc, acc_stride, wide, rows, channels, out, out_stride);
}

/* ---- element-wise operations ------------------------------------------------------------------------------------ */

/* out [in_y][in_x][channels], dense, is the PPE of a + b (or a * b) in float. Of the windows, the tensor counts alone. */
void npu_eltwise(const struct npu_window *a, const struct npu_window *b, int product, const struct npu_ppe *p, uint8_t *out, int avx2)
{
    enum { RUN = 256 };
    float left[RUN], right[RUN];
    int64_t size = a->dtype == F32 ? 4 : a->dtype <= BF16 ? 2 : 1;
    int64_t out_size = p->dtype == F32 || p->dtype == I32 ? 4 : p->dtype == I8 || p->dtype == U8 ? 1 : 2;
    for (int64_t pixel = 0; pixel < a->in_y * a->in_x; pixel++) {
        int64_t y = pixel / a->in_x, x = pixel % a->in_x;
        const uint8_t *from = a->act + y * a->stride_y + x * a->stride_x, *other = b->act + y * b->stride_y + x * b->stride_x;
        struct npu_ppe part = *p;
        for (int64_t z = 0, n; z < a->channels; z += n, out += n * out_size) {
            n = a->channels - z < RUN ? a->channels - z : RUN;
            npu_row_f32(from + z * size, left, (size_t)n, a->dtype, a->zero_point, avx2);
            npu_row_f32(other + z * size, right, (size_t)n, b->dtype, b->zero_point, avx2);
            if (product) for (int64_t i = 0; i < n; i++) left[i] *= right[i];
            else for (int64_t i = 0; i < n; i++) left[i] += right[i];
            if (p->scale)
                part.scale = p->scale + z, part.bias = p->bias + z;
            npu_ppe_run(&part, left, n, 0, 1, n, out, n, avx2);
        }
    }
}
