/* What the C helpers are to Python, which reads this file through cffi, and to each other: structures and functions.
 *
 * Strides are bytes unless said. `avx2` is what npu_has_avx2 says, or 0 for the plain form, which gives the same bits.
 */
#ifndef NPU_MODEL_NATIVE_H
#define NPU_MODEL_NATIVE_H
#include <stddef.h>
#include <stdint.h>
#include "npu.h" /* enum npu_dtype */

#define F16 NPU_DT_F16
#define BF16 NPU_DT_BF16
#define F32 NPU_DT_F32
#define I8 NPU_DT_I8
#define U8 NPU_DT_U8
#define I16 NPU_DT_I16
#define U16 NPU_DT_U16
#define I32 NPU_DT_I32

struct npu_window {
    const uint8_t *act;           /* element (0, 0, first channel) */
    int64_t stride_y, stride_x;   /* bytes */
    int64_t in_y, in_x;           /* elements */
    int64_t kernel_y, kernel_x, step_y, step_x, dilation_y, dilation_x;
    int64_t first_y, first_x;     /* input position of tap (0, 0) of output (0, 0) of this workload; may be negative */
    int64_t out_x;                /* outputs per row of this workload */
    int64_t channels;
    int32_t dtype, zero_point;    /* enum npu_dtype */
};

struct npu_ppe {
    const float *scale, *bias;    /* per channel, or NULL: uniform_scale, uniform_bias */
    const int32_t *offset;        /* per channel, of accumulators of integers; or NULL */
    float uniform_scale, uniform_bias, clamp_low, clamp_high, lrelu_slope, zero_point;
    int32_t fn, dtype;            /* enum npu_ppe_fn, enum npu_dtype */
};

enum npu_sums {
    EXACT = 0,   /* float types: double sums, settled */
    FAST = 1,    /* float types: float sums */
    INTEGER = 2  /* integer types: exact, wrapped to 32 bits */
};

struct npu_convolution {
    struct npu_window window;     /* over the channels of the first group */
    struct npu_ppe ppe;
    const uint8_t *weights;       /* of the first column; dense [column][k] */
    const float *table;           /* per column: scale, bias, offset (int32), a word unused; or NULL: ppe's uniform values */
    uint8_t *out;                 /* dense [pixels][columns] in ppe.dtype */
    int64_t pixels, columns;
    int64_t group_columns;        /* columns per group */
    int64_t first_column;         /* of the first column in its group */
    double exact_below;           /* as of npu_settle */
    int32_t weight_dtype, weight_zero_point, sums; /* enum npu_dtype; enum npu_sums */
    int32_t avx512;               /* as npu_has_avx512 says, or 0: the same bits */
};

int npu_has_avx2(void);
int npu_has_avx512(void);

/* Conversions of n elements; NaN stays NaN: quiet, sign and upper payload kept. npu_f16_infinities counts them. */
void npu_f16_to_f32(const uint16_t *in, float *out, size_t n, int avx2);
void npu_f16_to_f64(const uint16_t *in, double *out, size_t n, int avx2);
void npu_f32_to_f16(const float *in, uint16_t *out, size_t n, int avx2);
int64_t npu_f16_infinities(const uint16_t *in, size_t n);
void npu_bf16_to_f32(const uint16_t *in, float *out, size_t n);
void npu_bf16_to_f64(const uint16_t *in, double *out, size_t n);
void npu_f32_to_bf16(const float *in, uint16_t *out, size_t n);

/* One row of `n` elements at any alignment, minus `zero_point` for integers. */
void npu_row_f64(const uint8_t *in, double *out, size_t n, int dtype, int32_t zero_point, int avx2);
void npu_row_f32(const uint8_t *in, float *out, size_t n, int dtype, int32_t zero_point, int avx2);

/* Terms [first, first + n) of the matrix [output pixel][tap_y][tap_x][channel] for one pixel, pixels in row-major order, as
 * double (wide) or float; padding is 0. npu_im2col: whole rows [begin, end), dense. */
void npu_window_row(const struct npu_window *w, int64_t pixel, int64_t first, int64_t n, void *out, int wide, int avx2);
void npu_im2col(const struct npu_window *w, int64_t begin, int64_t end, void *out, int wide, int avx2);

/* Sums of a depthwise convolution of `out_y` rows of outputs; described at its definition. */
void npu_depthwise(const struct npu_window *w, int64_t out_y, const double *weights, double *acc, double *rows,
                   int64_t row_count, int64_t *held, void *taps, int avx2);

/* Lengths of the `rows` rows of k terms of m: at least the square root of the sum of squares. */
void npu_norms(const double *m, int64_t rows, int64_t k, double *out, int avx2);

/* Sum of a[i] * b[i * step] without any error, as a double rounded to odd: its rounding to float is that of the exact sum.
 * The factors are float values, with `f16` those of fp16. k at most 2^30. */
double npu_exact_dot(const double *a, const double *b, int64_t step, int64_t k, int f16);

/* acc[i * stride + j] is the sum of a[i][:] * b[j][:], in whatever order; replace it by the exact sum where its error may
 * decide the rounding to float. No order of k - 1 additions errs by more than k * 2^-53 * |a_i| * |b_j|, and none errs at
 * all when |a_i| * |b_j| is at most exact_below; exact_below > 0 says that all values are those of fp16. */
void npu_settle(double *acc, int64_t stride, const double *a, int64_t rows, const double *b,
                const double *b_norms, int64_t columns, int64_t k, double exact_below, int avx2);

/* acc [rows][channels], double (wide) or float, acc_stride elements between rows; out in p->dtype, out_stride elements
 * between rows. */
void npu_ppe_run(const struct npu_ppe *p, const void *acc, int64_t acc_stride, int wide, int64_t rows, int64_t channels,
                 void *out, int64_t out_stride, int avx2);

/* Element-wise sum or product of two windows of one shape through the PPE to `out`, dense. */
void npu_eltwise(const struct npu_window *a, const struct npu_window *b, int product, const struct npu_ppe *p, uint8_t *out,
                 int avx2);

/* A whole convolution of a block; needs AVX2. `scratch` has npu_convolve_scratch(c) bytes. */
int64_t npu_convolve_scratch(const struct npu_convolution *c);
void npu_convolve(const struct npu_convolution *c, uint8_t *scratch);
#endif
