/* SPDX-License-Identifier: Apache-2.0
 * Run a compiled model: load a blob, fill its inputs from raw files, launch it on a stream, show the outputs.
 *
 *     npu compile model.onnx -o model.blob
 *     gcc run_blob.c $(npu-config --cflags --libs) -o run_blob
 *     ./run_blob model.blob input0.raw [input1.raw ...] [-o PREFIX]
 *
 * A raw file holds one tensor, dense and row-major, in the type that the model has for it. With -o, output i is written to PREFIXi.raw.
 */
#include <npu.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ARGS = 64, SHOWN = 6 };

/* Every call can fail, and says why. */
#define CHECK(call) check((call), #call)
static void check(npu_result_t result, const char *call)
{
    npu_error_detail_t detail = {.size = sizeof detail};

    if (result == NPU_SUCCESS)
        return;
    fprintf(stderr, "run_blob: %.*s: %s", (int)strcspn(call, "("), call, npu_get_error_string(result));
    if (npu_get_last_error_detail(&detail) == NPU_SUCCESS && detail.result == result)
        fprintf(stderr, " (%s)", detail.message);
    fprintf(stderr, "\n");
    exit(1);
}

static void fail(const char *what, const char *name)
{
    fprintf(stderr, "run_blob: %s: %s\n", name, what);
    exit(1);
}

static void read_file(const char *path, void *data, size_t size)
{
    FILE *file = fopen(path, "rb");

    if (file == NULL || fread(data, 1, size, file) != size || fgetc(file) != EOF)
        fail("cannot be read, or is not as long as the tensor", path);
    fclose(file);
}

static void write_file(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");

    if (file == NULL || fwrite(data, 1, size, file) != size || fclose(file) != 0)
        fail("cannot be written", path);
}

static const char *const type_names[NPU_DT_COUNT] = {"f16", "bf16", "f32", "f64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "bool"};

static void print_value(uint32_t dtype, const unsigned char *at)
{
    switch (dtype) {
    case NPU_DT_F32: { float v; memcpy(&v, at, sizeof v); printf(" %.6g", v); break; }
    case NPU_DT_F64: { double v; memcpy(&v, at, sizeof v); printf(" %.6g", v); break; }
    case NPU_DT_I8: { int8_t v; memcpy(&v, at, sizeof v); printf(" %d", v); break; }
    case NPU_DT_U8:
    case NPU_DT_BOOL: printf(" %u", *at); break;
    case NPU_DT_I32: { int32_t v; memcpy(&v, at, sizeof v); printf(" %d", v); break; }
    case NPU_DT_I64: { int64_t v; memcpy(&v, at, sizeof v); printf(" %lld", (long long)v); break; }
    default: printf(" (0x%02x%02x...)", at[1], at[0]); break;
    }
}

static void print_tensor(const npu_arg_info_t *info, const unsigned char *data)
{
    uint64_t count = 1;

    printf("%s %s[", info->name, info->dtype < NPU_DT_COUNT ? type_names[info->dtype] : "?");
    for (uint32_t i = 0; i < info->rank; i++) {
        printf(i ? ",%llu" : "%llu", (unsigned long long)info->dims[i]);
        count *= info->dims[i];
    }
    printf("]:");
    for (uint64_t i = 0; i < count && i < SHOWN; i++)
        print_value(info->dtype, data + i * (info->size_bytes / count));
    printf(count > SHOWN ? " ...\n" : "\n");
}

int main(int argc, char **argv)
{
    const char *prefix = NULL;
    npu_blob_t blob;
    npu_kernel_t kernel;
    npu_stream_t stream;
    npu_arg_info_t info[MAX_ARGS];
    npu_arg_t args[MAX_ARGS];
    void *buffers[MAX_ARGS], *host;
    uint32_t count, used = 2, output = 0;
    uint64_t before, after;
    size_t largest = 1;

    if (argc >= 4 && strcmp(argv[argc - 2], "-o") == 0) {
        prefix = argv[argc - 1];
        argc -= 2;
    }
    if (argc < 2) {
        fprintf(stderr, "usage: run_blob BLOB [INPUT.raw ...] [-o PREFIX]\n");
        return 2;
    }

    CHECK(npu_init(0));
    CHECK(npu_load_blob(&blob, argv[1]));
    CHECK(npu_get_kernel(&kernel, blob, NULL));
    CHECK(npu_create_stream(&stream));

    /* One device buffer for each argument; the model says how large. */
    CHECK(npu_get_num_args(kernel, &count));
    if (count > MAX_ARGS)
        fail("too many inputs and outputs for this sample", argv[1]);
    for (uint32_t i = 0; i < count; i++) {
        info[i].size = sizeof info[i];
        CHECK(npu_get_arg_info(kernel, i, &info[i]));
        CHECK(npu_malloc(&buffers[i], info[i].size_bytes, 0));
        args[i] = (npu_arg_t)NPU_BUFFER(buffers[i]);
        largest = info[i].size_bytes > largest ? info[i].size_bytes : largest;
    }
    host = malloc(largest);
    if (host == NULL)
        fail("not enough memory for its tensors", argv[1]);

    for (uint32_t i = 0; i < count; i++) {
        if (info[i].direction != NPU_ARG_IN)
            continue;
        if (used >= (uint32_t)argc)
            fail("needs a file for this input", info[i].name);
        read_file(argv[used++], host, info[i].size_bytes);
        CHECK(npu_memcpy_async(buffers[i], info[i].size_bytes, host, info[i].size_bytes, NPU_MEMCPY_HOST_TO_DEVICE, stream));
    }
    if (used != (uint32_t)argc)
        fail("the model has no input for this file", argv[used]);

    /* The launch returns at once; the wait moves the host's clock to the completion. */
    CHECK(npu_get_time_ps(&before));
    CHECK(npu_launch_kernel_async(kernel, args, count, stream));
    CHECK(npu_synchronize_stream(stream));
    CHECK(npu_get_time_ps(&after));
    printf("launch to completion: %.3f us\n", (double)(after - before) * 1e-6);

    for (uint32_t i = 0; i < count; i++) {
        if (info[i].direction != NPU_ARG_OUT)
            continue;
        CHECK(npu_memcpy_async(host, largest, buffers[i], info[i].size_bytes, NPU_MEMCPY_DEVICE_TO_HOST, stream));
        print_tensor(&info[i], host);
        if (prefix != NULL) {
            char path[4096];
            snprintf(path, sizeof path, "%s%u.raw", prefix, output++);
            write_file(path, host, info[i].size_bytes);
        }
    }

    for (uint32_t i = 0; i < count; i++)
        CHECK(npu_free(buffers[i]));
    CHECK(npu_destroy_stream(stream));
    CHECK(npu_unload(blob));
    CHECK(npu_shutdown());
    free(host);
    return 0;
}
