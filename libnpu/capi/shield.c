/* SPDX-License-Identifier: Apache-2.0
 * shield.c - what a call keeps away from this library, and gives back unchanged when it returns:
 *
 *   - the thread's floating-point environment: rounding mode, flushing and traps would change results, or end in SIGFPE;
 *   - cancellation: a thread that ends inside would keep the library's lock for ever;
 *   - SIGXFSZ: device memory is files in memory, and where RLIMIT_FSIZE forbids one to grow, the call fails instead of the process.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

#include "library.h"

static _Thread_local int calls; /* that the thread is in */

int npu_calls(void) { return calls; }

static sigset_t size_signal(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    return set;
}

void npu_raise_shield(struct npu_shield *shield)
{
    struct rlimit limit;

    calls++;
    fegetenv(&shield->environment);
    fesetenv(FE_DFL_ENV);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &shield->cancel_state);
    shield->blocks = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    if (shield->blocks) {
        sigset_t set = size_signal();
        pthread_sigmask(SIG_BLOCK, &set, &shield->mask);
    }
}

void npu_lower_shield(const struct npu_shield *shield)
{
    if (shield->blocks && !sigismember(&shield->mask, SIGXFSZ)) { /* one that the program itself blocks is the program's */
        sigset_t set = size_signal();
        struct timespec now = {0, 0};
        while (sigtimedwait(&set, NULL, &now) == SIGXFSZ)
            ;
        pthread_sigmask(SIG_SETMASK, &shield->mask, NULL);
    }
    pthread_setcancelstate(shield->cancel_state, NULL);
    fesetenv(&shield->environment);
    calls--;
}
