/* SPDX-License-Identifier: Apache-2.0
 * run_model - a compiled ONNX model: load the blob, fill its inputs from raw files, launch it on a stream, show the outputs.
 *
 *     npu compile model.onnx -o model.blob
 *     gcc run_model.c $(npu-config --cflags --libs) -o run_model
 *     ./run_model model.blob input0.raw [input1.raw ...] [output0.raw ...] [-o PREFIX]
 *
 * A raw file holds one tensor of floats, dense and row-major. Outputs are compared with the files behind the inputs', as far as there are any, and
 * with -o written to PREFIX0.raw and so on.
 */
#include "timeline.h"

enum { MAX_ARGS = 64, SHOWN = 6 };

static void fail(const char *what, const char *name)
{
    fprintf(stderr, "run_model: %s: %s\n", name, what);
    exit(1);
}

/* Read (mode "rb") or write ("wb") a whole file. */
static void transfer(const char *path, const char *mode, void *data, size_t size)
{
    FILE *file = fopen(path, mode);

    if (file == NULL || (*mode == 'r' ? fread(data, 1, size, file) != size || fgetc(file) != EOF : fwrite(data, 1, size, file) != size) ||
        fclose(file) != 0)
        fail("cannot be read or written, or is not as long as the tensor", path);
}

static void show_output(const npu_arg_info_t *info, const float *values, const float *expected)
{
    size_t count = info->size_bytes / sizeof *values;

    printf("%s [", info->name);
    for (uint32_t i = 0; i < info->rank; i++)
        printf(i ? ",%llu" : "%llu", (unsigned long long)info->dims[i]);
    printf("]:");
    for (size_t i = 0; i < count && i < SHOWN; i++)
        printf(" %.6g", (double)values[i]);
    printf(count > SHOWN ? " ...\n" : "\n");
    for (size_t i = 0; expected != NULL && i < count; i++)
        CLAIM(values[i] - expected[i] < 0.01f && expected[i] - values[i] < 0.01f, "the output is what was expected");
}

int main(int argc, char **argv)
{
    const char *prefix = NULL, *blob_path = argv[1];
    char **files = argv + 2, **end = argv + argc, path[4096];
    npu_blob_t blob;
    npu_kernel_t kernel;
    npu_stream_t stream;
    npu_arg_info_t info[MAX_ARGS];
    npu_arg_t args[MAX_ARGS];
    void *buffers[MAX_ARGS];
    float *values, *expected;
    uint32_t count, output = 0;
    size_t largest = 1;
    double latency;

    if (argc >= 4 && strcmp(argv[argc - 2], "-o") == 0) {
        prefix = argv[argc - 1];
        end -= 2;
    }
    if (end - argv < 2)
        fail("BLOB [INPUT.raw ...] [OUTPUT.raw ...] [-o PREFIX]", "usage");
    CHECK(npu_init(NPU_INIT_CHECK));
    CHECK(npu_load_blob(&blob, blob_path));
    CHECK(npu_get_kernel(&kernel, blob, NULL)); /* a model is one kernel */
    CHECK(npu_create_stream(&stream));

    /* A device buffer for each argument; the model says how large. */
    CHECK(npu_get_num_args(kernel, &count));
    if (count > MAX_ARGS)
        fail("too many inputs and outputs for this sample", blob_path);
    for (uint32_t i = 0; i < count; i++) {
        info[i].size = sizeof info[i];
        CHECK(npu_get_arg_info(kernel, i, &info[i]));
        if (info[i].dtype != NPU_DT_F32)
            fail("is no tensor of floats, which is all that this sample can do", info[i].name);
        CHECK(npu_malloc(&buffers[i], info[i].size_bytes, 0));
        args[i] = (npu_arg_t)NPU_BUFFER(buffers[i]);
        largest = info[i].size_bytes > largest ? info[i].size_bytes : largest;
    }
    values = malloc(largest);
    expected = malloc(largest);
    if (values == NULL || expected == NULL)
        fail("not enough memory for its tensors", blob_path);
    for (uint32_t i = 0; i < count; i++) {
        if (info[i].direction != NPU_ARG_IN)
            continue;
        if (files == end)
            fail("needs a file for this input", info[i].name);
        transfer(*files++, "rb", values, info[i].size_bytes);
        CHECK(npu_memcpy_async(buffers[i], info[i].size_bytes, values, info[i].size_bytes, NPU_MEMCPY_HOST_TO_DEVICE, stream));
    }

    /* The launch returns at once; the wait moves the host's clock to the completion. */
    CHECK(npu_profiler_start());
    latency = -now_us();
    CHECK(npu_launch_kernel_async(kernel, args, count, stream));
    TIMED('.', "synchronise", npu_synchronize_stream(stream));
    latency += now_us();
    CHECK(npu_profiler_stop());
    printf("launch to completion: %.3f us\n", latency);
    timeline_print();

    for (uint32_t i = 0; i < count; i++) {
        if (info[i].direction != NPU_ARG_OUT)
            continue;
        CHECK(npu_memcpy(values, largest, buffers[i], info[i].size_bytes, NPU_MEMCPY_DEVICE_TO_HOST));
        if (files != end)
            transfer(*files, "rb", expected, info[i].size_bytes);
        show_output(&info[i], values, files != end ? expected : NULL);
        files += files != end;
        snprintf(path, sizeof path, "%s%u.raw", prefix ? prefix : "", output++);
        if (prefix != NULL)
            transfer(path, "wb", values, info[i].size_bytes);
    }
    if (files != end)
        fail("the model has no input or output for this file", *files);
    CHECK(npu_shutdown()); /* ends what is left: memory, stream, blob */
    return 0;
}
