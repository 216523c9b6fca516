"""Random valid and invalid calls: no crash, no defect, and the same results twice."""

import pytest

PROGRAM = r"""
#include <inttypes.h>
enum { KEPT = 8, CALLS = 1500 };
static uint64_t state;
static uint64_t next(uint64_t bound)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % bound;
}
static void *things[KEPT]; /* device pointers and handles of all kinds, live and dead */
static char host[8192];
static void *any(void)
{
    switch (next(12)) {
    case 0: return NULL;
    case 1: return BAD;
    case 2: return host + next(64);
    case 3: return (void *)(uintptr_t)(state * 0x9e3779b97f4a7c15u);
    case 4: return (char *)things[next(KEPT)] + next(300);
    case 5: return (char *)things[next(KEPT)] - ((uint64_t)1 << 32);
    default: return things[next(KEPT)];
    }
}
static void **slot(void) { return next(20) ? &things[next(KEPT)] : any(); }
static uint64_t size(void) { return next(10) ? next(6000) : next(2) ? UINT64_MAX - next(3) : 0; }

int main(int argc, char **argv)
{
    uint64_t hash = 14695981039346656037u;
    int successes = 0;

    state = strtoull(argv[2], NULL, 10);
    need(npu_init(0));
    for (int i = 0; i < CALLS; i++) {
        npu_arg_t args[3] = {NPU_BUFFER(any()), NPU_BUFFER(any()), NPU_BUFFER(any())};
        npu_arg_info_t info = {.size = next(9) ? sizeof info : 4};
        npu_result_t r = NPU_SUCCESS;
        uint32_t call = next(22), number;
        uint64_t n = size(), m = size(), time;
        switch (call) {
        case 0: r = npu_malloc(slot(), n, next(9) == 0); break;
        case 1: r = npu_free(any()); break;
        case 2: r = npu_memcpy(any(), n, host, m % 4096, NPU_MEMCPY_HOST_TO_DEVICE); break;
        case 3: r = npu_memcpy(host, sizeof host, any(), m, NPU_MEMCPY_DEVICE_TO_HOST); break;
        case 4: r = npu_memcpy(any(), n, any(), m, NPU_MEMCPY_DEVICE_TO_DEVICE); break;
        case 5: r = npu_memset(any(), n, 3, m); break;
        case 6: r = npu_create_stream((npu_stream_t *)slot()); break;
        case 7: r = npu_destroy_stream(any()); break;
        case 8: r = npu_synchronize_stream(any()); break;
        case 9: r = npu_synchronize_stream_timeout(any(), n); break;
        case 10: r = npu_query_stream(any()); break;
        case 11: r = npu_load_blob((npu_blob_t *)slot(), next(9) ? argv[1] : any()); break;
        case 12: r = npu_unload(any()); break;
        case 13: r = npu_get_kernel((npu_kernel_t *)slot(), any(), next(9) ? NULL : any()); break;
        case 14: r = npu_get_num_args(any(), &number); break;
        case 15: r = npu_get_arg_info(any(), next(3), &info); break;
        case 16: r = npu_launch_kernel_async(any(), args, next(9) ? 2 : next(4), any()); break;
        case 17: r = npu_memcpy_async(any(), n, host, m % 4096, NPU_MEMCPY_HOST_TO_DEVICE, any()); break;
        case 18: r = npu_load_blob_mem((npu_blob_t *)slot(), host, n % 4096); break;
        case 19: r = npu_synchronize_device(); break;
        case 20: r = npu_set_device(next(2)); break;
        case 21: r = npu_host_delay(n % 1000); break;
        }
        successes += r == NPU_SUCCESS;
        if (r == NPU_ERROR_INTERNAL || strcmp(npu_get_error_name(r), "unknown") == 0) {
            printf("call %d: %u gave %d\n", i, call, r);
            detail();
        }
        hash = (hash ^ (uint32_t)r) * 1099511628211u;
    }
    uint64_t now;
    need(npu_get_time_ps(&now));
    printf("%016" PRIx64 " %" PRIu64 " %d\n", hash, now, successes > CALLS / 10);
    need(npu_shutdown());
}
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_random_calls_end_well_and_are_reproducible(run, blobs, seed):
    first = run(PROGRAM, str(blobs / "copy.blob"), str(seed))
    assert len(first) == 1
    assert first[0].endswith(" 1")
    assert run(PROGRAM, str(blobs / "copy.blob"), str(seed)) == first
