/* command_lists.c - operations that are put together once and submitted as one. */
#include "expect.h"

static float input[16], output[16];

static npu_cmdlist_t new_list(void)
{
    npu_cmdlist_t list = NULL;

    OK(npu_cmdlist_create(&list, 0));
    return list;
}

static npu_cmdlist_t stale_list(void)
{
    npu_cmdlist_t list = new_list();

    OK(npu_cmdlist_destroy(list));
    return list;
}

static void life(void)
{
    npu_cmdlist_t list = NULL;

    expect(NPU_ERROR_NULL_POINTER, npu_cmdlist_create(NULL, 0));
    expect(NPU_ERROR_BAD_ADDRESS, npu_cmdlist_create(BAD, 0));
    expect(NPU_ERROR_INVALID_VALUE, npu_cmdlist_create(&list, 1));
    list = new_list();
    expect(NPU_ERROR_BAD_STATE, npu_cmdlist_submit(list, NULL)); /* it is open */
    OK(npu_cmdlist_close(list));
    expect(NPU_ERROR_BAD_STATE, npu_cmdlist_close(list));
    OK(npu_cmdlist_submit(list, NULL)); /* an empty one does nothing */
    OK(npu_synchronize_stream(NULL));
    OK(npu_cmdlist_reset(list));
    OK(npu_cmdlist_close(list));
    OK(npu_cmdlist_destroy(list));
    expect(NPU_ERROR_STALE_HANDLE, npu_cmdlist_close(list));
    expect(NPU_ERROR_STALE_HANDLE, npu_cmdlist_reset(list));
    expect(NPU_ERROR_STALE_HANDLE, npu_cmdlist_submit(list, NULL));
    expect(NPU_ERROR_STALE_HANDLE, npu_cmdlist_destroy(list));
    expect(NPU_ERROR_INVALID_HANDLE, npu_cmdlist_close(MADE_UP(npu_cmdlist_t)));
    expect(NPU_ERROR_INVALID_HANDLE, npu_cmdlist_reset(MADE_UP(npu_cmdlist_t)));
    expect(NPU_ERROR_INVALID_HANDLE, npu_cmdlist_submit(MADE_UP(npu_cmdlist_t), NULL));
    expect(NPU_ERROR_INVALID_HANDLE, npu_cmdlist_destroy(MADE_UP(npu_cmdlist_t)));
}

static void one_after_the_other(void)
{
    npu_blob_t blob = load("copy");
    npu_kernel_t kernel = kernel_of(blob);
    char *memory = allocate(4096);
    npu_cmdlist_t list = new_list();
    npu_arg_t args[] = {NPU_BUFFER(memory), NPU_BUFFER(memory + 64)};

    OK(npu_memset(memory, 4096, 0, 4096));
    OK(npu_cmdlist_append_memset(list, memory, 4096, 0x3f, 64));
    OK(npu_cmdlist_append_kernel(list, kernel, args, 2));
    args[0].value = 0; /* it was copied */
    OK(npu_cmdlist_append_memcpy(list, memory + 128, 64, memory + 64, 64, NPU_MEMCPY_DEVICE_TO_DEVICE));
    OK(npu_cmdlist_close(list));
    OK(npu_memcpy(output, 64, memory + 128, 64, NPU_MEMCPY_DEVICE_TO_HOST));
    claim(output[15] == 0); /* nothing has run */
    for (int times = 0; times < 2; times++) {
        OK(npu_cmdlist_submit(list, NULL));
        OK(npu_memcpy(output, 64, memory + 128, 64, NPU_MEMCPY_DEVICE_TO_HOST));
        claim(((unsigned char *)output)[63] == 0x3f);
        OK(npu_memset(memory, 4096, 0, 4096));
    }
    OK(npu_cmdlist_destroy(list));
    OK(npu_unload(blob));
    OK(npu_free(memory));
}

