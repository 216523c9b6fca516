/* blobs.c - loading blobs, and what is known about their kernels. */
#include "expect.h"

static void loading(void)
{
    npu_blob_t blob = (npu_blob_t)BAD;
    static char data[1 << 16];
    FILE *file = fopen(blob_path("copy"), "rb");
    size_t size = fread(data, 1, sizeof data, file);

    fclose(file);
    expect(NPU_ERROR_NULL_POINTER, npu_load_blob(NULL, blob_path("copy")));
    expect(NPU_ERROR_NULL_POINTER, npu_load_blob(&blob, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_load_blob(BAD, blob_path("copy")));
    expect(NPU_ERROR_BAD_ADDRESS, npu_load_blob(&blob, BAD));
    expect(NPU_ERROR_FILE, npu_load_blob(&blob, blob_path("no such")));
    expect(NPU_ERROR_FILE, npu_load_blob(&blob, "/dev/zero"));
    expect(NPU_ERROR_INVALID_BLOB, npu_load_blob(&blob, blob_path("damaged")));
    expect(NPU_ERROR_NULL_POINTER, npu_load_blob_mem(NULL, data, size));
    expect(NPU_ERROR_NULL_POINTER, npu_load_blob_mem(&blob, NULL, size));
    expect(NPU_ERROR_BAD_ADDRESS, npu_load_blob_mem(BAD, data, size));
    expect(NPU_ERROR_BAD_ADDRESS, npu_load_blob_mem(&blob, BAD, size));
    expect(NPU_ERROR_INVALID_BLOB, npu_load_blob_mem(&blob, data, size - 1));
    expect(NPU_ERROR_INVALID_BLOB, npu_load_blob_mem(&blob, data, 0));
    claim(blob == (npu_blob_t)BAD);
    OK(npu_load_blob_mem(&blob, data, size));
    OK(npu_unload(blob));
    OK(npu_load_blob(&blob, blob_path("copy")));
    OK(npu_unload(blob));
}

static void unloading(void)
{
    npu_blob_t blob = load("long");
    npu_kernel_t kernel = kernel_of(blob);
    char *memory = allocate(2 << 18);
    npu_arg_t args[] = {NPU_BUFFER(memory), NPU_BUFFER(memory + (1 << 18))};

    expect(NPU_ERROR_INVALID_HANDLE, npu_unload(NULL));
    expect(NPU_ERROR_INVALID_HANDLE, npu_unload(MADE_UP(npu_blob_t)));
    OK(npu_launch_kernel_async(kernel, args, 2, NULL));
    expect(NPU_ERROR_IN_USE, npu_unload(blob));
    OK(npu_synchronize_stream(NULL));
    OK(npu_unload(blob));
    expect(NPU_ERROR_STALE_HANDLE, npu_unload(blob));
    OK(npu_free(memory));
}

static void out_of_memory(void)
{
    npu_blob_t blob = NULL;
    uint64_t free_bytes = 0, total_bytes = 0;
    static char data[1 << 16];
    FILE *file = fopen(blob_path("copy"), "rb");
    size_t size = fread(data, 1, sizeof data, file);
    void *memory[64];
    npu_result_t result;
    int count = 0;

    fclose(file);
    OK(npu_mem_get_info(&free_bytes, &total_bytes));
    for (uint64_t piece = free_bytes; piece >= 4096 && count < 64; ) /* take everything, in pieces of half the size */
        if (is(NPU_SUCCESS, result = npu_malloc(&memory[count], piece & ~(uint64_t)4095, 0)))
            count++;
        else if (expect(NPU_ERROR_OUT_OF_DEVICE_MEMORY, result))
            piece /= 2;
    expect(NPU_ERROR_OUT_OF_DEVICE_MEMORY, npu_load_blob(&blob, blob_path("copy")));
    expect(NPU_ERROR_OUT_OF_DEVICE_MEMORY, npu_load_blob_mem(&blob, data, size));
    while (count > 0)
        OK(npu_free(memory[--count]));
    OK(npu_load_blob(&blob, blob_path("copy")));
    OK(npu_unload(blob));
}

static void logs(void)
{
    npu_blob_t blob = load("copy"), none = NULL;
    size_t needed = 0;
    char text[4096] = "x";

    OK(npu_blob_get_log(blob, NULL, 0, &needed));
    claim(needed > 1 && needed < sizeof text);
    OK(npu_blob_get_log(blob, text, sizeof text, &needed));
    claim(strlen(text) + 1 == needed && strstr(text, "copy") != NULL);
    expect(NPU_ERROR_INVALID_BLOB, npu_load_blob(&none, blob_path("damaged")));
    OK(npu_blob_get_log(NULL, text, sizeof text, &needed));
    claim(strlen(text) + 1 == needed && strstr(text, "damaged.blob") != NULL);
    text[0] = 'x';
    needed = 0;
    expect(NPU_ERROR_OUT_OF_RANGE, npu_blob_get_log(blob, text, 1, &needed));
    claim(needed > 1 && text[0] == 'x');
    expect(NPU_ERROR_NULL_POINTER, npu_blob_get_log(blob, text, sizeof text, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_blob_get_log(blob, text, sizeof text, BAD));
    expect(NPU_ERROR_BAD_ADDRESS, npu_blob_get_log(blob, BAD, sizeof text, &needed));
    expect(NPU_ERROR_INVALID_HANDLE, npu_blob_get_log(MADE_UP(npu_blob_t), text, sizeof text, &needed));
    OK(npu_unload(blob));
    expect(NPU_ERROR_STALE_HANDLE, npu_blob_get_log(blob, text, sizeof text, &needed));
}

static void kernels(void)
{
    npu_blob_t blob = load("library");
    npu_kernel_t kernel = NULL, again = NULL;
    npu_kernel_info_t info = {.size = sizeof info};
    npu_arg_info_t arg = {.size = sizeof arg};
    uint32_t count = 0;

    OK(npu_get_kernel(&kernel, blob, "add"));
    OK(npu_get_kernel(&again, blob, "add"));
    claim(kernel == again);
    expect(NPU_ERROR_INVALID_VALUE, npu_get_kernel(&again, blob, "subtract"));
    expect(NPU_ERROR_INVALID_VALUE, npu_get_kernel(&again, blob, NULL)); /* it has three */
    expect(NPU_ERROR_NULL_POINTER, npu_get_kernel(NULL, blob, "add"));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_kernel(BAD, blob, "add"));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_kernel(&again, blob, BAD));
    expect(NPU_ERROR_INVALID_HANDLE, npu_get_kernel(&again, MADE_UP(npu_blob_t), "add"));

    OK(npu_get_kernel_info(kernel, &info));
    claim(info.arg_count == 5 && info.code_bytes == 16 * 16 && info.max_grid == 8 && info.cooperative == 0);
    claim(strcmp(info.name, "add") == 0);
    expect(NPU_ERROR_NULL_POINTER, npu_get_kernel_info(kernel, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_kernel_info(kernel, BAD));
    expect(NPU_ERROR_INVALID_HANDLE, npu_get_kernel_info(MADE_UP(npu_kernel_t), &info));
    info.size--;
    expect(NPU_ERROR_INVALID_SIZE, npu_get_kernel_info(kernel, &info));
    info.size++;

    OK(npu_get_num_args(kernel, &count));
    claim(count == 5);
    expect(NPU_ERROR_NULL_POINTER, npu_get_num_args(kernel, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_num_args(kernel, BAD));
    expect(NPU_ERROR_INVALID_HANDLE, npu_get_num_args(MADE_UP(npu_kernel_t), &count));

    OK(npu_get_arg_info(kernel, 2, &arg));
    claim(arg.kind == NPU_ARG_BUFFER && arg.direction == NPU_ARG_OUT && arg.dtype == NPU_DT_I32 && strcmp(arg.name, "blocks") == 0);
    claim(arg.rank == 0 && arg.size_bytes == 0);
    OK(npu_get_arg_info(kernel, 4, &arg));
    claim(arg.kind == NPU_ARG_FLOAT && arg.direction == NPU_ARG_IN && strcmp(arg.name, "offset") == 0);
    expect(NPU_ERROR_ARG_INDEX, npu_get_arg_info(kernel, 5, &arg));
    expect(NPU_ERROR_NULL_POINTER, npu_get_arg_info(kernel, 0, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_arg_info(kernel, 0, BAD));
    expect(NPU_ERROR_INVALID_HANDLE, npu_get_arg_info(MADE_UP(npu_kernel_t), 0, &arg));
    arg.size--;
    expect(NPU_ERROR_INVALID_SIZE, npu_get_arg_info(kernel, 0, &arg));
    arg.size++;

    OK(npu_unload(blob));
    expect(NPU_ERROR_STALE_HANDLE, npu_get_kernel(&kernel, blob, "add"));
    expect(NPU_ERROR_STALE_HANDLE, npu_get_kernel_info(kernel, &info));
    expect(NPU_ERROR_STALE_HANDLE, npu_get_num_args(kernel, &count));
    expect(NPU_ERROR_STALE_HANDLE, npu_get_arg_info(kernel, 0, &arg));
}

static void builtin_kernels(void)
{
    npu_kernel_t kernel = NULL;

    OK(npu_get_builtin_kernel(&kernel, "relu"));
    expect(NPU_ERROR_INVALID_VALUE, npu_get_builtin_kernel(&kernel, "gelu"));
    expect(NPU_ERROR_NULL_POINTER, npu_get_builtin_kernel(NULL, "relu"));
    expect(NPU_ERROR_NULL_POINTER, npu_get_builtin_kernel(&kernel, NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_builtin_kernel(BAD, "relu"));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_builtin_kernel(&kernel, BAD));
}

int main(int argc, char **argv)
{
    (void)argc;
    begin(argv);
    loading();
    unloading();
    logs();
    kernels();
    builtin_kernels();
    out_of_memory();
    return finish();
}
