"""Built-in kernels from C: the function of row P020 as it stands, and the structures and macros around it."""

import subprocess

import numpy as np
import pytest

CONV = r"""
#include <npu.h>
#include <stdio.h>
#include <stdlib.h>

void launch_conv_kernel(float *input, float *weight, float *output, int N, int C, int H, int W);

void launch_conv_kernel(float *input, float *weight, float *output, int N, int C, int H, int W)
{
    kernel_params_t params;
    params.input_addr = (uint64_t)input;
    params.weight_addr = (uint64_t)weight;
    params.output_addr = (uint64_t)output;
    params.N = N;
    params.C = C;
    params.H = H;
    params.W = W;
    npu_submit_kernel("conv2d", &params);
    npu_wait_for_completion();
}

int main(int argc, char **argv)
{
    int N = atoi(argv[1]), C = atoi(argv[2]), H = atoi(argv[3]), W = atoi(argv[4]), pinned = argc > 6;
    size_t count = (size_t)(N * C * H * W), weights = (size_t)(C * C * 9), all = 4 * (2 * count + weights);
    char *host = (char *)malloc(all);
    void *memory = NULL;
    FILE *file = fopen(argv[5], "r+b");
    float *start;

    if (file == NULL || fread(host, 4, count + weights, file) != count + weights || npu_init(NPU_INIT_CHECK) != NPU_SUCCESS)
        return 1;
    if ((pinned ? npu_malloc_host(&memory, all, NPU_HOST_CACHED) : npu_malloc(&memory, all, 0)) != NPU_SUCCESS)
        return 2;
    if (npu_memcpy(memory, all, host, 4 * (count + weights), NPU_MEMCPY_DEFAULT) != NPU_SUCCESS)
        return 3;
    start = (float *)memory;
    launch_conv_kernel(start, start + count, start + count + weights, N, C, H, W);
    if (npu_memcpy(host, all, start + count + weights, 4 * count, NPU_MEMCPY_DEFAULT) != NPU_SUCCESS)
        return 4;
    fwrite(host, 4, count, file);
    fclose(file);
    free(host);
    return npu_peek_last_error() != NPU_SUCCESS;
}
"""


@pytest.fixture(scope="module")
def conv_program(flags, tmp_path_factory):
    """The program by the language that it is compiled as, C or C++, with every warning an error."""
    folder = tmp_path_factory.mktemp("conv")
    programs = {}
    for standard, compiler, suffix in (("c99", "gcc", ".c"), ("c++17", "g++", ".cpp")):
        source, programs[standard] = folder / f"conv{suffix}", folder / standard
        source.write_text(CONV)
        warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
        command = [compiler, f"-std={standard}", *warnings, source, *flags, "-o", programs[standard]]
        subprocess.run(command, check=True)
    return programs


def convolution(x, weight):
    """3x3, stride 1, padding 1, by its definition, in float64."""
    _, _, height, width = x.shape
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    result = np.zeros((x.shape[0], weight.shape[0], height, width))
    for dy in range(3):
        for dx in range(3):
            window = padded[:, :, dy : dy + height, dx : dx + width]
            result += np.einsum("nchw,kc->nkhw", window, weight[:, :, dy, dx].astype(np.float64))
    return result


@pytest.mark.parametrize(
    ("standard", "shape", "memory"),
    [
        ("c99", (1, 1, 1, 1), "device"),
        ("c99", (2, 3, 5, 7), "device"),
        ("c99", (1, 8, 16, 16), "pinned"),
        ("c++17", (1, 2, 4, 3), "device"),
    ],
)
def test_launch_conv_kernel_computes_the_convolution(conv_program, tmp_path, standard, shape, memory):
    n, c, h, w = shape
    rng = np.random.default_rng(20)
    x, weight = (rng.standard_normal(s, np.float32) for s in (shape, (c, c, 3, 3)))
    path = tmp_path / "tensors"
    path.write_bytes(x.tobytes() + weight.tobytes())
    extra = ["pinned"] if memory == "pinned" else []
    command = [conv_program[standard], *map(str, shape), path, *extra]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    result = np.frombuffer(path.read_bytes(), np.float32)[-n * c * h * w :].reshape(shape)
    np.testing.assert_allclose(result, convolution(x, weight), rtol=1e-5, atol=1e-5)


