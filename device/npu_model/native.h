/* What the files of the C helpers share: window and PPE settings, and the steps that a whole convolution is made of.
 *
 * Types are enum npu_dtype: 0 f16, 1 bf16, 2 f32, 4 i8, 5 u8, 6 i16, 7 u16, 8 i32. Strides are bytes unless said.
 */
#ifndef NPU_MODEL_NATIVE_H
#define NPU_MODEL_NATIVE_H
#include <stddef.h>
#include <stdint.h>

enum { F16 = 0, BF16 = 1, F32 = 2, I8 = 4, U8 = 5, I16 = 6, U16 = 7, I32 = 8 };

struct npu_window {
    const uint8_t *act;           /* element (0, 0, first channel) */
    int64_t stride_y, stride_x;   /* bytes */
    int64_t in_y, in_x;           /* elements */
    int64_t kernel_y, kernel_x, step_y, step_x, dilation_y, dilation_x;
    int64_t first_y, first_x;     /* input position of tap (0, 0) of output (0, 0) of this workload; may be negative */
    int64_t out_x;                /* outputs per row of this workload */
    int64_t channels;
    int32_t dtype, zero_point;
};

struct npu_ppe {
    const float *scale, *bias;    /* per channel, or NULL: uniform_scale, uniform_bias */
    float uniform_scale, uniform_bias, clamp_low, clamp_high, lrelu_slope, zero_point;
    int32_t fn, dtype;            /* enum npu_ppe_fn, enum npu_dtype */
};

/* One row of `n` elements at any alignment, minus `zero_point` for integers. */
void npu_row_f64(const uint8_t *in, double *out, size_t n, int dtype, int32_t zero_point, int avx2);
void npu_row_f32(const uint8_t *in, float *out, size_t n, int dtype, int32_t zero_point, int avx2);

/* Terms [first, first + n) of the matrix [output pixel][tap_y][tap_x][channel] for one pixel, pixels in row-major order, as
 * double (wide) or float; padding is 0. npu_im2col: whole rows [begin, end), dense. */
void npu_window_row(const struct npu_window *w, int64_t pixel, int64_t first, int64_t n, void *out, int wide, int avx2);
void npu_im2col(const struct npu_window *w, int64_t begin, int64_t end, void *out, int wide, int avx2);

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
#endif
