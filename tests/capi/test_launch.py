"""Blobs, kernels, launches and streams from C."""

import os

import pytest

# A copy kernel with 16 floats: x and y are device buffers, in and out host arrays, k the kernel, s a stream.
SETUP = r"""
    float in[16], out[16] = {0};
    void *x, *y;
    npu_blob_t blob;
    npu_kernel_t k;
    npu_stream_t s;
    for (int i = 0; i < 16; i++)
        in[i] = i + 0.5f;
    need(npu_init(0));
    need(npu_load_blob(&blob, argv[1]));
    need(npu_get_kernel(&k, blob, NULL));
    need(npu_create_stream(&s));
    need(npu_malloc(&x, 64, 0));
    need(npu_malloc(&y, 64, 0));
    need(npu_memcpy(x, 64, in, 64, NPU_MEMCPY_HOST_TO_DEVICE));
    npu_arg_t args[] = {NPU_BUFFER(x), NPU_BUFFER(y)};
"""


@pytest.fixture
def launch(run, blobs):
    """launch(body, name="copy") -> lines: runs `body` behind SETUP with the blob of that name."""

    def launch(body: str, name: str = "copy") -> list[str]:
        return run(f"int main(int argc, char **argv)\n{{{SETUP}{body}}}\n", str(blobs / f"{name}.blob"))

    return launch


def test_launch_on_a_stream_computes(launch):
    body = r"""
    need(npu_launch_kernel_async(k, args, 2, s));
    args[0].value = args[1].value = 0; /* they were copied */
    say(npu_query_stream(s));
    need(npu_synchronize_stream(s));
    say(npu_query_stream(s));
    need(npu_memcpy(out, 64, y, 64, NPU_MEMCPY_DEVICE_TO_HOST));
    printf("%g %g\n", out[0], out[15]);
    need(npu_destroy_stream(s));
    need(npu_unload(blob));
    """
    assert launch(body) == ["NOT_READY", "SUCCESS", "0.5 15.5"]


def test_copy_on_the_same_stream_waits_and_on_another_reads_old_bytes(launch):
    body = r"""
    need(npu_launch_kernel_async(k, args, 2, s));
    need(npu_memcpy(out, 64, y, 64, NPU_MEMCPY_DEVICE_TO_HOST)); /* default stream: does not wait for s */
    unsigned char *bytes = (unsigned char *)out;
    printf("%02x %02x\n", bytes[0], bytes[63]);
    need(npu_memcpy_async(out, 64, y, 64, NPU_MEMCPY_DEVICE_TO_HOST, s));
    printf("%g %g\n", out[0], out[15]);
    """
    assert launch(body) == ["ff ff", "0.5 15.5"]


def test_default_stream_is_null(launch):
    body = r"""
    need(npu_launch_kernel_async(k, args, 2, NULL));
    need(npu_synchronize_stream(NULL));
    need(npu_memcpy(out, 64, y, 64, NPU_MEMCPY_DEVICE_TO_HOST));
    printf("%g\n", out[15]);
    say(npu_destroy_stream(NULL));
    """
    assert launch(body) == ["15.5", "INVALID_HANDLE"]


def test_time_out_is_a_status_and_the_work_goes_on(launch):
    body = r"""
    need(npu_launch_kernel_async(k, args, 2, s));
    uint64_t before, after;
    need(npu_get_time_ps(&before));
    say(npu_synchronize_stream_timeout(s, 1));
    need(npu_get_time_ps(&after));
    printf("%d\n", after - before >= 1000);
    say(npu_get_last_error());
    say(npu_synchronize_stream_timeout(s, (1ull << 52) - 1));
    need(npu_launch_kernel_async(k, args, 2, s));
    say(npu_synchronize_stream_timeout(s, UINT64_MAX - 1));
    say(npu_synchronize_stream_timeout(s, 0));
    """
    assert launch(body) == ["TIMEOUT", "1", "SUCCESS", "SUCCESS", "SUCCESS", "SUCCESS"]


