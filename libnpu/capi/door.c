/* SPDX-License-Identifier: Apache-2.0
 * door.c - the only code that touches memory of the program that uses the library.
 *
 * The kernel does the copy, so an address that cannot be read or written is an error and not a crash:
 * process_vm_readv and process_vm_writev on this process, or, where a sandbox forbids them, a pipe. (A write to /proc/self/mem would ignore
 * page protection.) A copy that reaches into a second page asks first whether all of them can be written, so it happens whole or not at all.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "library.h"

enum { PAGE = 4096 };       /* the smallest there is: no range of it has two protections */
enum { PIPE_CHUNK = 4096 }; /* a write of up to PIPE_BUF bytes into an empty pipe never blocks */

static int through_pipe(char *destination, const char *source, size_t size)
{
    int ends[2], result = 0;

    if (pipe(ends) < 0)
        return -1;
    while (size > 0 && result == 0) {
        size_t chunk = size < PIPE_CHUNK ? size : PIPE_CHUNK;
        ssize_t written = write(ends[1], source, chunk);
        if (written <= 0 || read(ends[0], destination, (size_t)written) != written) {
            result = -1;
        } else {
            source += written;
            destination += written;
            size -= (size_t)written;
        }
    }
    close(ends[0]);
    close(ends[1]);
    return result;
}

typedef ssize_t transfer_t(pid_t, const struct iovec *, unsigned long, const struct iovec *, unsigned long, unsigned long);

static int copy(transfer_t *transfer, char *own, char *theirs, size_t size)
{
    while (size > 0) { /* one call moves at most 2 GiB */
        struct iovec here = {own, size}, there = {theirs, size};
        ssize_t moved = transfer(getpid(), &here, 1, &there, 1, 0);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved < 0 && (errno == EPERM || errno == ENOSYS))
            return transfer == process_vm_readv ? through_pipe(own, theirs, size) : through_pipe(theirs, own, size);
        if (moved <= 0)
            return -1;
        own += moved;
        theirs += moved;
        size -= (size_t)moved;
    }
    return 0;
}

/* As `copy`; pages that are guarded are opened for it. */
static int copy_guarded(transfer_t *transfer, char *own, uintptr_t theirs, size_t size)
{
    if (copy(transfer, own, (char *)theirs, size) == 0)
        return 0;
    return npu_open_pages(theirs, size) ? copy(transfer, own, (char *)theirs, size) : -1;
}

int npu_copy_from_user(void *destination, uintptr_t source, size_t size)
{
    return copy_guarded(process_vm_readv, destination, source, size);
}

int npu_copy_to_user(uintptr_t destination, const void *source, size_t size)
{
    if (size > PAGE - destination % PAGE && npu_probe_user(destination, size) < 0)
        return -1;
    return copy_guarded(process_vm_writev, (char *)source, destination, size);
}

/* The one call that asks the kernel for write access and changes nothing: it adds 0 to an aligned word, atomically. */
int npu_probe_user(uintptr_t address, size_t size)
{
    int unused = 0;
    uintptr_t last = address + size - 1;

    if (size == 0)
        return 0;
    if (last < address)
        return -1;
    for (uintptr_t page = address & ~(uintptr_t)(PAGE - 1);; page += PAGE) {
        long done = syscall(SYS_futex, &unused, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 0, 0, page,
                            FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 0));
        if (done < 0 && errno == EFAULT && !npu_open_pages(page, PAGE))
            return -1;
        if (last - page < PAGE)
            return 0;
    }
}
