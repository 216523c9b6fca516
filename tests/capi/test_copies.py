"""Copies and fills from C: kinds, rows, semantics, and each misuse with its result."""

import pytest


def test_default_kind_is_what_the_pointers_say(run):
    program = r"""
    int main(void)
    {
        char *p, *q, *pinned, a[16] = "abcdefgh", b[16] = "";
        need(npu_init(0));
        need(npu_malloc((void **)&p, 16, 0));
        need(npu_malloc((void **)&q, 16, 0));
        need(npu_malloc_host((void **)&pinned, 16, 0));
        need(npu_memcpy(p, 16, a, 16, NPU_MEMCPY_DEFAULT));
        need(npu_memcpy(q, 16, p, 16, NPU_MEMCPY_DEFAULT));
        need(npu_memcpy(pinned, 16, q, 16, NPU_MEMCPY_DEFAULT));
        need(npu_memcpy(b, 16, pinned, 16, NPU_MEMCPY_DEFAULT));
        puts(b);
        need(npu_memcpy(b, 8, a + 4, 8, NPU_MEMCPY_HOST_TO_HOST));
        puts(b);
        need(npu_memcpy(pinned + 1, 8, pinned, 8, NPU_MEMCPY_HOST_TO_HOST));
        puts(pinned);
        say(npu_memcpy(p, 8, a, 8, NPU_MEMCPY_DEVICE_TO_HOST));
        detail();
        say(npu_memcpy(p, 8, a, 8, NPU_MEMCPY_DEVICE_TO_DEVICE));
        say(npu_memcpy(p, 8, a, 8, NPU_MEMCPY_HOST_TO_HOST));
        say(npu_memcpy(a, 8, p, 8, NPU_MEMCPY_HOST_TO_DEVICE));
        say(npu_memcpy(p, 8, q, 8, NPU_MEMCPY_HOST_TO_DEVICE));
        say(npu_memcpy(a, 8, b, 8, NPU_MEMCPY_DEVICE_TO_HOST));
        say(npu_memcpy(p, 8, a, 8, (npu_memcpy_kind_t)6));
        say(npu_memcpy_async(b, 8, a, 8, NPU_MEMCPY_HOST_TO_HOST, NULL));
        say(npu_memcpy_async(b, 8, pinned, 8, NPU_MEMCPY_DEFAULT, NULL));
        say(npu_memcpy(b, 8, BAD, 8, NPU_MEMCPY_DEFAULT));
        say(npu_memcpy(BAD, 8, a, 8, NPU_MEMCPY_DEFAULT));
    }
    """
    assert run(program) == [
        *("abcdefgh", "efgh", "aabcdefgh"),
        "INVALID_VALUE",
        "npu_memcpy: kind is NPU_MEMCPY_DEVICE_TO_HOST, and the pointers are NPU_MEMCPY_HOST_TO_DEVICE",
        *["INVALID_VALUE"] * 6,
        *["NOT_SUPPORTED"] * 2,
        *["BAD_ADDRESS"] * 2,
    ]