def test_device_error_comes_from_the_wait_once_with_the_enqueue_site(launch):
    body = r"""
    say(npu_launch_kernel_async(k, args, 2, s)); void *site; asm volatile("lea (%%rip), %0" : "=r"(site));
    say(npu_synchronize_stream(s));
    npu_error_detail_t d = {.size = sizeof d};
    need(npu_get_last_error_detail(&d));
    printf("%s: %s\n", d.function, d.message);
    printf("%d %d %d\n", d.result, d.job_id != 0, (uint64_t)(uintptr_t)site - d.enqueue_site < 200);
    say(npu_synchronize_stream(s));
    say(npu_synchronize_device());
    """
    lines = launch(body, "stuck")
    assert lines[0:2] == ["SUCCESS", "BARRIER_DEADLOCK"]
    assert (
        lines[2].startswith("npu_synchronize_stream: job ") and "NPU_JOB_DEADLOCK, barrier 0, task 'copy'" in lines[2]
    )
    assert lines[3:] == ["-104 1 1", "SUCCESS", "SUCCESS"]


def test_device_works_after_an_error(run, blobs):
    program = r"""
    int main(int argc, char **argv)
    {
        npu_blob_t blob;
        npu_kernel_t k;
        void *p;
        need(npu_init(0));
        need(npu_malloc(&p, 128, 0));
        npu_arg_t args[] = {NPU_BUFFER(p), NPU_BUFFER((char *)p + 64)};
        for (int i = 1; i < argc; i++) {
            need(npu_load_blob(&blob, argv[i]));
            need(npu_get_kernel(&k, blob, NULL));
            say(npu_launch_kernel_async(k, args, 2, NULL));
            say(npu_synchronize_device());
        }
    }
    """
    arguments = [str(blobs / f"{name}.blob") for name in ("stuck", "copy", "stuck", "copy")]
    assert run(program, *arguments) == ["SUCCESS", "BARRIER_DEADLOCK", "SUCCESS", "SUCCESS"] * 2


def test_argument_info(launch):
    body = r"""
    uint32_t count;
    npu_arg_info_t info = {.size = sizeof info};
    need(npu_get_num_args(k, &count));
    for (uint32_t i = 0; i < count; i++) {
        need(npu_get_arg_info(k, i, &info));
        printf("%u %u %u [%d, %d] %d %s\n", info.direction, info.dtype, info.rank, (int)info.dims[0], (int)info.dims[1],
               (int)info.size_bytes, info.name);
    }
    say(npu_get_arg_info(k, count, &info));
    detail();
    say(npu_get_arg_info(k, 0, NULL));
    say(npu_get_arg_info(k, 0, BAD));
    info.size = 8;
    say(npu_get_arg_info(k, 0, &info));
    say(npu_get_num_args(k, NULL));
    say(npu_get_num_args(k, BAD));
    say(npu_get_num_args((npu_kernel_t)blob, &count));
    """
    assert launch(body) == [
        "1 2 2 [1, 16] 64 x",
        "2 2 2 [1, 16] 64 y",
        "ARG_INDEX",
        "npu_get_arg_info: argument 2 of 2",
        "NULL_POINTER",
        "BAD_ADDRESS",
        "INVALID_SIZE",
        "NULL_POINTER",
        "BAD_ADDRESS",
        "INVALID_HANDLE",
    ]