static void kernels(void)
{
    npu_blob_t blob = load("copy"), parts = load("parts");
    npu_kernel_t kernel = kernel_of(blob);
    char *memory = allocate(4096), *elsewhere;
    npu_cmdlist_t list = new_list();
    npu_context_t context = NULL;
    npu_arg_t args[] = {NPU_BUFFER(memory), NPU_BUFFER(memory + 64)}, good = args[0];

    OK(npu_cmdlist_append_kernel(list, kernel, args, 2));
    expect(NPU_ERROR_INVALID_HANDLE, npu_cmdlist_append_kernel(MADE_UP(npu_cmdlist_t), kernel, args, 2));
    expect(NPU_ERROR_STALE_HANDLE, npu_cmdlist_append_kernel(stale_list(), kernel, args, 2));
    expect(NPU_ERROR_INVALID_HANDLE, npu_cmdlist_append_kernel(list, MADE_UP(npu_kernel_t), args, 2));
    expect(NPU_ERROR_ARG_COUNT, npu_cmdlist_append_kernel(list, kernel, args, 3));
    expect(NPU_ERROR_NOT_SUPPORTED, npu_cmdlist_append_kernel(list, kernel_of(parts), args, 2));
    expect(NPU_ERROR_NULL_POINTER, npu_cmdlist_append_kernel(list, kernel, NULL, 2));
    expect(NPU_ERROR_BAD_ADDRESS, npu_cmdlist_append_kernel(list, kernel, BAD, 2));
    args[0].kind = NPU_ARG_FLOAT;
    expect(NPU_ERROR_ARG_KIND, npu_cmdlist_append_kernel(list, kernel, args, 2));
    args[0] = good;
    args[0].reserved = 1;
    expect(NPU_ERROR_INVALID_VALUE, npu_cmdlist_append_kernel(list, kernel, args, 2));
    args[0] = good;
    args[0].value = (uintptr_t)memory + 4096 - 60;
    expect(NPU_ERROR_ARG_SIZE, npu_cmdlist_append_kernel(list, kernel, args, 2));
    args[0].value = (uintptr_t)memory + 4;
    expect(NPU_ERROR_MISALIGNED, npu_cmdlist_append_kernel(list, kernel, args, 2));
    args[0].value = (uintptr_t)stale_memory(64);
    expect(NPU_ERROR_STALE_HANDLE, npu_cmdlist_append_kernel(list, kernel, args, 2));
    OK(npu_create_context(&context, 0));
    elsewhere = allocate(64);
    OK(npu_set_current_context(NULL));
    args[0].value = (uintptr_t)elsewhere;
    expect(NPU_ERROR_WRONG_CONTEXT, npu_cmdlist_append_kernel(list, kernel, args, 2));
    args[0] = good;
    OK(npu_destroy_context(context, NPU_DESTROY_FORCE));
    OK(npu_cmdlist_close(list));
    expect(NPU_ERROR_BAD_STATE, npu_cmdlist_append_kernel(list, kernel, args, 2));
    expect(NPU_ERROR_IN_USE, npu_unload(blob)); /* the list has a launch of it */
    OK(npu_cmdlist_destroy(list));
    OK(npu_unload(blob));
    OK(npu_free(memory));
}

