/* A whole convolution or matrix product of one workload, from bits to bits: what im2col, BLAS, npu_settle and the PPE do one
 * after the other, block by block of rows that stay in the cache. For processors with AVX2 and FMA; AVX-512 makes it faster.
 *
 * 1. The filters of a group are converted once into panels of 64 bytes of columns.
 * 2. For a block of rows, KC terms of the convolution's matrix are converted and multiplied with all panels, ROWS rows at once;
 *    then the next KC terms. Windows that overlap are not copied: their input is converted once, and rows point into it.
 * 3. Doubtful roundings are settled (exact), and the PPE writes the rows' bits.
 */
#include "native.h"
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2,f16c,fma")))
#define AVX512 __attribute__((target("avx512f,avx2,f16c,fma")))
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 6")

enum {
    BLOCK_ROWS = 96,              /* rows of the matrix at a time: KC terms of them fill a third of a second-level cache (chosen) */
    ROWS = 6,                     /* rows of the kernel: with two vectors of columns, 12 of 16 registers */
    DIRECT_CHANNELS = 16,         /* from which on rows point into the input (chosen): a tap is a loop of its own */
    KC = 256                      /* terms between two visits of the sums. float holds 256 products of 8-bit differences exactly */
};

/* Rows times `vectors` vectors of columns per term, the second one `apart` elements behind the first, added to c, or written when
 * `first`. Row i has k terms at at[i], k more at at[i + step] and so on, `taps` times. `rows` and `vectors` are constants. Each sum
 * adds its terms in order, so the width of a vector does not show. */
#define TILE(NAME, SET, T, V, LOAD, SPREAD, FMA, ZERO, C, PUT)                                                         \
    INLINE SET void NAME(const T **at, int64_t step, int64_t taps, const T *b, int64_t apart, int64_t k, C *c, int64_t ldc, \
                         int first, const int rows, const int vectors)                                                 \
    {                                                                                                                  \
        enum { LANES = sizeof(V) / sizeof(T), PANEL = 64 / sizeof(T) };                                                \
        V sums[ROWS][2], right[2];                                                                                     \
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++) sums[r][v] = ZERO;              \
        for (int64_t t = 0; t < taps; t++, at += step) {                                                               \
            const T *left[ROWS];                                                                                       \
            UNROLL for (int r = 0; r < rows; r++) left[r] = at[r];                                                     \
            for (int64_t i = 0; i < k; i++, b += PANEL) {                                                              \
                UNROLL for (int v = 0; v < vectors; v++) right[v] = LOAD(b + v * apart);                               \
                UNROLL for (int r = 0; r < rows; r++) {                                                                \
                    V s = SPREAD(left[r][i]);                                                                          \
                    UNROLL for (int v = 0; v < vectors; v++) sums[r][v] = FMA(s, right[v], sums[r][v]);                \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        UNROLL for (int r = 0; r < rows; r++)                                                                          \
            UNROLL for (int v = 0; v < vectors; v++) PUT(c + r * ldc + v * LANES, sums[r][v], first);                  \
    }

INLINE AVX2 void put_double(double *c, __m256d x, int first)
{
    _mm256_storeu_pd(c, first ? x : _mm256_add_pd(_mm256_loadu_pd(c), x));
}

INLINE AVX2 void put_float(float *c, __m256 x, int first)
{
    _mm256_storeu_ps(c, first ? x : _mm256_add_ps(_mm256_loadu_ps(c), x));
}

INLINE AVX2 void put_integer(double *c, __m256 x, int first)
{
    put_double(c, _mm256_cvtps_pd(_mm256_castps256_ps128(x)), first);
    put_double(c + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)), first);
}

INLINE AVX512 void put_double_512(double *c, __m512d x, int first)
{
    _mm512_storeu_pd(c, first ? x : _mm512_add_pd(_mm512_loadu_pd(c), x));
}

INLINE AVX512 void put_float_512(float *c, __m512 x, int first)
{
    _mm512_storeu_ps(c, first ? x : _mm512_add_ps(_mm512_loadu_ps(c), x));
}

INLINE AVX512 void put_integer_512(double *c, __m512 x, int first)
{
    put_double_512(c, _mm512_cvtps_pd(_mm512_castps512_ps256(x)), first);
    put_double_512(c + 8, _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1))), first);
}