def test_launch_refuses_bad_arguments(launch):
    body = r"""
    void *small;
    need(npu_malloc(&small, 60, 0));
    npu_arg_t a = args[0];
    say(npu_launch_kernel_async(k, args, 1, s));
    detail();
    say(npu_launch_kernel_async(k, args, 3, s));
    say(npu_launch_kernel_async(k, NULL, 2, s));
    say(npu_launch_kernel_async(k, BAD, 2, s));
    args[0].kind = 7;
    say(npu_launch_kernel_async(k, args, 2, s));
    args[0] = a;
    args[0].reserved = 1;
    say(npu_launch_kernel_async(k, args, 2, s));
    args[0] = a;
    args[0].value = (uintptr_t)in; /* a host pointer */
    say(npu_launch_kernel_async(k, args, 2, s));
    args[0].value = (uintptr_t)small;
    say(npu_launch_kernel_async(k, args, 2, s));
    detail();
    args[0].value = a.value + 32;
    say(npu_launch_kernel_async(k, args, 2, s));
    need(npu_free(small));
    args[0].value = (uintptr_t)small;
    say(npu_launch_kernel_async(k, args, 2, s));
    args[0] = a;
    say(npu_launch_kernel_async((npu_kernel_t)s, args, 2, s));
    say(npu_launch_kernel_async(k, args, 2, (npu_stream_t)k));
    need(npu_destroy_stream(s));
    say(npu_launch_kernel_async(k, args, 2, s));
    need(npu_unload(blob));
    say(npu_launch_kernel_async(k, args, 2, NULL));
    """
    lines = launch(body)
    assert "argument 0 ('x') needs 64 bytes, and 60 are left at 0x" in lines.pop(9)
    assert lines == [
        "ARG_COUNT",
        "npu_launch_kernel_async: 1 arguments for 'copy', which takes 2",
        "ARG_COUNT",
        "NULL_POINTER",
        "BAD_ADDRESS",
        "ARG_KIND",
        "INVALID_VALUE",
        "ARG_KIND",
        "ARG_SIZE",
        "ARG_SIZE",
        "STALE_HANDLE",
        "INVALID_HANDLE",
        "INVALID_HANDLE",
        "STALE_HANDLE",
        "STALE_HANDLE",
    ]


def test_misaligned_buffer_is_refused(launch):
    body = r"""
    void *big;
    need(npu_malloc(&big, 256, 0));
    args[1].value = (uintptr_t)big + 4;
    say(npu_launch_kernel_async(k, args, 2, s));
    args[1].value = (uintptr_t)big + 64;
    say(npu_launch_kernel_async(k, args, 2, s));
    need(npu_memcpy_async(out, 64, (char *)big + 64, 64, NPU_MEMCPY_DEVICE_TO_HOST, s));
    printf("%g\n", out[15]);
    """
    assert launch(body) == ["MISALIGNED", "SUCCESS", "15.5"]


def test_unload_waits_for_nobody(launch):
    body = r"""
    need(npu_launch_kernel_async(k, args, 2, s));
    say(npu_unload(blob));
    need(npu_synchronize_stream(s));
    say(npu_unload(blob));
    say(npu_unload(blob));
    say(npu_unload((npu_blob_t)BAD));
    say(npu_get_kernel(&k, blob, NULL));
    """
    assert launch(body) == ["IN_USE", "SUCCESS", "STALE_HANDLE", "INVALID_HANDLE", "STALE_HANDLE"]


def test_kernel_is_found_by_its_name(launch):
    body = r"""
    npu_kernel_t other = NULL;
    need(npu_get_kernel(&other, blob, "copy"));
    printf("%d\n", other == k);
    say(npu_get_kernel(&other, blob, "conv"));
    detail();
    say(npu_get_kernel(&other, blob, BAD));
    say(npu_get_kernel(NULL, blob, NULL));
    say(npu_get_kernel(BAD, blob, NULL));
    """
    assert launch(body) == [
        "1",
        "INVALID_VALUE",
        "npu_get_kernel: the blob has no kernel 'conv'; it has 'copy'",
        "BAD_ADDRESS",
        "NULL_POINTER",
        "BAD_ADDRESS",
    ]


