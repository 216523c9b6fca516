/* ledger.c - linked into every program of c/: what a call returned counts once the program has compared it.
 *
 * Every function of npu.h is wrapped (generated.py, the linker's --wrap), so calls by way of a pointer are noted too. A result has to be
 * compared before the thread's next call. Compared ones are appended to the file that NPU_COMPARED names, as "function result".
 */
#include "ledger.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

static int file = -1;
static _Thread_local const char *function; /* whose result has not been compared */
static _Thread_local npu_result_t result;

__attribute__((constructor)) static void open_file(void)
{
    const char *path = getenv("NPU_COMPARED");

    if (path != NULL)
        file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
}

__attribute__((destructor)) static void complain(void)
{
    if (function != NULL)
        fprintf(stderr, "%s gave %s, which was not compared\n", function, npu_get_error_name(result));
}

npu_result_t noted(const char *called, npu_result_t found)
{
    complain();
    function = called;
    return result = found;
}

int compared(npu_result_t found, npu_result_t wanted)
{
    if (function != NULL && found == wanted && found == result && file >= 0)
        dprintf(file, "%s %s\n", function, npu_get_error_name(found));
    function = NULL;
    return found == wanted;
}