def test_rows_are_copied_and_gaps_stay(run):
    program = r"""
    int main(void)
    {
        char *p, *q, *pinned, a[64], b[65] = "";
        npu_stream_t s;
        for (int i = 0; i < 64; i++)
            a[i] = 'a' + i % 26;
        need(npu_init(0));
        need(npu_create_stream(&s));
        need(npu_malloc((void **)&p, 64, 0));
        need(npu_malloc((void **)&q, 64, 0));
        need(npu_memset(p, 64, '.', 64));
        need(npu_memset(q, 64, '-', 64));
        need(npu_malloc_host((void **)&pinned, 64, 0));
        memset(pinned, '_', 64);
        need(npu_memcpy_2d(p, 8, 64, a, 5, 3, 4, NPU_MEMCPY_HOST_TO_DEVICE));
        need(npu_memcpy_2d_async(q, 6, 64, p, 8, 4, 3, NPU_MEMCPY_DEVICE_TO_DEVICE, s));
        need(npu_memcpy_2d_async(pinned, 4, 64, q, 6, 4, 3, NPU_MEMCPY_DEVICE_TO_HOST, s));
        need(npu_synchronize_stream(s));
        memset(b, '+', 64);
        need(npu_memcpy_2d(b, 10, 64, p, 8, 4, 4, NPU_MEMCPY_DEFAULT));
        printf("%.34s+\n", b);
        need(npu_memcpy(b, 64, q, 18, NPU_MEMCPY_DEFAULT));
        printf("%.18s\n", b);
        printf("%.14s\n", pinned);
        memset(b, '+', 64);
        need(npu_memcpy_2d(b, 2, 64, a, 3, 2, 2, NPU_MEMCPY_HOST_TO_HOST));
        need(npu_memcpy_2d_async(b + 8, 2, 64, q, 3, 2, 2, NPU_MEMCPY_DEVICE_TO_HOST, s));
        printf("%.14s\n", b);
        need(npu_memcpy_2d(p, 1, 64, a, 1, 64, 1, NPU_MEMCPY_DEFAULT)); /* one row has no pitch */
        need(npu_memcpy_2d(BAD, 1, 0, a, 1, 0, 9, NPU_MEMCPY_DEFAULT));
        need(npu_memcpy_2d(BAD, 1, 0, a, 1, 9, 0, NPU_MEMCPY_DEFAULT));
        say(npu_memcpy_2d(p, 2, 64, a, 3, 3, 2, NPU_MEMCPY_DEFAULT));
        say(npu_memcpy_2d(p, 3, 64, a, 2, 3, 2, NPU_MEMCPY_DEFAULT));
        say(npu_memcpy_2d(p, 8, 18, a, 8, 3, 3, NPU_MEMCPY_DEFAULT));
        need(npu_memcpy_2d(p, 8, 19, a, 8, 3, 3, NPU_MEMCPY_DEFAULT));
        say(npu_memcpy_2d(p, 8, 99, a, 8, 3, 9, NPU_MEMCPY_DEFAULT));
        say(npu_memcpy_2d(p, 8, 64, p + 2, 8, 3, 3, NPU_MEMCPY_DEFAULT));
        need(npu_memcpy_2d(p, 8, 64, p + 3, 8, 3, 3, NPU_MEMCPY_DEFAULT));
        say(npu_memcpy_2d(p, SIZE_MAX, SIZE_MAX, a, SIZE_MAX, 8, SIZE_MAX, NPU_MEMCPY_DEFAULT));
        say(npu_memcpy_2d(NULL, 8, 64, a, 8, 3, 3, NPU_MEMCPY_DEFAULT));
        say(npu_memcpy_2d_async(p, 8, 64, NULL, 8, 3, 3, NPU_MEMCPY_DEFAULT, s));
        say(npu_memcpy_2d_async(p, 8, 64, a, 8, 3, 3, NPU_MEMCPY_DEFAULT, (npu_stream_t)BAD));
        say(npu_memcpy_2d_async(p, 2, 64, a, 8, 3, 3, NPU_MEMCPY_DEFAULT, s));
        say(npu_memcpy_2d_async(b, 8, 64, a, 8, 3, 3, NPU_MEMCPY_DEFAULT, s));
        say(npu_memcpy_2d(b, 8, 64, BAD, 8, 3, 3, NPU_MEMCPY_DEFAULT));
        say(npu_memcpy_2d(p, 8, 64, BAD, 8, 3, 3, NPU_MEMCPY_DEFAULT));
        say(npu_memcpy_2d(BAD, 8, 64, p, 8, 3, 3, NPU_MEMCPY_DEFAULT));
    }
    """
    assert run(program) == [
        "abc.++++++fgh.++++++klm.++++++pqr.+",
        "abc.--fgh.--klm.--",
        "abc.fgh.klm.__",
        "abde++++ab.-++",
        *("INVALID_SIZE", "INVALID_SIZE", "OUT_OF_RANGE", "OUT_OF_RANGE", "OVERLAP", "OUT_OF_RANGE"),
        *("NULL_POINTER", "NULL_POINTER", "INVALID_HANDLE", "INVALID_SIZE", "NOT_SUPPORTED"),
        *("BAD_ADDRESS", "BAD_ADDRESS", "BAD_ADDRESS"),
    ]


