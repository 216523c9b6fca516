/* SPDX-License-Identifier: Apache-2.0
 * vector_add_sync - the synchronous model: allocate, copy in, launch, wait, copy out, free.
 *
 * A launch returns at once and says nothing about the result. The result is in memory when a wait says so: who reads before reads
 * what was there, here the poison of fresh memory. The host is blocked for as long as the device works.
 */
#include "timeline.h"

enum { COUNT = 65536, BYTES = COUNT * sizeof(float) };

int main(void)
{
    static float x[COUNT], y[COUNT], z[COUNT];
    void *dx = NULL, *dy = NULL, *pinned = NULL;
    float *seen;
    npu_kernel_t add = NULL;
    uint64_t busy_ps = 0, blocked_ps = 0, busy_before_ps = 0, blocked_before_ps = 0;
    double awake, done;

    for (int i = 0; i < COUNT; i++) {
        x[i] = (float)i;
        y[i] = 0.5f;
    }
    CHECK(npu_init(NPU_INIT_CHECK));
    CHECK(npu_malloc(&dx, BYTES, 0));
    CHECK(npu_malloc(&dy, BYTES, 0));
    CHECK(npu_malloc_host(&pinned, BYTES, NPU_HOST_CACHED)); /* pinned: the kernel writes it, the host reads it in place */
    seen = pinned;
    CHECK(npu_get_builtin_kernel(&add, "add"));
    CHECK(npu_profiler_start());

    /* Synchronous copies: complete on return. */
    TIMED('.', "copy x in", npu_memcpy(dx, BYTES, x, BYTES, NPU_MEMCPY_HOST_TO_DEVICE));
    TIMED('.', "copy y in", npu_memcpy(dy, BYTES, y, BYTES, NPU_MEMCPY_HOST_TO_DEVICE));

    npu_arg_t args[] = {NPU_BUFFER(dx), NPU_BUFFER(dy), NPU_BUFFER(pinned), NPU_INT(COUNT)};
    CHECK(npu_launch_kernel_async(add, args, 4, NULL));
    printf("read before the wait: %08x, poison\n", *(uint32_t *)pinned);
    CLAIM(memcmp(pinned, "\xff\xff\xff\xff", 4) == 0 && memcmp(pinned, seen + 1, BYTES - 4) == 0,
          "before the wait every byte of fresh memory is ff");

    CHECK(npu_get_host_times(&busy_before_ps, &blocked_before_ps));
    TIMED('.', "synchronise", npu_synchronize_stream(NULL));
    awake = now_us();
    CHECK(npu_get_host_times(&busy_ps, &blocked_ps));
    CHECK(npu_profiler_stop());
    printf("read after the wait:  %g %g %g ... %g\n", seen[0], seen[1], seen[2], seen[COUNT - 1]);

    TIMED('.', "copy z out", npu_memcpy(z, BYTES, pinned, BYTES, NPU_MEMCPY_DEFAULT));
    for (int i = 0; i < COUNT; i++)
        CLAIM(z[i] == x[i] + y[i], "after the wait z is x + y");

    done = timeline_print();
    printf("the device was done at %.3f us; its interrupt woke the host, which went on at %.3f us\n", done, awake);
    CLAIM(done < awake, "the signal goes from the device to the host");
    printf("in the wait the host worked %.3f us and was blocked %.3f us\n", (double)(busy_ps - busy_before_ps) * 1e-6,
           (double)(blocked_ps - blocked_before_ps) * 1e-6);
    CLAIM(blocked_ps - blocked_before_ps > 10 * (busy_ps - busy_before_ps), "a synchronous host is blocked while the device works");

    CHECK(npu_free(dx));
    CHECK(npu_free(dy));
    CHECK(npu_free_host(pinned));
    CHECK(npu_shutdown());
    return 0;
}
