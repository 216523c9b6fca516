/* SPDX-License-Identifier: Apache-2.0
 * pages.c - pages that are guarded while the device uses them (npu check --guard), so that the program's loads and stores there are seen.
 *
 * A range of pages that is guarded can be read at most. The first access that it forbids is a fault: its handler notes who made it, opens the
 * page until the range is given up, and the access goes on. Several ranges may have a page; the strictest one that it is not open for counts.
 *
 * The table has a lock of its own, which is never held while memory of the program is touched.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <execinfo.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "library.h"

enum { PAGE = 4096, MOST_FAULTS = 4096 }; /* faults that nobody has taken yet; later ones are not noted */

struct range { uintptr_t start, end; uint64_t key; int readable; unsigned char *open; }; /* `open`: a byte for each page */

static atomic_flag lock = ATOMIC_FLAG_INIT;
static struct range *ranges;
static size_t count, room;
static struct npu_fault faults[MOST_FAULTS];
static size_t fault_count;
static struct sigaction before;
static int installed;

static void take(void)
{
    while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire))
        sched_yield();
}

static void give(void) { atomic_flag_clear_explicit(&lock, memory_order_release); }

static int has(const struct range *range, uintptr_t page) { return range->start <= page && page < range->end; }

static unsigned char *opening(const struct range *range, uintptr_t page) { return &range->open[(page - range->start) / PAGE]; }

static int protection(uintptr_t page)
{
    int allowed = PROT_READ | PROT_WRITE;

    for (size_t i = 0; i < count; i++)
        if (has(&ranges[i], page) && !*opening(&ranges[i], page))
            allowed &= ranges[i].readable ? PROT_READ : PROT_NONE;
    return allowed;
}

/* Give the pages of [start, end) the protection that the table says. */
static void protect(uintptr_t start, uintptr_t end)
{
    while (start < end) {
        int allowed = protection(start);
        uintptr_t stop = start + PAGE;
        while (stop < end && protection(stop) == allowed)
            stop += PAGE;
        mprotect((void *)start, stop - start, allowed);
        start = stop;
    }
}

/* Open a page for all ranges that have it. Returns 0 when none has, 1 when it was open, 2 when it was not. */
static int open_page(uintptr_t page)
{
    int found = 0;

    for (size_t i = 0; i < count; i++)
        if (has(&ranges[i], page)) {
            unsigned char *open = opening(&ranges[i], page);
            found |= *open ? 1 : 2;
            *open = 1;
        }
    if (found & 2)
        mprotect((void *)page, PAGE, PROT_READ | PROT_WRITE);
    return found & 2 ? 2 : found;
}

static void note(uintptr_t address, const ucontext_t *context)
{
    uintptr_t at = 0;
    void *frames[NPU_FAULT_SITES + 4];
    int depth = backtrace(frames, NPU_FAULT_SITES + 4), first = 0;
    struct npu_fault fault = {.address = address, .access = NPU_FAULT_UNKNOWN, .in_function = (uint32_t)npu_in_function()};

#if defined(__x86_64__)
    at = (uintptr_t)context->uc_mcontext.gregs[REG_RIP];
    fault.access = context->uc_mcontext.gregs[REG_ERR] & 2 ? NPU_FAULT_STORE : NPU_FAULT_LOAD;
#elif defined(__aarch64__)
    at = (uintptr_t)context->uc_mcontext.pc;
#endif
    while (first < depth && (uintptr_t)frames[first] != at)
        first++;
    fault.sites[0] = at;
    for (int i = first + 1, site = 1; i < depth && site < NPU_FAULT_SITES; i++, site++)
        fault.sites[site] = (uintptr_t)frames[i];
    take();
    if (fault_count < MOST_FAULTS)
        faults[fault_count++] = fault;
    give();
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    static _Thread_local uintptr_t last; /* fault: another thread may open a page between one and its handler, but not twice */
    int saved = errno, found = 0;
    uintptr_t address = (uintptr_t)info->si_addr;

    if (info->si_code == SEGV_ACCERR) {
        take();
        found = open_page(address & ~(uintptr_t)(PAGE - 1));
        give();
    }
    if (found == 2 || (found == 1 && last != address)) {
        last = found == 2 ? 0 : address;
        if (!npu_calls())
            note(address, context);
    } else if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(signal, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(signal);
    } else {
        sigaction(SIGSEGV, &before, NULL); /* the access is made again, and ends the process */
    }
    errno = saved;
}

static int install(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK}, now;
    void *frame;

    if (!installed) {
        backtrace(&frame, 1); /* it loads a library when it is called first */
        installed = sigaction(SIGSEGV, &action, &before) == 0;
    }
    return sigaction(SIGSEGV, NULL, &now) == 0 && now.sa_sigaction == on_fault ? 0 : -1;
}

int npu_guard_pages(uint64_t key, uintptr_t address, size_t size, int readable)
{
    uintptr_t start = address & ~(uintptr_t)(PAGE - 1), end = (address + size + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
    unsigned char *open = install() < 0 ? NULL : calloc((end - start) / PAGE, 1);
    struct range *larger = ranges;

    if (open == NULL)
        return -1;
    take();
    if (count == room && (larger = realloc(ranges, (room * 2 + 16) * sizeof *ranges)) != NULL) {
        ranges = larger;
        room = room * 2 + 16;
    }
    if (larger != NULL) {
        ranges[count++] = (struct range){start, end, key, readable, open};
        protect(start, end);
    }
    give();
    if (larger == NULL)
        free(open);
    return larger == NULL ? -1 : 0;
}

void npu_give_up_pages(uint64_t key)
{
    take();
    for (size_t i = 0; i < count;) {
        struct range gone = ranges[i];
        if (gone.key != key) {
            i++;
            continue;
        }
        ranges[i] = ranges[--count];
        protect(gone.start, gone.end);
        free(gone.open);
    }
    give();
}

int npu_open_pages(uintptr_t address, size_t size)
{
    int found = 0;

    take();
    for (size_t i = 0; i < count; i++)
        for (uintptr_t page = ranges[i].start; page < ranges[i].end; page += PAGE)
            if (page + PAGE > address && page < address + size)
                found |= open_page(page) == 2;
    give();
    return found;
}

size_t npu_take_faults(struct npu_fault *out, size_t most)
{
    size_t taken;

    take();
    taken = fault_count < most ? fault_count : most;
    memcpy(out, faults, taken * sizeof *out);
    memmove(faults, faults + taken, (fault_count - taken) * sizeof *faults);
    fault_count -= taken;
    give();
    return taken;
}