def test_conv2d_in_full_and_other_kernels_by_name(run):
    program = r"""
    #include <math.h>
    static float *m; /* device pointers */
    static void put(int at, int count, const float *values) { need(npu_memcpy(m + at, 4096, values, 4 * count, NPU_MEMCPY_HOST_TO_DEVICE)); }
    static void show(int count)
    {
        float out[16];
        need(npu_wait_for_completion());
        need(npu_memcpy(out, sizeof out, m + 512, 4 * count, NPU_MEMCPY_DEVICE_TO_HOST));
        for (int i = 0; i < count; i++)
            printf("%g%c", out[i], i + 1 < count ? ' ' : '\n');
    }
    int main(void)
    {
        void *memory;
        const float x[] = {1, -2, 3, 4}, y[] = {10, 20, 30, 40}, ones[] = {1, 1, 1, 1, 1, 1, 1, 1}, bias[] = {-5, 0.5f};
        need(npu_init(0));
        need(npu_malloc(&memory, 4096, 0));
        m = memory;
        put(0, 4, x);
        put(64, 4, y);
        put(128, 8, ones);
        put(256, 2, bias);
        kernel_params_t p = {(uint64_t)m, (uint64_t)(m + 64), (uint64_t)(m + 512), 1, 1, 2, 2};
        need(npu_submit_kernel("add", &p)); show(4);
        need(npu_submit_kernel("mul", &p)); show(4);
        need(npu_submit_kernel("relu", &p)); show(4);
        need(npu_submit_kernel("copy", &p)); show(4);
        need(npu_submit_kernel("reduce_sum", &p)); show(2);
        need(npu_submit_kernel("pool2d", &p)); show(1);
        need(npu_submit_kernel("layernorm", &p)); show(4);
        npu_conv2d_params_t c = {.input = m, .weight = m + 128, .bias = m + 256, .output = m + 512, .n = 1, .c = 1, .h = 2, .w = 2,
                                 .k = 2, .kernel_h = 2, .kernel_w = 2, .stride_h = 1, .stride_w = 1, .relu = 1};
        need(npu_submit_kernel("conv2d", &c)); show(2);
        c.bias = NULL;
        c.relu = 0;
        need(npu_submit_kernel("conv2d", &c)); show(2);
        say(npu_submit_kernel("relu", &c)); detail();
        say(npu_submit_kernel("matmul", &p)); detail();
        c.kernel_h = 5;
        say(npu_submit_kernel("conv2d", &c)); detail();
        c.kernel_h = 2;
        c.weight = NULL;
        say(npu_submit_kernel("conv2d", &c)); detail();
        p.H = 1 << 30;
        say(npu_submit_kernel("relu", &p));
        p.H = 1 << 12;
        say(npu_submit_kernel("relu", &p)); detail();
        printf("%d\n", fabs(1.0) == 1.0);
    }
    """
    lines = run(program)
    assert lines[:9] == [
        "11 18 33 44",
        "10 -40 90 160",
        "1 0 3 4",
        "1 -2 3 4",
        "-1 7",
        "4",
        "0.999998 -0.999998 -0.99998 0.99998",
        "1 6.5",
        "6 6",
    ]
    assert lines[9:11] == ["INVALID_VALUE", "npu_submit_kernel: relu: does not take npu_conv2d_params_t"]
    assert lines[11] == "INVALID_VALUE"
    assert "matmul: does not take kernel_params_t" in lines[12]
    assert lines[13] == "INVALID_VALUE"
    assert "kernel_h is 5" in lines[14]
    assert lines[15:17] == [
        "ARG_KIND",
        "npu_submit_kernel: argument 'weights' of 'conv2d' is missing, and may not be",
    ]
    assert lines[17:19] == ["INVALID_VALUE", "ARG_SIZE"]
    assert "argument 'input' of 'relu' needs 32768 bytes" in lines[19]


def test_messages_name_what_the_program_wrote(run):
    body = r"""
int main(void)
{
    npu_conv2d_params_t conv = {.n = 1, .c = 1, .h = 4, .w = 4, .k = 1, .kernel_h = 1, .kernel_w = 1, .stride_h = 1, .stride_w = 1, .relu = 7};
    kernel_params_t nothing = {0};
    need(npu_init(0));
    say(npu_submit_kernel("conv2d", &conv));
    detail();
    say(npu_submit_kernel("convolution", &nothing));
    detail();
    char *path = malloc(5000);
    memset(path, 'x', 4999);
    path[4999] = 0;
    npu_blob_t blob;
    say(npu_load_blob(&blob, path));
    say(npu_export_trace(path));
}
"""
    conv, first, unknown, second, *files = run(body)
    assert (conv, unknown) == ("INVALID_VALUE", "INVALID_VALUE")
    assert first == "npu_submit_kernel: conv2d: relu is 7; expected 0 or 1"
    assert second.startswith("npu_submit_kernel: ")
    assert "'convolution'" in second
    assert files == ["FILE", "FILE"]