def test_streams_refuse_bad_handles(launch):
    body = r"""
    npu_stream_t bad = (npu_stream_t)BAD;
    say(npu_create_stream(NULL));
    say(npu_create_stream(BAD));
    say(npu_synchronize_stream(bad));
    say(npu_synchronize_stream_timeout(bad, 1));
    say(npu_query_stream(bad));
    say(npu_destroy_stream(bad));
    need(npu_destroy_stream(s));
    say(npu_destroy_stream(s));
    say(npu_synchronize_stream(s));
    """
    assert launch(body) == ["NULL_POINTER", "BAD_ADDRESS", *["INVALID_HANDLE"] * 4, *["STALE_HANDLE"] * 2]


def test_load_names_what_is_wrong_with_a_blob(run, blobs, tmp_path):
    damaged = bytearray((blobs / "copy.blob").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "damaged.blob").write_bytes(damaged)
    program = r"""
    int main(int argc, char **argv)
    {
        npu_blob_t blob = (npu_blob_t)BAD;
        char page[8] = "not ELF";
        need(npu_init(0));
        say(npu_load_blob(&blob, argv[1]));
        say(npu_load_blob(&blob, "/nonexistent/model.blob"));
        detail();
        say(npu_load_blob(&blob, NULL));
        say(npu_load_blob(&blob, BAD));
        say(npu_load_blob(NULL, argv[1]));
        say(npu_load_blob_mem(&blob, page, sizeof page));
        say(npu_load_blob_mem(&blob, page, 0));
        say(npu_load_blob_mem(&blob, NULL, 1));
        say(npu_load_blob_mem(&blob, BAD, 1));
        say(npu_load_blob_mem(&blob, page, (size_t)1 << 50));
        say(npu_load_blob(BAD, argv[2]));
        printf("%d\n", blob == BAD);
    }
    """
    assert run(program, str(tmp_path / "damaged.blob"), str(blobs / "copy.blob")) == [
        "INVALID_BLOB",
        "FILE",
        "npu_load_blob: No such file or directory: '/nonexistent/model.blob'",
        "NULL_POINTER",
        "BAD_ADDRESS",
        "NULL_POINTER",
        "INVALID_BLOB",
        "INVALID_BLOB",
        "NULL_POINTER",
        "BAD_ADDRESS",
        "BAD_ADDRESS",
        "BAD_ADDRESS",
        "1",
    ]


def test_blob_from_memory_is_copied(run, blobs):
    program = r"""
    int main(int argc, char **argv)
    {
        static char data[1 << 16];
        FILE *file = fopen(argv[1], "rb");
        size_t size = fread(data, 1, sizeof data, file);
        npu_blob_t blob;
        npu_kernel_t k;
        void *p;
        char out[64];
        need(npu_init(0));
        need(npu_load_blob_mem(&blob, data, size));
        memset(data, 0, sizeof data);
        need(npu_malloc(&p, 128, 0));
        need(npu_memset(p, 64, 0x21, 64));
        need(npu_get_kernel(&k, blob, "copy"));
        npu_arg_t args[] = {NPU_BUFFER(p), NPU_BUFFER((char *)p + 64)};
        need(npu_launch_kernel_async(k, args, 2, NULL));
        need(npu_memcpy(out, 64, (char *)p + 64, 64, NPU_MEMCPY_DEVICE_TO_HOST));
        printf("%02x\n", out[63]);
    }
    """
    assert run(program, str(blobs / "copy.blob")) == ["21"]


def test_full_queue_makes_a_launch_wait_for_its_oldest_one(launch):
    body = r"""
    uint64_t before, after;
    need(npu_malloc(&x, 4 * 65536, 0));
    args[0].value = args[1].value = (uintptr_t)x;
    for (int i = 0; i < 62; i++)
        need(npu_launch_kernel_async(k, args, 2, s));
    need(npu_get_time_ps(&before));
    for (int i = 0; i < 138; i++)
        need(npu_launch_kernel_async(k, args, 2, s));
    need(npu_get_time_ps(&after));
    say(npu_query_stream(s));
    printf("%d\n", after - before > 100000000);
    say(npu_synchronize_stream(s));
    """
    assert launch(body, "long") == ["NOT_READY", "1", "SUCCESS"]


