/* SPDX-License-Identifier: Apache-2.0
 * launch_conv - a convolution by name, and the five steps of its launch.
 *
 * 1. The host packs the parameters. 2. It submits them through the driver. 3. The device's scheduler picks the unit with the least to do.
 * 4. The unit loads the kernel's instructions into its instruction cache. 5. It executes them.
 * For a small tensor the load takes nearly as long as the execution, unless the instructions are in the unit's cache already; for a large
 * one, which is split into blocks for all units, it hardly counts.
 */
#include "timeline.h"

static void launch_conv_kernel(float *input, float *weight, float *output, int N, int C, int H, int W)
{
    kernel_params_t params;
    params.input_addr = (uint64_t)input;
    params.weight_addr = (uint64_t)weight;
    params.output_addr = (uint64_t)output;
    params.N = N;
    params.C = C;
    params.H = H;
    params.W = W;
    CHECK(npu_submit_kernel("conv2d", &params)); /* returns at once */
    TIMED('.', "wait_for_completion", npu_wait_for_completion());
}

/* 3x3, stride 1, padding 1, C channels in and out, by its definition. */
static double conv_at(const float *x, const float *w, int C, int H, int W, int k, int row, int column)
{
    double sum = 0;

    for (int c = 0; c < C; c++)
        for (int dy = 0; dy < 3; dy++)
            for (int dx = 0; dx < 3; dx++) {
                int at_y = row + dy - 1, at_x = column + dx - 1;
                if (at_y >= 0 && at_y < H && at_x >= 0 && at_x < W)
                    sum += (double)x[(c * H + at_y) * W + at_x] * w[((k * C + c) * 3 + dy) * 3 + dx];
            }
    return sum;
}

enum { MOST = 16 * 64 * 64, BYTES = MOST * sizeof(float) };
static float x[MOST], w[MOST], y[MOST];
static void *dx, *dw, *dy; /* in device memory */

static npu_op_record_t run(const char *title, int C, int side)
{
    npu_op_record_t r;
    size_t count;

    CHECK(npu_profiler_start());
    launch_conv_kernel(dx, dw, dy, 1, C, side, side);
    CHECK(npu_profiler_stop());
    CHECK(npu_get_op_records(&r, 1, &count));
    CLAIM(count == 1 && r.kind == NPU_OP_KERNEL, "one launch is one operation record");
    timeline_operation(&r);
    printf("%-20s | %9.3f %9.3f %9.3f %9.3f %9.3f | %6u  %#5x\n", title, (double)r.pack_ps * 1e-6, (double)r.submit_ps * 1e-6,
           (double)r.schedule_ps * 1e-6, (double)r.load_ps * 1e-6, (double)r.execute_ps * 1e-6, r.blocks, r.units);

    CHECK(npu_memcpy(y, BYTES, dy, BYTES, NPU_MEMCPY_DEVICE_TO_HOST));
    for (int k = 0, at = 0; k < C; k++)
        for (int row = 0; row < side; row++)
            for (int column = 0; column < side; column++, at++) {
                double wrong = y[at] - conv_at(x, w, C, side, side, k, row, column);
                CLAIM(wrong > -1e-4 && wrong < 1e-4, "the device computes the convolution");
            }
    return r;
}

int main(void)
{
    npu_op_record_t first, again, large;

    for (int i = 0; i < MOST; i++) {
        x[i] = (float)(i * 7 % 11 - 5) / 8;
        w[i] = (float)(i * 5 % 13 - 6) / 16;
    }
    CHECK(npu_init(NPU_INIT_CHECK));
    CHECK(npu_malloc(&dx, BYTES, 0));
    CHECK(npu_malloc(&dw, BYTES, 0));
    CHECK(npu_malloc(&dy, BYTES, 0));
    CHECK(npu_memcpy(dx, BYTES, x, BYTES, NPU_MEMCPY_HOST_TO_DEVICE));
    CHECK(npu_memcpy(dw, BYTES, w, BYTES, NPU_MEMCPY_HOST_TO_DEVICE));
    printf("conv2d, times in us  | %9s %9s %9s %9s %9s | %6s  %5s\n", "1 pack", "2 submit", "3 pick", "4 load", "5 execute", "blocks", "units");
    first = run("1 channel, 4x4", 1, 4);
    again = run("the same again", 1, 4);
    large = run("16 channels, 64x64", 16, 64);
    puts("");
    timeline_print();
    CLAIM(first.load_ps > first.execute_ps / 2, "of a small tensor the load is a large part");
    CLAIM(again.load_ps == 0, "the second launch finds all instructions in the cache");
    CLAIM(large.blocks == 4 && large.units == 0xf, "the four blocks of a large tensor go to four units");
    CLAIM(large.execute_ps > 10 * large.load_ps, "of a large tensor the execution is nearly all");
    CHECK(npu_shutdown());
    return 0;
}