#define PD(BITS, NAME) _mm##BITS##_##NAME##_pd
#define PS(BITS, NAME) _mm##BITS##_##NAME##_ps
#define TILES(SUFFIX, SET, BITS, D, S)                                                                                          \
    TILE(tile_exact##SUFFIX, SET, double, D, PD(BITS, loadu), PD(BITS, set1), PD(BITS, fmadd), PD(BITS, setzero)(), double, put_double##SUFFIX) \
    TILE(tile_fast##SUFFIX, SET, float, S, PS(BITS, loadu), PS(BITS, set1), PS(BITS, fmadd), PS(BITS, setzero)(), float, put_float##SUFFIX)      \
    TILE(tile_integer##SUFFIX, SET, float, S, PS(BITS, loadu), PS(BITS, set1), PS(BITS, fmadd), PS(BITS, setzero)(), double, put_integer##SUFFIX)

TILES(, AVX2, 256, __m256d, __m256)
TILES(_512, AVX512, 512, __m512d, __m512)

/* Add rows, as of TILE, times taps * n terms of all panels of b, which hold k terms each, to c [rows][ldc]; `first` writes. A panel is
 * 64 bytes wide: one vector or two, so that the kernel takes at most PANELS of them. */
#define MULTIPLY(NAME, SET, TILE_OF, T, C, PANELS)                                                                     \
    SET static void NAME(const T **at, int64_t step_of, int64_t taps, int64_t rows, const T *b, int64_t panels,        \
                         int64_t k, int64_t n, C *c, int64_t ldc, int first)                                           \
    {                                                                                                                  \
        enum { PANEL = 64 / sizeof(T) };                                                                               \
        const int64_t apart = PANELS > 1 ? k * PANEL : PANEL / 2;                                                      \
        for (int64_t p = 0; p < panels; p += PANELS)                                                                   \
            for (int64_t i = 0, step; i < rows; i += step) {                                                           \
                const T **left = at + i, *right = b + p * k * PANEL;                                                   \
                int64_t rest = rows - i;                                                                               \
                C *to = c + i * ldc + p * PANEL;                                                                       \
                step = rest <= ROWS ? rest : rest < 2 * ROWS ? (rest + 1) / 2 : ROWS;                                  \
                switch (panels - p < PANELS ? step + ROWS : step) {                                                    \
                case 1: TILE_OF(left, step_of, taps, right, apart, n, to, ldc, first, 1, 2); break;                    \
                case 2: TILE_OF(left, step_of, taps, right, apart, n, to, ldc, first, 2, 2); break;                    \
                case 3: TILE_OF(left, step_of, taps, right, apart, n, to, ldc, first, 3, 2); break;                    \
                case 4: TILE_OF(left, step_of, taps, right, apart, n, to, ldc, first, 4, 2); break;                    \
                case 5: TILE_OF(left, step_of, taps, right, apart, n, to, ldc, first, 5, 2); break;                    \
                case 6: TILE_OF(left, step_of, taps, right, apart, n, to, ldc, first, 6, 2); break;                    \
                case 7: TILE_OF(left, step_of, taps, right, apart, n, to, ldc, first, 1, 1); break;                    \
                case 8: TILE_OF(left, step_of, taps, right, apart, n, to, ldc, first, 2, 1); break;                    \
                case 9: TILE_OF(left, step_of, taps, right, apart, n, to, ldc, first, 3, 1); break;                    \
                case 10: TILE_OF(left, step_of, taps, right, apart, n, to, ldc, first, 4, 1); break;                   \
                case 11: TILE_OF(left, step_of, taps, right, apart, n, to, ldc, first, 5, 1); break;                   \
                default: TILE_OF(left, step_of, taps, right, apart, n, to, ldc, first, 6, 1); break;                   \
                }                                                                                                      \
            }                                                                                                          \
    }

#define MULTIPLIES(SUFFIX, SET, PANELS)                                                                                \
    MULTIPLY(multiply_exact##SUFFIX, SET, tile_exact##SUFFIX, double, double, PANELS)                                  \
    MULTIPLY(multiply_fast##SUFFIX, SET, tile_fast##SUFFIX, float, float, PANELS)                                      \
    MULTIPLY(multiply_integer##SUFFIX, SET, tile_integer##SUFFIX, float, double, PANELS)

MULTIPLIES(, AVX2, 1)
MULTIPLIES(_512, AVX512, 2)

enum { PIECE = 64 };

/* to[m][j] = piece[j][m] for m < n. */
INLINE AVX2 void interleave_double(double (*piece)[PIECE], double *to, int64_t n)
{
    int64_t m = 0;
    for (; m + 4 <= n; m += 4)
        for (int half = 0; half < 8; half += 4) {
            double *at = to + m * 8 + half;
            __m256d a = _mm256_loadu_pd(piece[half] + m), b = _mm256_loadu_pd(piece[half + 1] + m);
            __m256d c = _mm256_loadu_pd(piece[half + 2] + m), d = _mm256_loadu_pd(piece[half + 3] + m);
            __m256d e = _mm256_unpacklo_pd(a, b), f = _mm256_unpackhi_pd(a, b), g = _mm256_unpacklo_pd(c, d), h = _mm256_unpackhi_pd(c, d);
            _mm256_storeu_pd(at, _mm256_permute2f128_pd(e, g, 0x20)), _mm256_storeu_pd(at + 8, _mm256_permute2f128_pd(f, h, 0x20));
            _mm256_storeu_pd(at + 16, _mm256_permute2f128_pd(e, g, 0x31)), _mm256_storeu_pd(at + 24, _mm256_permute2f128_pd(f, h, 0x31));
        }
    for (; m < n; m++)
        for (int j = 0; j < 8; j++) to[m * 8 + j] = piece[j][m];
}

INLINE AVX2 void interleave_float(float (*piece)[PIECE], float *to, int64_t n)
{
    int64_t m = 0;
    for (; m + 4 <= n; m += 4)
        for (int quarter = 0; quarter < 16; quarter += 4) {
            float *at = to + m * 16 + quarter;
            __m128 a = _mm_loadu_ps(piece[quarter] + m), b = _mm_loadu_ps(piece[quarter + 1] + m);
            __m128 c = _mm_loadu_ps(piece[quarter + 2] + m), d = _mm_loadu_ps(piece[quarter + 3] + m);
            _MM_TRANSPOSE4_PS(a, b, c, d);
            _mm_storeu_ps(at, a), _mm_storeu_ps(at + 16, b), _mm_storeu_ps(at + 32, c), _mm_storeu_ps(at + 48, d);
        }
    for (; m < n; m++)
        for (int j = 0; j < 16; j++) to[m * 16 + j] = piece[j][m];
}

/* Convert `columns` filters of k terms into panels [panel][k][PANEL]; columns that are not there are 0. */
#define PACK(NAME, T, PANEL, CONVERT, INTERLEAVE)                                                                      \
    AVX2 static void NAME(const struct npu_convolution *c, const uint8_t *weights, int64_t columns, int64_t k, T *to) \
    {                                                                                                                  \
        int64_t size = c->weight_dtype == F32 ? 4 : c->weight_dtype <= BF16 ? 2 : 1;                                   \
        T piece[PANEL][PIECE];                                                                                         \
        for (int64_t z = 0; z < columns; z += PANEL)                                                                   \
            for (int64_t i = 0; i < k; i += PIECE) {                                                                   \
                int64_t n = k - i < PIECE ? k - i : PIECE;                                                             \
                for (int64_t j = 0; j < PANEL; j++)                                                                    \
                    if (z + j < columns)                                                                               \
                        CONVERT(weights + ((z + j) * k + i) * size, piece[j], (size_t)n, c->weight_dtype, c->weight_zero_point, 1); \
                    else                                                                                               \
                        memset(piece[j], 0, sizeof piece[j]);                                                          \
                INTERLEAVE(piece, to, n);                                                                              \
                to += n * PANEL;                                                                                       \
            }                                                                                                          \
    }

PACK(pack_double, double, 8, npu_row_f64, interleave_double)
PACK(pack_float, float, 16, npu_row_f32, interleave_float)

/* At least the Euclidean norm of each column of panels of 8: rounding errors are covered. */
AVX2 static void panel_norms(const double *b, int64_t panels, int64_t k, double *norms)
{
    for (int64_t p = 0; p < panels; p++, norms += 8) {
        __m256d s = _mm256_setzero_pd(), t = s, more = _mm256_set1_pd(1 + 0x1p-20);
        for (int64_t i = 0; i < k; i++, b += 8) {
            __m256d x = _mm256_loadu_pd(b), y = _mm256_loadu_pd(b + 4);
            s = _mm256_fmadd_pd(x, x, s), t = _mm256_fmadd_pd(y, y, t);
        }
        _mm256_storeu_pd(norms, _mm256_mul_pd(_mm256_sqrt_pd(s), more));
        _mm256_storeu_pd(norms + 4, _mm256_mul_pd(_mm256_sqrt_pd(t), more));
    }
}

AVX2 static double square(const double *x, int64_t n)
{
    __m256d s = _mm256_setzero_pd(), t = s, u = s, v = s;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256d a = _mm256_loadu_pd(x + i), b = _mm256_loadu_pd(x + i + 4), c = _mm256_loadu_pd(x + i + 8), d = _mm256_loadu_pd(x + i + 12);
        s = _mm256_fmadd_pd(a, a, s), t = _mm256_fmadd_pd(b, b, t), u = _mm256_fmadd_pd(c, c, u), v = _mm256_fmadd_pd(d, d, v);
    }
    s = _mm256_add_pd(_mm256_add_pd(s, t), _mm256_add_pd(u, v));
    double parts[4], sum;
    _mm256_storeu_pd(parts, s);
    sum = parts[0] + parts[1] + parts[2] + parts[3];
    for (; i < n; i++) sum += x[i] * x[i];
    return sum;
}

struct layout {
    int64_t k, panel, panels, block, ldc;
    size_t unit, sum;             /* bytes of an operand and of a sum */
    int64_t pitch;                /* elements of a converted pixel, or of a row's KC terms: rows begin in different sets of a cache */
    int direct;                   /* rows point into the converted input */
    size_t a, pixels, zeros, pointers, b, norms, squares, row, c, scale, bytes; /* offsets in the scratch memory */
};

static struct layout lay_out(const struct npu_convolution *c)
{
    const struct npu_window *w = &c->window;
    struct layout l = {.k = w->kernel_y * w->kernel_x * w->channels, .unit = c->sums == EXACT ? 8 : 4, .sum = c->sums == FAST ? 4 : 8};
    int64_t columns = c->columns < c->group_columns ? c->columns : c->group_columns, blocks = (c->pixels + BLOCK_ROWS - 1) / BLOCK_ROWS;
    l.panel = 64 / (int64_t)l.unit;
    l.panels = (columns + l.panel - 1) / l.panel;
    l.ldc = l.panels * l.panel;
    l.block = ((c->pixels + blocks - 1) / blocks + ROWS - 1) / ROWS * ROWS; /* at most BLOCK_ROWS; no small last one */
    l.direct = w->kernel_y * w->kernel_x > 1 && w->channels >= DIRECT_CHANNELS;
    l.pitch = (l.direct ? (w->channels + 7) / 8 * 8 : KC) + l.panel;
    l.pixels = (size_t)((l.direct ? w->in_y * w->in_x : l.block) * l.pitch) * l.unit;
    l.zeros = l.pixels + (size_t)(l.direct ? w->in_y * w->in_x * 8 : 0);
    l.pointers = l.zeros + (size_t)(l.direct ? l.pitch * 8 : 0);
    l.b = l.pointers + (size_t)(l.block * (KC / DIRECT_CHANNELS)) * 8;
    l.norms = l.b + (size_t)(l.ldc * l.k) * l.unit;
    l.squares = l.norms + (size_t)l.ldc * 8;
    l.row = l.squares + (size_t)l.block * 8;
    l.c = l.row + (size_t)(c->sums == EXACT ? l.k * 8 : 0);
    l.scale = l.c + (size_t)(l.block * l.ldc) * l.sum;
    l.bytes = l.scale + (size_t)l.ldc * 12 + 64;
    return l;
}

/* npu_settle for rows [begin, begin + rows) of the window's matrix, given the squares of their norms. A part of at most KC
 * terms is added in order, then the parts, all but the last of which have at least KC / 2 terms: no term passes through more
 * than `additions` additions, which takes the place of k in the bound. */
AVX2 static void settle(const struct npu_window *w, struct layout l, int64_t begin, int64_t rows, const double *squares, double *row,
                          const double *b, const double *norms, int64_t columns, double exact_below, double *sums)
{
    double additions = (double)((l.k < KC ? l.k : KC) + 2 * (l.k / KC) + 3), largest = 0;
    for (int64_t z = 0; z < columns; z++) largest = norms[z] > largest ? norms[z] : largest;
    for (int64_t i = 0; i < rows; i++) {
        double norm = __builtin_sqrt(squares[i]) * (1 + 0x1p-20), reach = additions * (0x1p-53 + 0x1p-73) * norm, *v = sums + i * l.ldc;
        __m256d factor = _mm256_set1_pd(reach);
        int converted = 0;
        if (norm * largest <= exact_below)
            continue;
        for (int64_t z = 0; z < columns; z += 4) {
            __m256d sum = _mm256_loadu_pd(v + z), bound = _mm256_mul_pd(factor, _mm256_loadu_pd(norms + z));
            __m128 low = _mm256_cvtpd_ps(_mm256_sub_pd(sum, bound)), high = _mm256_cvtpd_ps(_mm256_add_pd(sum, bound));
            int doubtful = _mm_movemask_ps(_mm_cmp_ps(low, high, _CMP_NEQ_OQ)); /* never where a sum is not a number */
            for (int64_t j = z; doubtful; j++, doubtful >>= 1) {
                if (!(doubtful & 1) || !__builtin_isfinite(v[j]) || !__builtin_isfinite(reach * norms[j]))
                    continue;
                if (!converted)
                    npu_window_row(w, begin + i, 0, l.k, row, 1, 1);
                converted = 1;
                v[j] = npu_exact_dot(row, b + j / l.panel * l.panel * l.k + j % l.panel, l.panel, l.k, exact_below > 0);
            }
        }
    }
}

static void wrap(double *sums, int64_t count)
{
    for (int64_t i = 0; i < count; i++) sums[i] = (double)(int32_t)(int64_t)sums[i];
}

/* Convert the window's input once: [in_y][in_x][pitch], and the squares of the pixels' norms. */
static void convert_input(const struct npu_window *w, struct layout l, int wide, uint8_t *memory)
{
    for (int64_t i = 0; i < w->in_y * w->in_x; i++) {
        const uint8_t *from = w->act + i / w->in_x * w->stride_y + i % w->in_x * w->stride_x;
        uint8_t *to = memory + l.a + (size_t)(i * l.pitch) * l.unit;
        if (wide) {
            npu_row_f64(from, (double *)to, (size_t)w->channels, w->dtype, w->zero_point, 1);
            ((double *)(memory + l.pixels))[i] = square((double *)to, w->channels);
        } else {
            npu_row_f32(from, (float *)to, (size_t)w->channels, w->dtype, w->zero_point, 1);
        }
    }
    memset(memory + l.zeros, 0, (size_t)l.pitch * 8);
}

/* Point rows [begin, begin + rows) into the converted input: their terms from `z` on of a tap. Add the squares of the pixels. */
static void point(const struct npu_window *w, struct layout l, int64_t begin, int64_t rows, int64_t tap, int64_t z, uint8_t *memory,
                  const void **at, double *squares)
{
    const double *pixels = (const double *)(memory + l.pixels);
    int64_t tap_y = w->first_y + tap / w->kernel_x * w->dilation_y, tap_x = w->first_x + tap % w->kernel_x * w->dilation_x;
    int64_t out_y = begin / w->out_x, out_x = begin % w->out_x;
    for (int64_t r = 0; r < rows; r++) {
        int64_t y = tap_y + out_y * w->step_y, x = tap_x + out_x * w->step_x, pixel = y * w->in_x + x;
        int inside = y >= 0 && y < w->in_y && x >= 0 && x < w->in_x;
        at[r] = memory + (inside ? l.a + (size_t)(pixel * l.pitch) * l.unit : l.zeros) + (size_t)z * l.unit;
        if (squares && inside)
            squares[r] += pixels[pixel];
        if (++out_x == w->out_x)
            out_x = 0, out_y++;
    }
}

/* Sums of rows [begin, begin + rows), and under EXACT the squares of their norms. */
static void multiply(const struct npu_window *w, struct layout l, int sums_of, int avx512, int64_t begin, int64_t rows, uint8_t *memory)
{
    const void **at = (const void **)(memory + l.pointers);
    uint8_t *b = memory + l.b;
    void *sums = memory + l.c;
    double *squares = (double *)(memory + l.squares);
    int64_t per_tap = l.direct ? w->channels : l.k, together = l.direct && per_tap <= KC ? KC / per_tap : 1, taps;
    memset(squares, 0, (size_t)rows * 8);
    for (int64_t tap = 0; tap * per_tap < l.k; tap += taps) {
        int64_t left = l.k / per_tap - tap;
        taps = left < together ? left : together;
        for (int64_t z = 0; z < per_tap; z += KC) {
            int64_t n = per_tap - z < KC ? per_tap - z : KC;
            for (int64_t t = 0; l.direct && t < taps; t++)
                point(w, l, begin, rows, tap + t, z, memory, at + t * rows, sums_of == EXACT && !z ? squares : NULL);
            for (int64_t r = 0; !l.direct && r < rows; r++) {
                void *to = memory + l.a + (size_t)(r * l.pitch) * l.unit;
                npu_window_row(w, begin + r, z, n, to, sums_of == EXACT, 1);
                if (sums_of == EXACT) squares[r] += square(to, n);
                at[r] = to;
            }
            const uint8_t *right = b + (size_t)((tap * per_tap + z) * l.panel) * l.unit;
            int first = !tap && !z;
            if (sums_of == EXACT) (avx512 ? multiply_exact_512 : multiply_exact)((const double **)at, rows, taps, rows,
                (const double *)right, l.panels, l.k, n, sums, l.ldc, first);
            else if (sums_of == FAST) (avx512 ? multiply_fast_512 : multiply_fast)((const float **)at, rows, taps, rows,
                (const float *)right, l.panels, l.k, n, sums, l.ldc, first);
            else (avx512 ? multiply_integer_512 : multiply_integer)((const float **)at, rows, taps, rows,
                (const float *)right, l.panels, l.k, n, sums, l.ldc, first);
        }
    }
}

/* Columns [begin, begin + columns), all of one group whose window is w. */
static void convolve_group(const struct npu_convolution *c, const struct npu_window *w, struct layout l, uint8_t *memory,
                           int64_t begin, int64_t columns)
{
    void *b = memory + l.b, *sums = memory + l.c;
    double *norms = (double *)(memory + l.norms), *squares = (double *)(memory + l.squares);
    float *scale = (float *)(memory + l.scale), *bias = scale + l.ldc;
    int32_t *offset = (int32_t *)(bias + l.ldc);
    struct npu_ppe ppe = c->ppe;
    int64_t weight_size = c->weight_dtype == F32 ? 4 : c->weight_dtype <= BF16 ? 2 : 1;
    int64_t out_size = ppe.dtype == F32 || ppe.dtype == I32 ? 4 : ppe.dtype == I8 || ppe.dtype == U8 ? 1 : 2;
    const uint8_t *weights = c->weights + begin * l.k * weight_size;
    l.panels = (columns + l.panel - 1) / l.panel;
    if (c->sums == EXACT) {
        pack_double(c, weights, columns, l.k, b);
        panel_norms(b, l.panels, l.k, norms);
    } else {
        pack_float(c, weights, columns, l.k, b);
    }
    if (c->table) {
        for (int64_t z = 0; z < columns; z++) scale[z] = c->table[4 * (begin + z)], bias[z] = c->table[4 * (begin + z) + 1];
        ppe.scale = scale, ppe.bias = bias;
        for (int64_t z = 0; c->sums == INTEGER && z < columns; z++) memcpy(offset + z, c->table + 4 * (begin + z) + 2, 4);
        ppe.offset = c->sums == INTEGER ? offset : NULL;
    }
    if (l.direct)
        convert_input(w, l, c->sums == EXACT, memory);
    for (int64_t i = 0; i < c->pixels; i += l.block) {
        int64_t rows = c->pixels - i < l.block ? c->pixels - i : l.block;
        multiply(w, l, c->sums, c->avx512, i, rows, memory);
        if (c->sums == EXACT)
            settle(w, l, i, rows, squares, (double *)(memory + l.row), b, norms, columns, c->exact_below, sums);
        else if (c->sums == INTEGER && l.k >= 1 << 15) /* 2^31 / 255^2, rounded down to a power of two */
            wrap(sums, rows * l.ldc);
        npu_ppe_run(&ppe, sums, l.ldc, c->sums != FAST, rows, columns, c->out + (i * c->columns + begin) * out_size, c->columns, 1);
    }
}

/* Return the bytes of scratch memory that npu_convolve needs. */
int64_t npu_convolve_scratch(const struct npu_convolution *c) { return (int64_t)lay_out(c).bytes; }

/* Write c->out; only with AVX2. */
void npu_convolve(const struct npu_convolution *c, uint8_t *scratch)
{
    struct layout l = lay_out(c);
    struct npu_window w = c->window;
    int64_t size = w.dtype == F32 ? 4 : w.dtype <= BF16 ? 2 : 1;
    scratch += -(uintptr_t)scratch % 64;
    for (int64_t z = 0, n; z < c->columns; z += n, w.act += w.channels * size) {
        n = c->group_columns - (c->first_column + z) % c->group_columns;
        n = n < c->columns - z ? n : c->columns - z;
        convolve_group(c, &w, l, scratch, z, n);
    }
}
#else
int64_t npu_convolve_scratch(const struct npu_convolution *c) { (void)c; return 0; }
void npu_convolve(const struct npu_convolution *c, uint8_t *scratch) { (void)c, (void)scratch; }
#endif
