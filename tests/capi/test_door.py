"""door.c alone: memory that cannot be read or written is an error, with process_vm_* and with the pipe; what is guarded is opened."""

import subprocess

import pytest
from npu_abi import INCLUDE_DIR

from libnpu.capi.build import SOURCES

# Without process_vm_*, as in a sandbox that forbids them.
SANDBOX = r"""
#include <errno.h>
#include <sys/uio.h>
#define process_vm_readv forbidden_readv
#define process_vm_writev forbidden_writev
#define FORBIDDEN(name) static ssize_t name(pid_t p, const struct iovec *a, unsigned long b, const struct iovec *c, unsigned long d, unsigned long e) \
    { (void)p; (void)a; (void)b; (void)c; (void)d; (void)e; errno = EPERM; return -1; }
FORBIDDEN(forbidden_readv)
FORBIDDEN(forbidden_writev)
"""

PROGRAM = r"""
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
%s
#include "door.c"
#include "library.h"
enum { PAGES = 5 };
static char own[PAGES * PAGE];
static uintptr_t guarded;
int npu_open_pages(uintptr_t address, size_t size)
{
    uintptr_t page = guarded;
    if (page + PAGE <= address || page >= address + size)
        return 0;
    guarded = 0;
    return mprotect((void *)page, PAGE, PROT_READ | PROT_WRITE) == 0;
}
int main(void)
{
    char *map = mmap(NULL, (PAGES + 1) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uintptr_t at = (uintptr_t)map;

    mprotect(map + PAGES * PAGE, PAGE, PROT_NONE);
    memset(map, 7, PAGES * PAGE);
    int result = npu_copy_from_user(own, at, sizeof own);
    printf("read %%d %%d\n", result, own[sizeof own - 1]);
    memset(own, 9, sizeof own);
    result = npu_copy_to_user(at + 1, own, sizeof own - 1);
    printf("write %%d %%d\n", result, map[sizeof own - 1]);
    printf("read past the end %%d\n", npu_copy_from_user(own, at + 1, sizeof own));
    memset(own, 3, sizeof own);
    result = npu_copy_to_user(at + 1, own, sizeof own);
    printf("write past the end %%d %%d\n", result, map[1]);
    printf("probe %%d %%d %%d\n", npu_probe_user(at + 1, sizeof own - 1), npu_probe_user(at + sizeof own - 1, 2), map[2]);
    printf("probe nothing %%d, all %%d\n", npu_probe_user(16, 0), npu_probe_user(at, SIZE_MAX));
    mprotect(map, PAGE, PROT_READ);
    printf("write to read-only memory %%d\n", npu_copy_to_user(at, own, 1));
    printf("read from address 16 %%d\n", npu_copy_from_user(own, 16, 1));
    printf("read from no user address %%d\n", npu_copy_from_user(own, UINTPTR_MAX - 8, 4));
    printf("nothing %%d\n", npu_copy_from_user(own, 16, 0));
    mprotect((void *)(guarded = at + PAGE), PAGE, PROT_NONE);
    printf("read of a guarded page %%d\n", npu_copy_from_user(own, at + 1, 2 * PAGE));
    mprotect((void *)(guarded = at + PAGE), PAGE, PROT_READ);
    result = npu_copy_to_user(at + PAGE - 1 + 2, own, PAGE);
    printf("write to a guarded page %%d %%d\n", result, map[PAGE + 1] == own[0]);
    mprotect((void *)(guarded = at + PAGE), PAGE, PROT_READ);
    result = npu_copy_to_user(at + PAGE, own, 1);
    printf("write of a byte to a guarded page %%d %%d\n", result, map[PAGE] == own[0]);
}
"""


@pytest.mark.parametrize("sandbox", ["", SANDBOX], ids=["process_vm", "pipe"])
def test_bad_memory_is_an_error(tmp_path, sandbox):
    source = tmp_path / "program.c"
    source.write_text(PROGRAM % sandbox)
    program = tmp_path / "door"
    command = ["gcc", "-std=gnu11", "-Wall", f"-I{SOURCES}", f"-I{INCLUDE_DIR}", "-O1", str(source)]
    subprocess.run([*command, "-o", str(program)], check=True)
    run = subprocess.run([program], check=True, capture_output=True, text=True)
    assert run.stdout.splitlines() == [
        "read 0 7",
        "write 0 9",
        "read past the end -1",
        "write past the end -1 9",
        "probe 0 -1 9",
        "probe nothing 0, all -1",
        "write to read-only memory -1",
        "read from address 16 -1",
        "read from no user address -1",
        "nothing 0",
        "read of a guarded page 0",
        "write to a guarded page 0 1",
        "write of a byte to a guarded page 0 1",
    ]