static void copies(void)
{
    char *memory = allocate(4096), *elsewhere;
    npu_cmdlist_t list = new_list();
    npu_context_t context = NULL;

    OK(npu_cmdlist_append_memcpy(list, memory, 64, memory + 64, 64, NPU_MEMCPY_DEVICE_TO_DEVICE));
    expect(NPU_ERROR_INVALID_HANDLE, npu_cmdlist_append_memcpy(MADE_UP(npu_cmdlist_t), memory, 64, memory + 64, 64, NPU_MEMCPY_DEVICE_TO_DEVICE));
    expect(NPU_ERROR_STALE_HANDLE, npu_cmdlist_append_memcpy(stale_list(), memory, 64, memory + 64, 64, NPU_MEMCPY_DEVICE_TO_DEVICE));
    expect(NPU_ERROR_INVALID_VALUE, npu_cmdlist_append_memcpy(list, memory, 64, memory + 64, 64, (npu_memcpy_kind_t)9));
    expect(NPU_ERROR_NULL_POINTER, npu_cmdlist_append_memcpy(list, NULL, 64, memory + 64, 64, NPU_MEMCPY_DEVICE_TO_DEVICE));
    expect(NPU_ERROR_OUT_OF_RANGE, npu_cmdlist_append_memcpy(list, memory, 63, memory + 64, 64, NPU_MEMCPY_DEVICE_TO_DEVICE));
    expect(NPU_ERROR_OVERLAP, npu_cmdlist_append_memcpy(list, memory, 64, memory + 63, 64, NPU_MEMCPY_DEVICE_TO_DEVICE));
    expect(NPU_ERROR_STALE_HANDLE, npu_cmdlist_append_memcpy(list, memory, 64, stale_memory(64), 64, NPU_MEMCPY_DEVICE_TO_DEVICE));
    expect(NPU_ERROR_NOT_SUPPORTED, npu_cmdlist_append_memcpy(list, memory, 64, input, 64, NPU_MEMCPY_HOST_TO_DEVICE));
    OK(npu_create_context(&context, 0));
    elsewhere = allocate(64);
    OK(npu_set_current_context(NULL));
    expect(NPU_ERROR_WRONG_CONTEXT, npu_cmdlist_append_memcpy(list, memory, 64, elsewhere, 64, NPU_MEMCPY_DEVICE_TO_DEVICE));

    OK(npu_cmdlist_append_memset(list, memory, 64, 1, 64));
    expect(NPU_ERROR_INVALID_HANDLE, npu_cmdlist_append_memset(MADE_UP(npu_cmdlist_t), memory, 64, 1, 64));
    expect(NPU_ERROR_STALE_HANDLE, npu_cmdlist_append_memset(stale_list(), memory, 64, 1, 64));
    expect(NPU_ERROR_NULL_POINTER, npu_cmdlist_append_memset(list, NULL, 64, 1, 64));
    expect(NPU_ERROR_OUT_OF_RANGE, npu_cmdlist_append_memset(list, memory, 63, 1, 64));
    expect(NPU_ERROR_STALE_HANDLE, npu_cmdlist_append_memset(list, stale_memory(64), 64, 1, 64));
    expect(NPU_ERROR_WRONG_CONTEXT, npu_cmdlist_append_memset(list, elsewhere, 64, 1, 64));

    OK(npu_destroy_context(context, NPU_DESTROY_FORCE));
    OK(npu_cmdlist_close(list));
    expect(NPU_ERROR_BAD_STATE, npu_cmdlist_append_memcpy(list, memory, 64, memory + 64, 64, NPU_MEMCPY_DEVICE_TO_DEVICE));
    expect(NPU_ERROR_BAD_STATE, npu_cmdlist_append_memset(list, memory, 64, 1, 64));
    OK(npu_cmdlist_destroy(list));
    OK(npu_free(memory));
}

static void submitting(void)
{
    npu_blob_t blob = load("library");
    npu_kernel_t spin = NULL;
    char *memory = allocate(4096), *other = allocate(4096);
    npu_cmdlist_t list = new_list(), copy = new_list();
    npu_stream_t stream = new_stream(), second = new_stream(), elsewhere;
    npu_context_t context = NULL;

    OK(npu_get_kernel(&spin, blob, "spin"));
    OK(npu_cmdlist_append_kernel(list, spin, NULL, 0));
    OK(npu_cmdlist_close(list));
    OK(npu_cmdlist_append_memcpy(copy, memory, 64, other, 64, NPU_MEMCPY_DEVICE_TO_DEVICE));
    OK(npu_cmdlist_close(copy));
    expect(NPU_ERROR_INVALID_HANDLE, npu_cmdlist_submit(list, MADE_UP(npu_stream_t)));
    expect(NPU_ERROR_STALE_HANDLE, npu_cmdlist_submit(list, stale_stream()));
    OK(npu_create_context(&context, 0));
    elsewhere = new_stream();
    expect(NPU_ERROR_WRONG_CONTEXT, npu_cmdlist_submit(list, elsewhere));
    OK(npu_destroy_context(context, NPU_DESTROY_FORCE));
    OK(npu_cmdlist_submit(list, stream));
    OK(npu_cmdlist_submit(list, stream)); /* behind the first */
    expect(NPU_ERROR_IN_USE, npu_cmdlist_submit(list, second));
    expect(NPU_ERROR_IN_USE, npu_cmdlist_reset(list));
    OK(npu_synchronize_stream(stream));
    OK(npu_cmdlist_submit(list, second));
    OK(npu_cmdlist_destroy(list)); /* its work goes on */
    OK(npu_synchronize_stream(second));
    OK(npu_free(other));
    expect(NPU_ERROR_STALE_HANDLE, npu_cmdlist_submit(copy, stream));
    OK(npu_cmdlist_destroy(copy));
    OK(npu_destroy_stream(stream));
    OK(npu_destroy_stream(second));
    OK(npu_unload(blob));
    OK(npu_free(memory));
}

int main(int argc, char **argv)
{
    (void)argc;
    begin(argv);
    life();
    one_after_the_other();
    kernels();
    copies();
    submitting();
    return finish();
}
