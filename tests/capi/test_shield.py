"""What the program's threads bring along has no say inside a call, and is theirs again behind it."""

import subprocess

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from libnpu.compiler import CompileOptions, compile_model


@pytest.fixture(scope="module")
def product(tmp_path_factory):
    """A blob that multiplies [1, 64] by a matrix, 64 sums of 64 products that fp32 rounds."""
    weights = np.random.default_rng(7).standard_normal((64, 64)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Softmax", ["a"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path = tmp_path_factory.mktemp("product") / "product.blob"
    path.write_bytes(compile_model(model, CompileOptions(precision="fp32", profile="npu-37xx")).blob)
    return path


ROUNDING = r"""
#include <fenv.h>
#include <xmmintrin.h>
static float in[64], first[64], out[64];
static npu_kernel_t k;
static void *x, *y;
static void compute(void)
{
    npu_arg_t args[] = {NPU_BUFFER(x), NPU_BUFFER(y)};
    need(npu_memcpy(x, 256, in, 256, NPU_MEMCPY_HOST_TO_DEVICE));
    need(npu_launch_kernel_async(k, args, 2, NULL));
    need(npu_synchronize_stream(NULL));
    need(npu_memcpy(out, 256, y, 256, NPU_MEMCPY_DEVICE_TO_HOST));
}
int main(int argc, char **argv)
{
    static const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    npu_blob_t blob;
    for (int i = 0; i < 64; i++)
        in[i] = (float)((i * 37) % 64 - 31) / 29;
    need(npu_init(0));
    need(npu_load_blob(&blob, argv[1]));
    need(npu_get_kernel(&k, blob, NULL));
    need(npu_malloc(&x, 256, 0));
    need(npu_malloc(&y, 256, 0));
    compute();
    memcpy(first, out, sizeof out);
    for (int i = 0; i < 3; i++) {
        fesetround(modes[i]);
        compute();
        printf("%d %d\n", fegetround() == modes[i], memcmp(first, out, sizeof out));
    }
    fesetround(FE_TONEAREST);
    feclearexcept(FE_ALL_EXCEPT);
    _mm_setcsr(_mm_getcsr() | 0x8040); /* subnormal numbers are zeros */
    feenableexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW | FE_INEXACT);
    compute();
    printf("%d %d %d\n", (_mm_getcsr() & 0x8040) == 0x8040, fetestexcept(FE_ALL_EXCEPT), memcmp(first, out, sizeof out));
}
"""


def test_floating_point_environment_changes_no_result(run, product):
    assert run(ROUNDING, str(product)) == ["1 0", "1 0", "1 0", "1 0 0"]


def test_limit_of_file_sizes_fails_the_call_and_not_the_process(build, blobs):
    program = build(
        r"""
    #include <signal.h>
    #include <sys/resource.h>
    int main(int argc, char **argv)
    {
        struct rlimit small = {1 << 20, 1 << 20};
        npu_blob_t blob;
        sigset_t pending;
        void *p;
        need(npu_init(0));
        setrlimit(RLIMIT_FSIZE, &small);
        say(npu_malloc(&p, 4096, 0));
        say(npu_load_blob(&blob, argv[1]));
        sigpending(&pending);
        printf("%d\n", sigismember(&pending, SIGXFSZ));
        fflush(stdout);
        raise(SIGXFSZ); /* the program's own still ends it */
    }
    """
    )
    run = subprocess.run([program, blobs / "copy.blob"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (-25, "")
    assert run.stdout.splitlines() == ["OUT_OF_HOST_MEMORY", "OUT_OF_HOST_MEMORY", "0"]


def test_cancelled_thread_ends_behind_the_call_and_keeps_nothing(run):
    program = r"""
    #include <pthread.h>
    static void *work(void *unused)
    {
        void *p;
        for (;; pthread_testcancel())
            if (npu_malloc(&p, 4096, 0) == NPU_SUCCESS)
                npu_free(p);
        return unused;
    }
    int main(void)
    {
        need(npu_init(0));
        need(npu_set_device(0));
        for (int i = 0; i < 20; i++) {
            pthread_t thread;
            void *p, *result;
            pthread_create(&thread, NULL, work, NULL);
            need(npu_malloc(&p, 64, 0));
            pthread_cancel(thread);
            need(npu_free(p));
            pthread_join(thread, &result);
            if (result != PTHREAD_CANCELED)
                puts("not cancelled");
        }
        say(npu_synchronize_device());
    }
    """
    assert run(program) == ["SUCCESS"]