def test_rows_that_cannot_all_be_written_change_nothing(run):
    program = r"""
    #include <sys/mman.h>
    int main(void)
    {
        char *pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        void *p;
        need(npu_init(0));
        need(npu_malloc(&p, 64, 0));
        mprotect(pages + 8192, 4096, PROT_READ);
        say(npu_memcpy_2d(pages, 4096, 3 * 4096, p, 4, 4, 3, NPU_MEMCPY_DEFAULT));
        printf("%d\n", pages[0]);
        mprotect(pages + 4096, 4096, PROT_NONE); /* a gap need not be there */
        say(npu_memcpy_2d(pages, 2048, 3 * 4096, p, 4, 4, 2, NPU_MEMCPY_DEFAULT));
        mprotect(pages + 8192, 4096, PROT_READ | PROT_WRITE);
        say(npu_memcpy_2d(pages, 8192, 3 * 4096, p, 4, 4, 2, NPU_MEMCPY_DEFAULT));
        printf("%d %d\n", pages[0], pages[8192]);
    }
    """
    assert run(program) == ["BAD_ADDRESS", "0", "SUCCESS", "SUCCESS", "-1 -1"]


PAGEABLE = r"""
int main(void)
{
    enum { SIZE = 1 << 20 };
    static char in[SIZE], out[SIZE];
    char *p;
    npu_stream_t s;
    need(npu_init(0));
    need(npu_create_stream(&s));
    need(npu_malloc((void **)&p, SIZE, 0));
    need(npu_memset_async(p, SIZE, 1, SIZE, s));
    in[5] = 7;
    npu_result_t result = npu_memcpy_async(p, SIZE, in, SIZE, NPU_MEMCPY_HOST_TO_DEVICE, s);
    say(result);
    say(npu_query_stream(s));
    in[5] = 8; /* it was read */
    say(npu_memcpy_async(out, SIZE, p, SIZE, NPU_MEMCPY_DEVICE_TO_HOST, s));
    printf("%d\n", out[5]);
    need(npu_synchronize_stream(s));
    need(npu_memcpy(out, SIZE, p, SIZE, NPU_MEMCPY_DEVICE_TO_HOST));
    printf("%d\n", out[5]);
}
"""


@pytest.mark.parametrize(
    ("semantics", "expected"),
    [
        ("ascend", ["SUCCESS", "SUCCESS", "SUCCESS", "7", "7"]),
        ("cuda", ["SUCCESS", "NOT_READY", "SUCCESS", "7", "7"]),
        ("strict", ["NOT_PERMITTED", "NOT_READY", "NOT_PERMITTED", "0", "1"]),
    ],
)
def test_pageable_copies_follow_the_semantics(run, monkeypatch, semantics, expected):
    monkeypatch.setenv("NPU_SEMANTICS", semantics)
    assert run(PAGEABLE) == expected


@pytest.mark.parametrize(("semantics", "expected"), [("ascend", ["-1", "5"]), ("cuda", ["5", "5"])])
def test_copy_on_the_default_stream_waits_for_others_as_the_semantics_say(run, monkeypatch, semantics, expected):
    program = r"""
    int main(void)
    {
        enum { SIZE = 1 << 20 };
        char *p, byte;
        npu_stream_t s;
        need(npu_init(0));
        need(npu_create_stream(&s));
        need(npu_malloc((void **)&p, SIZE, 0));
        need(npu_memset_async(p, SIZE, 5, SIZE, s));
        need(npu_memcpy(&byte, 1, p + SIZE - 1, 1, NPU_MEMCPY_DEFAULT));
        printf("%d\n", byte);
        need(npu_synchronize_device());
        need(npu_memcpy(&byte, 1, p + SIZE - 1, 1, NPU_MEMCPY_DEFAULT));
        printf("%d\n", byte);
    }
    """
    monkeypatch.setenv("NPU_SEMANTICS", semantics)
    assert run(program) == expected


