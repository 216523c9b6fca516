/* copies.c - copies and fills, at once and in stream order. */
#include "expect.h"

static char input[64] = "input", output[64];
static void *elsewhere; /* memory of a context that is not the current one */

/* The four ways to copy, in one form: 64 bytes a row, two rows when it is 2-D. */
typedef npu_result_t copy_t(void *dst, size_t dst_max, const void *src, size_t size, npu_memcpy_kind_t kind, npu_stream_t stream);

static npu_result_t at_once(void *dst, size_t dst_max, const void *src, size_t size, npu_memcpy_kind_t kind, npu_stream_t stream)
{
    (void)stream;
    return npu_memcpy(dst, dst_max, src, size, kind);
}

static npu_result_t rows_at_once(void *dst, size_t dst_max, const void *src, size_t size, npu_memcpy_kind_t kind, npu_stream_t stream)
{
    (void)stream;
    return npu_memcpy_2d(dst, size / 2, dst_max, src, size / 2, size / 2, 2, kind);
}

static npu_result_t rows_async(void *dst, size_t dst_max, const void *src, size_t size, npu_memcpy_kind_t kind, npu_stream_t stream)
{
    return npu_memcpy_2d_async(dst, size / 2, dst_max, src, size / 2, size / 2, 2, kind, stream);
}