def test_polling_ends(launch):
    body = r"""
    need(npu_launch_kernel_async(k, args, 2, s));
    while (npu_query_stream(s) == NPU_NOT_READY)
        ;
    say(npu_query_stream(s));
    """
    assert launch(body) == ["SUCCESS"]


def test_every_call_that_needs_a_lost_device_says_so(run, blobs):
    program = r"""
    int main(int argc, char **argv)
    {
        npu_blob_t copy, fault, blob;
        npu_kernel_t ck, fk;
        npu_stream_t s, other, third;
        char host[64];
        void *p, *q;
        need(npu_init(0));
        need(npu_load_blob(&copy, argv[1]));
        need(npu_get_kernel(&ck, copy, NULL));
        need(npu_load_blob(&fault, argv[2]));
        need(npu_get_kernel(&fk, fault, NULL));
        need(npu_create_stream(&s));
        need(npu_create_stream(&other));
        need(npu_malloc(&p, 128, 0));
        npu_arg_t args[] = {NPU_BUFFER(p), NPU_BUFFER((char *)p + 64)};
        need(npu_launch_kernel_async(fk, args, 2, s));
        say(npu_synchronize_stream(s));
        puts("lost");
        say(npu_synchronize_stream(s));
        say(npu_synchronize_stream(other));
        say(npu_synchronize_stream(NULL));
        say(npu_synchronize_stream_timeout(other, 1));
        say(npu_query_stream(other));
        say(npu_synchronize_device());
        say(npu_memcpy(host, 64, p, 64, NPU_MEMCPY_DEVICE_TO_HOST));
        say(npu_memcpy_async(p, 64, host, 64, NPU_MEMCPY_HOST_TO_DEVICE, other));
        say(npu_memset(p, 64, 1, 64));
        say(npu_memset_async(p, 64, 1, 64, other));
        say(npu_malloc(&q, 64, 0));
        say(npu_create_stream(&third));
        say(npu_load_blob(&blob, argv[1]));
        say(npu_launch_kernel_async(ck, args, 2, other));
        puts("clean up");
        say(npu_destroy_stream(s));
        say(npu_unload(copy));
        say(npu_free(p));
        need(npu_init(0));
        need(npu_shutdown());
        say(npu_malloc(&q, 64, 0)); /* there was another user */
        need(npu_shutdown());
        need(npu_init(0));
        say(npu_malloc(&q, 64, 0));
        say(npu_synchronize_device());
    }
    """
    lines = run(program, str(blobs / "copy.blob"), str(blobs / "fault.blob"))
    assert lines == [
        "DEVICE_PAGE_FAULT",
        "lost",
        *["DEVICE_LOST"] * 14,
        "clean up",
        *["SUCCESS"] * 3,
        "DEVICE_LOST",
        *["SUCCESS"] * 2,
    ]


def test_only_regular_files_are_blobs_and_the_reason_comes_first(run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    program = r"""
    int main(int argc, char **argv)
    {
        npu_blob_t blob;
        char path[4096];
        need(npu_init(0));
        say(npu_load_blob(&blob, "pipe"));
        detail();
        say(npu_load_blob(&blob, "/dev/zero"));
        detail();
        say(npu_load_blob(&blob, "."));
        say(npu_load_blob(&blob, ""));
        detail();
        memset(path, 'a', sizeof path);
        path[4094] = 0;
        say(npu_load_blob(&blob, path));
        detail();
    }
    """
    *lines, longest = run(program, cwd=tmp_path)
    assert lines == [
        "FILE",
        "npu_load_blob: it is not a regular file: 'pipe'",
        "FILE",
        "npu_load_blob: it is not a regular file: '/dev/zero'",
        "FILE",
        "FILE",
        "npu_load_blob: No such file or directory: ''",
        "FILE",
    ]
    assert longest.startswith("npu_load_blob: File name too long: 'aaaa")
    assert len(longest) == len("npu_load_blob: ") + 1023