def test_fill_is_a_job_and_refuses_bad_arguments(run):
    program = r"""
    int main(void)
    {
        char *p, *pinned, host[8];
        npu_stream_t s;
        npu_context_t context;
        need(npu_init(0));
        need(npu_create_stream(&s));
        need(npu_malloc((void **)&p, 4099, 0));
        need(npu_malloc_host((void **)&pinned, 64, 0));
        need(npu_memset(p, 4099, 0, 4099));
        need(npu_memset_async(p + 1, 4098, 0x203, 4097, s));
        say(npu_query_stream(s));
        need(npu_memcpy_async(host, 2, p, 2, NPU_MEMCPY_DEFAULT, s));
        need(npu_memcpy_async(host + 2, 3, p + 4096, 3, NPU_MEMCPY_DEFAULT, s));
        printf("%d %d %d %d %d\n", host[0], host[1], host[2], host[3], host[4]);
        need(npu_memset_async(pinned, 64, 6, 64, s));
        need(npu_synchronize_stream(s));
        printf("%d\n", pinned[63]);
        need(npu_memset(p, 0, 1, 0));
        say(npu_memset(host, 8, 1, 8)); /* pageable */
        say(npu_memset(p, 7, 1, 8));
        say(npu_memset(p + 4098, 8, 1, 2));
        say(npu_memset_async(NULL, 8, 1, 8, s));
        say(npu_memset_async(pinned + 60, 8, 1, 8, s));
        say(npu_memset_async(p, 8, 1, 8, (npu_stream_t)BAD));
        need(npu_create_context(&context, 0));
        say(npu_memset(p, 8, 1, 8));
        say(npu_memset_async(p, 8, 1, 8, NULL));
        say(npu_memset_async(p, 8, 1, 8, s));
        need(npu_set_current_context(NULL));
        need(npu_free(p));
        say(npu_memset(p, 8, 1, 8));
        say(npu_memset_async(p, 8, 1, 8, s));
        need(npu_destroy_stream(s));
        say(npu_memset_async(pinned, 8, 1, 8, s));
    }
    """
    assert run(program) == [
        *("NOT_READY", "0 3 3 3 0", "6"),
        *("OUT_OF_RANGE", "OUT_OF_RANGE", "OUT_OF_RANGE", "NULL_POINTER", "OUT_OF_RANGE", "INVALID_HANDLE"),
        *("WRONG_CONTEXT", "WRONG_CONTEXT", "SUCCESS", "STALE_HANDLE", "STALE_HANDLE", "STALE_HANDLE"),
    ]


def test_copies_between_devices(run, monkeypatch):
    program = r"""
    int main(void)
    {
        char *p, *q, *r, host = 0;
        npu_context_t context;
        need(npu_init(0));
        need(npu_malloc((void **)&p, 64, 0));
        need(npu_memset_async(p, 64, 4, 64, NULL));
        need(npu_set_device(1));
        need(npu_malloc((void **)&q, 64, 0));
        need(npu_memcpy_peer(q + 1, 63, p, 10));
        need(npu_memcpy(&host, 1, q + 10, 1, NPU_MEMCPY_DEFAULT));
        printf("%d\n", host);
        need(npu_create_context(&context, 0));
        need(npu_malloc((void **)&r, 64, 0));
        need(npu_memcpy_peer(r, 64, q + 10, 2));
        need(npu_memcpy(&host, 1, r + 1, 1, NPU_MEMCPY_DEFAULT));
        printf("%d\n", host);
        need(npu_memcpy_peer(r, 64, r + 32, 32)); /* one context */
        need(npu_memcpy_peer(r, 0, q, 0));
        say(npu_memcpy_peer(NULL, 64, p, 1));
        say(npu_memcpy_peer(q, 64, NULL, 1));
        say(npu_memcpy_peer(q, 1, p, 2));
        say(npu_memcpy_peer(q + 63, 64, p, 2));
        say(npu_memcpy_peer(q, 64, p + 63, 2));
        say(npu_memcpy_peer(q, 64, &host, 1));
        say(npu_memcpy_peer(q, 64, q + 1, 2));
        need(npu_free(r));
        say(npu_memcpy_peer(q, 64, r, 2));
        need(npu_destroy_context(context, 0));
        say(npu_memcpy_peer(r, 64, q, 2));
    }
    """
    monkeypatch.setenv("NPU_PROFILE", "unit,npu-37xx")
    assert run(program) == [
        *("4", "-1"),
        *("NULL_POINTER", "NULL_POINTER", *["OUT_OF_RANGE"] * 4, "OVERLAP", "STALE_HANDLE", "STALE_HANDLE"),
    ]


