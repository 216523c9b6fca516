/* launch.c - launches: what arguments a kernel takes, and waiting for all work. */
#include "expect.h"

static float input[16], output[16];

/* Both launch functions refuse the same; `grid` 0 takes the one without. */
static npu_result_t launch(int with_grid, npu_kernel_t kernel, const npu_arg_t *args, uint32_t count, npu_stream_t stream)
{
    return with_grid ? npu_launch_kernel_grid_async(kernel, 1, args, count, stream) : npu_launch_kernel_async(kernel, args, count, stream);
}

static void models(int with_grid)
{
    npu_blob_t blob = load("copy");
    npu_kernel_t kernel = kernel_of(blob);
    char *memory = allocate(4096);
    npu_arg_t args[] = {NPU_BUFFER(memory), NPU_BUFFER(memory + 64)}, good = args[0];

    OK(npu_memcpy(memory, 64, input, 64, NPU_MEMCPY_HOST_TO_DEVICE));
    OK(launch(with_grid, kernel, args, 2, NULL));
    args[0].value = args[1].value = 0; /* they were copied */
    OK(npu_memcpy(output, 64, memory + 64, 64, NPU_MEMCPY_DEVICE_TO_HOST));
    claim(memcmp(input, output, 64) == 0);
    args[0] = args[1] = good;
    args[1].value += 64;
    expect(NPU_ERROR_ARG_COUNT, launch(with_grid, kernel, args, 1, NULL));
    expect(NPU_ERROR_NULL_POINTER, launch(with_grid, kernel, NULL, 2, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, launch(with_grid, kernel, BAD, 2, NULL));
    expect(NPU_ERROR_INVALID_HANDLE, launch(with_grid, MADE_UP(npu_kernel_t), args, 2, NULL));
    expect(NPU_ERROR_INVALID_HANDLE, launch(with_grid, kernel, args, 2, MADE_UP(npu_stream_t)));
    expect(NPU_ERROR_STALE_HANDLE, launch(with_grid, kernel, args, 2, stale_stream()));
    args[0].kind = NPU_ARG_INT;
    expect(NPU_ERROR_ARG_KIND, launch(with_grid, kernel, args, 2, NULL));
    args[0] = good;
    args[0].value = (uintptr_t)input; /* pageable memory */
    expect(NPU_ERROR_ARG_KIND, launch(with_grid, kernel, args, 2, NULL));
    args[0] = good;
    args[0].reserved = 1;
    expect(NPU_ERROR_INVALID_VALUE, launch(with_grid, kernel, args, 2, NULL));
    args[0] = good;
    args[0].value = (uintptr_t)memory + 4096 - 60;
    expect(NPU_ERROR_ARG_SIZE, launch(with_grid, kernel, args, 2, NULL));
    args[0].value = (uintptr_t)memory + 4;
    expect(NPU_ERROR_MISALIGNED, launch(with_grid, kernel, args, 2, NULL));
    args[0].value = (uintptr_t)stale_memory(64);
    expect(NPU_ERROR_STALE_HANDLE, launch(with_grid, kernel, args, 2, NULL));
    args[0] = good;
    expect(NPU_ERROR_INVALID_VALUE, npu_launch_kernel_grid_async(kernel, 2, args, 2, NULL));
    OK(npu_unload(blob));
    expect(NPU_ERROR_STALE_HANDLE, launch(with_grid, kernel, args, 2, NULL));
    OK(npu_free(memory));
}

static void in_parts(int with_grid)
{
    npu_blob_t blob = load("parts");
    npu_kernel_t kernel = kernel_of(blob);
    char *memory = allocate(4096);
    npu_arg_t args[] = {NPU_BUFFER(memory), NPU_BUFFER(memory + 64)};
    npu_arg_info_t info = {.size = sizeof info};

    OK(npu_get_arg_info(kernel, 1, &info));
    claim(info.rank == 2 && info.dims[0] == 2 && info.dims[1] == 0 && info.size_bytes == 0);
    expect(NPU_ERROR_NOT_SUPPORTED, launch(with_grid, kernel, args, 2, NULL));
    OK(npu_unload(blob));
    OK(npu_free(memory));
}

static void other_contexts(int with_grid)
{
    npu_blob_t blob = load("copy");
    npu_kernel_t kernel = kernel_of(blob);
    char *memory = allocate(128), *elsewhere;
    npu_context_t context = NULL;
    npu_stream_t stream = NULL;
    npu_arg_t args[] = {NPU_BUFFER(memory), NPU_BUFFER(memory + 64)};

    OK(npu_create_context(&context, 0));
    stream = new_stream();
    elsewhere = allocate(128);
    expect(NPU_ERROR_WRONG_CONTEXT, launch(with_grid, kernel, args, 2, stream));
    OK(npu_set_current_context(NULL));
    args[0].value = (uintptr_t)elsewhere;
    expect(NPU_ERROR_WRONG_CONTEXT, launch(with_grid, kernel, args, 2, NULL));
    OK(npu_destroy_context(context, NPU_DESTROY_FORCE));
    OK(npu_unload(blob));
    OK(npu_free(memory));
}

static void libraries(int with_grid)
{
    npu_blob_t blob = load("library");
    npu_kernel_t add = NULL;
    char *memory = allocate(4096);
    int32_t blocks[8];
    npu_arg_t args[] = {NPU_BUFFER(memory), NPU_BUFFER(memory + 64), NPU_BUFFER(memory + 128), NPU_INT(-3), {NPU_ARG_FLOAT, 0, npu_float_bits(0.25f)}};
    npu_arg_t good[5];

    memcpy(good, args, sizeof args);
    OK(npu_get_kernel(&add, blob, "add"));
    OK(npu_memcpy(memory, 64, input, 64, NPU_MEMCPY_HOST_TO_DEVICE));
    OK(npu_memset(memory + 128, 32, 0xff, 32));
    OK(npu_launch_kernel_grid_async(add, 5, args, 5, NULL));
    OK(npu_memcpy(output, 64, memory + 64, 64, NPU_MEMCPY_DEVICE_TO_HOST));
    OK(npu_memcpy(blocks, 32, memory + 128, 32, NPU_MEMCPY_DEVICE_TO_HOST));
    claim(output[0] == input[0] - 2.75f && output[15] == input[15] - 2.75f);
    claim(blocks[0] == 0 && blocks[4] == 4 && blocks[5] == -1); /* five blocks ran */
    OK(launch(with_grid, add, args, 5, NULL));
    OK(npu_launch_kernel_grid_async(add, 0, args, 5, NULL));
    OK(npu_synchronize_stream(NULL));
    expect(NPU_ERROR_INVALID_VALUE, npu_launch_kernel_grid_async(add, 9, args, 5, NULL));
    expect(NPU_ERROR_INVALID_VALUE, npu_launch_kernel_grid_async(add, 1025, args, 5, NULL));
    args[3].kind = NPU_ARG_FLOAT;
    expect(NPU_ERROR_ARG_KIND, launch(with_grid, add, args, 5, NULL));
    args[3] = good[3];
    args[4].kind = NPU_ARG_INT;
    expect(NPU_ERROR_ARG_KIND, launch(with_grid, add, args, 5, NULL));
    args[4] = good[4];
    args[4].value |= (uint64_t)1 << 32; /* a float has 32 bits */
    expect(NPU_ERROR_INVALID_VALUE, launch(with_grid, add, args, 5, NULL));
    args[4] = good[4];
    args[1].value += 2;
    expect(NPU_ERROR_MISALIGNED, launch(with_grid, add, args, 5, NULL));
    args[1] = good[1];
    args[1].kind = NPU_ARG_INT;
    expect(NPU_ERROR_ARG_KIND, launch(with_grid, add, args, 5, NULL));
    OK(npu_unload(blob));
    OK(npu_free(memory));
}

/* Both ways to call it: the macro, and the functions behind it. */
static npu_result_t submit(int sized, const char *name, const kernel_params_t *params)
{
    return sized ? npu_submit_kernel(name, params) : (npu_submit_kernel)(name, params);
}

static void by_name(int sized)
{
    char *memory = allocate(4096), *elsewhere;
    kernel_params_t params = {.input_addr = (uint64_t)memory, .output_addr = (uint64_t)(memory + 64), .N = 1, .C = 1, .H = 4, .W = 4}, bad = params;
    uint32_t version = (uint32_t)NPU_VERSION_MAJOR << 16 | NPU_VERSION_MINOR;
    npu_context_t context = NULL;

    OK(npu_memcpy(memory, 64, input, 64, NPU_MEMCPY_HOST_TO_DEVICE));
    OK(submit(sized, "relu", &params));
    OK(npu_wait_for_completion());
    OK(npu_memcpy(output, 64, memory + 64, 64, NPU_MEMCPY_DEVICE_TO_HOST));
    claim(output[0] == 0 && output[15] == input[15]); /* input[0] is negative */
    expect(NPU_ERROR_NULL_POINTER, submit(sized, NULL, &params));
    expect(NPU_ERROR_BAD_ADDRESS, submit(sized, BAD, &params));
    expect(NPU_ERROR_NULL_POINTER, submit(sized, "relu", NULL));
    expect(NPU_ERROR_BAD_ADDRESS, submit(sized, "relu", BAD));
    expect(NPU_ERROR_INVALID_VALUE, submit(sized, "gelu", &params));
    expect(NPU_ERROR_INVALID_VALUE, submit(sized, "matmul", &params)); /* it does not take these */
    bad.C = 0;
    expect(NPU_ERROR_INVALID_VALUE, submit(sized, "relu", &bad));
    bad = params;
    bad.input_addr = (uint64_t)input;
    expect(NPU_ERROR_ARG_KIND, submit(sized, "relu", &bad));
    bad.input_addr = (uint64_t)(memory + 4096 - 60);
    expect(NPU_ERROR_ARG_SIZE, submit(sized, "relu", &bad));
    bad.input_addr = (uint64_t)(memory + 2);
    expect(NPU_ERROR_MISALIGNED, submit(sized, "relu", &bad));
    bad.input_addr = (uint64_t)stale_memory(64);
    expect(NPU_ERROR_STALE_HANDLE, submit(sized, "relu", &bad));
    OK(npu_create_context(&context, 0));
    elsewhere = allocate(64);
    OK(npu_set_current_context(NULL));
    bad.input_addr = (uint64_t)elsewhere;
    expect(NPU_ERROR_WRONG_CONTEXT, submit(sized, "relu", &bad));
    OK(npu_destroy_context(context, NPU_DESTROY_FORCE));
    if (sized) {
        expect(NPU_ERROR_INVALID_SIZE, npu_submit_kernel_sized("relu", &params, sizeof params - 1, version));
        expect(NPU_ERROR_VERSION_MISMATCH, npu_submit_kernel_sized("relu", &params, sizeof params, version + 1));
    }
    OK(npu_free(memory));
}

static void completion(void)
{
    npu_blob_t blob = load("long");
    npu_kernel_t kernel = kernel_of(blob);
    char *memory = allocate(2 << 18);
    npu_arg_t args[] = {NPU_BUFFER(memory), NPU_BUFFER(memory + (1 << 18))};
    npu_stream_t stream = new_stream();

    OK(npu_launch_kernel_async(kernel, args, 2, stream));
    expect(NPU_TIMEOUT, npu_wait_for_completion_timeout(1));
    expect(NPU_NOT_READY, npu_query_stream(stream));
    OK(npu_wait_for_completion());
    OK(npu_query_stream(stream));
    OK(npu_launch_kernel_async(kernel, args, 2, stream));
    OK(npu_wait_for_completion_timeout(1000000000));
    OK(npu_query_stream(stream));
    OK(npu_destroy_stream(stream));
    OK(npu_unload(blob));
    OK(npu_free(memory));
}

int main(int argc, char **argv)
{
    (void)argc;
    begin(argv);
    for (int i = 0; i < 16; i++)
        input[i] = (float)i - 0.5f;
    for (int other = 0; other < 2; other++) {
        models(other);
        in_parts(other);
        other_contexts(other);
        libraries(other);
        by_name(other);
    }
    completion();
    return finish();
}