static void copies(copy_t *copy, int has_stream)
{
    char *memory = allocate(4096);

    OK(copy(memory, 64, input, 64, NPU_MEMCPY_HOST_TO_DEVICE, NULL));
    OK(copy(memory + 64, 64, memory, 64, NPU_MEMCPY_DEVICE_TO_DEVICE, NULL));
    OK(copy(output, 64, memory + 64, 64, NPU_MEMCPY_DEFAULT, NULL));
    claim(memcmp(input, output, 64) == 0);
    expect(NPU_ERROR_INVALID_VALUE, copy(memory, 64, input, 64, (npu_memcpy_kind_t)0, NULL));
    expect(NPU_ERROR_INVALID_VALUE, copy(memory, 64, input, 64, NPU_MEMCPY_DEVICE_TO_HOST, NULL));
    expect(NPU_ERROR_NULL_POINTER, copy(NULL, 64, input, 64, NPU_MEMCPY_DEFAULT, NULL));
    expect(NPU_ERROR_NULL_POINTER, copy(memory, 64, NULL, 64, NPU_MEMCPY_DEFAULT, NULL));
    expect(NPU_ERROR_OUT_OF_RANGE, copy(memory, 63, input, 64, NPU_MEMCPY_DEFAULT, NULL));
    expect(NPU_ERROR_OUT_OF_RANGE, copy(memory + 4064, 64, input, 64, NPU_MEMCPY_DEFAULT, NULL));
    expect(NPU_ERROR_STALE_HANDLE, copy(stale_memory(64), 64, input, 64, NPU_MEMCPY_DEFAULT, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, copy(memory, 64, BAD, 64, NPU_MEMCPY_DEFAULT, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, copy(BAD, 64, memory, 64, NPU_MEMCPY_DEFAULT, NULL));
    expect(NPU_ERROR_OVERLAP, copy(memory, 64, memory + 16, 64, NPU_MEMCPY_DEVICE_TO_DEVICE, NULL));
    expect(NPU_ERROR_WRONG_CONTEXT, copy(elsewhere, 64, input, 64, NPU_MEMCPY_DEFAULT, NULL));
    if (has_stream) {
        expect(NPU_ERROR_NOT_SUPPORTED, copy(output, 64, input, 64, NPU_MEMCPY_HOST_TO_HOST, NULL));
        expect(NPU_ERROR_INVALID_HANDLE, copy(memory, 64, input, 64, NPU_MEMCPY_DEFAULT, MADE_UP(npu_stream_t)));
        expect(NPU_ERROR_STALE_HANDLE, copy(memory, 64, input, 64, NPU_MEMCPY_DEFAULT, stale_stream()));
    } else {
        memset(output, 0, 64);
        OK(copy(output, 64, input, 64, NPU_MEMCPY_HOST_TO_HOST, NULL));
        claim(memcmp(input, output, 64) == 0);
    }
    OK(npu_free(memory));
}

static void pitches(void)
{
    char *memory = allocate(4096);

    OK(npu_memcpy_2d(memory, 1024, 4096, input, 16, 16, 4, NPU_MEMCPY_HOST_TO_DEVICE));
    OK(npu_memcpy_2d_async(output, 16, 64, memory, 1024, 16, 4, NPU_MEMCPY_DEVICE_TO_HOST, NULL));
    claim(memcmp(input, output, 64) == 0);
    expect(NPU_ERROR_INVALID_SIZE, npu_memcpy_2d(memory, 15, 4096, input, 16, 16, 4, NPU_MEMCPY_HOST_TO_DEVICE));
    expect(NPU_ERROR_INVALID_SIZE, npu_memcpy_2d_async(memory, 16, 4096, input, 15, 16, 4, NPU_MEMCPY_HOST_TO_DEVICE, NULL));
    OK(npu_free(memory));
}

static npu_result_t fill_at_once(void *dst, size_t dst_max, int32_t value, size_t size, npu_stream_t stream)
{
    (void)stream;
    return npu_memset(dst, dst_max, value, size);
}

static void fills(npu_result_t (*fill)(void *, size_t, int32_t, size_t, npu_stream_t))
{
    char *memory = allocate(4096);

    OK(fill(memory + 1, 64, 0x121, 63, NULL));
    OK(npu_memcpy(output, 64, memory, 64, NPU_MEMCPY_DEVICE_TO_HOST));
    claim((unsigned char)output[0] == 0xff && output[1] == 0x21 && output[63] == 0x21);
    expect(NPU_ERROR_NULL_POINTER, fill(NULL, 64, 1, 64, NULL));
    expect(NPU_ERROR_OUT_OF_RANGE, fill(memory, 63, 1, 64, NULL));
    expect(NPU_ERROR_OUT_OF_RANGE, fill(memory + 4064, 64, 1, 64, NULL));
    expect(NPU_ERROR_OUT_OF_RANGE, fill(output, 64, 1, 64, NULL)); /* pageable */
    expect(NPU_ERROR_STALE_HANDLE, fill(stale_memory(64), 64, 1, 64, NULL));
    expect(NPU_ERROR_WRONG_CONTEXT, fill(elsewhere, 64, 1, 64, NULL));
    OK(npu_free(memory));
}

static void peers(void)
{
    char *memory = allocate(4096);

    OK(npu_memset(memory, 64, 7, 64));
    OK(npu_memcpy_peer(elsewhere, 64, memory, 64));
    OK(npu_memcpy_peer(memory + 64, 64, elsewhere, 64));
    OK(npu_memcpy(output, 64, memory + 64, 64, NPU_MEMCPY_DEVICE_TO_HOST));
    claim(output[63] == 7);
    expect(NPU_ERROR_NULL_POINTER, npu_memcpy_peer(NULL, 64, memory, 64));
    expect(NPU_ERROR_NULL_POINTER, npu_memcpy_peer(memory, 64, NULL, 64));
    expect(NPU_ERROR_OUT_OF_RANGE, npu_memcpy_peer(elsewhere, 63, memory, 64));
    expect(NPU_ERROR_STALE_HANDLE, npu_memcpy_peer(elsewhere, 64, stale_memory(64), 64));
    expect(NPU_ERROR_OVERLAP, npu_memcpy_peer(memory, 64, memory + 1, 64));
    OK(npu_free(memory));
}

/* Pageable memory cannot be copied asynchronously under strict rules. */
static void strict(void)
{
    char *memory;

    OK(npu_shutdown());
    OK(npu_init(0));
    OK(npu_set_semantics(NPU_SEMANTICS_STRICT));
    memory = allocate(64);
    expect(NPU_ERROR_NOT_PERMITTED, npu_memcpy_async(memory, 64, input, 64, NPU_MEMCPY_DEFAULT, NULL));
    expect(NPU_ERROR_NOT_PERMITTED, rows_async(memory, 64, input, 64, NPU_MEMCPY_DEFAULT, NULL));
    OK(npu_memcpy(memory, 64, input, 64, NPU_MEMCPY_DEFAULT));
}

int main(int argc, char **argv)
{
    npu_context_t context = NULL;

    (void)argc;
    begin(argv);
    OK(npu_create_context(&context, 0));
    elsewhere = allocate(64);
    OK(npu_set_current_context(NULL));
    copies(at_once, 0);
    copies(rows_at_once, 0);
    copies(npu_memcpy_async, 1);
    copies(rows_async, 1);
    pitches();
    fills(fill_at_once);
    fills(npu_memset_async);
    expect(NPU_ERROR_INVALID_HANDLE, npu_memset_async(elsewhere, 64, 1, 64, MADE_UP(npu_stream_t)));
    peers();
    strict();
    return finish();
}