def test_failed_fill_names_who_enqueued_it(run, blobs):
    program = r"""
    int main(int argc, char **argv)
    {
        npu_blob_t blob;
        npu_kernel_t k;
        npu_stream_t s;
        char *p;
        void *before, *behind;
        need(npu_init(0));
        need(npu_load_blob(&blob, argv[1]));
        need(npu_get_kernel(&k, blob, NULL));
        need(npu_create_stream(&s));
        need(npu_malloc((void **)&p, 1 << 20, 0));
        npu_arg_t args[] = {NPU_BUFFER(p), NPU_BUFFER(p + 64)};
        need(npu_launch_kernel_async(k, args, 2, s));
        asm volatile("lea (%%rip), %0" : "=r"(before));
        npu_result_t result = npu_memset_async(p, 1 << 20, 0, 1 << 20, s);
        asm volatile("lea (%%rip), %0" : "=r"(behind));
        need(result);
        need(npu_stream_abort(s));
        npu_error_detail_t d = {.size = sizeof d};
        while ((result = npu_synchronize_stream(s)) != NPU_SUCCESS) {
            say(result);
            need(npu_get_last_error_detail(&d));
        }
        printf("%d\n", (uintptr_t)before < d.enqueue_site && d.enqueue_site < (uintptr_t)behind);
        puts(d.message);
    }
    """
    *lines, message = run(program, str(blobs / "stuck.blob"))
    assert lines == ["BARRIER_DEADLOCK", "ABORTED_BY_PRIOR_ERROR", "1"]
    assert "'fill with 0x00'" in message
    assert "enqueued at 0x" in message


def test_copies_of_nothing_look_at_no_pointer(run):
    body = r"""
int main(void)
{
    char *p, host[4];
    npu_stream_t s;
    npu_cmdlist_t list;
    need(npu_init(0));
    need(npu_create_stream(&s));
    need(npu_cmdlist_create(&list, 0));
    need(npu_malloc((void **)&p, 64, 0));
    for (int freed = 0; freed < 2; freed++) {
        need(npu_memcpy(p + 64, 0, BAD, 0, NPU_MEMCPY_HOST_TO_DEVICE));
        need(npu_memcpy_async(BAD, 0, p + 4096, 0, NPU_MEMCPY_DEVICE_TO_HOST, s));
        need(npu_memcpy_2d_async(p, 0, 0, p, 0, 0, 4, NPU_MEMCPY_DEVICE_TO_DEVICE, s));
        need(npu_memset(p + 64, 0, 1, 0));
        need(npu_memset_async(p + 64, 0, 1, 0, s));
        need(npu_memcpy_peer(p + 64, 0, p, 0));
        need(npu_cmdlist_append_memcpy(list, p + 64, 0, p, 0, NPU_MEMCPY_DEFAULT));
        need(npu_cmdlist_append_memset(list, p + 64, 0, 1, 0));
        if (!freed)
            need(npu_free(p));
    }
    say(npu_memcpy(p, 0, host, 0, NPU_MEMCPY_DEVICE_TO_HOST)); /* the wrong kind */
    say(npu_memset(host, 0, 1, 0));
    say(npu_memcpy((void *)-5, 4, host, 4, NPU_MEMCPY_DEFAULT)); /* no device pointer: there are none from 2^63 on */
    say(npu_free((void *)-5));
}
"""
    assert run(body) == ["INVALID_VALUE", "OUT_OF_RANGE", "BAD_ADDRESS", "INVALID_VALUE"]
