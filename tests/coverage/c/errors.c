/* errors.c - the last error, versions, and the begin and end of the library. */
#include "expect.h"
#include <dlfcn.h>

static void last_error(void)
{
    npu_error_detail_t detail = {.size = sizeof detail};

    OK(npu_get_last_error());
    expect(NPU_ERROR_NULL_POINTER, npu_get_version(NULL));
    expect(NPU_ERROR_NULL_POINTER, npu_peek_last_error());
    OK(npu_get_last_error_detail(&detail));
    claim(detail.result == NPU_ERROR_NULL_POINTER && strcmp(detail.function, "npu_get_version") == 0);
    expect(NPU_ERROR_NULL_POINTER, npu_get_last_error());
    OK(npu_peek_last_error());
    expect(NPU_ERROR_NULL_POINTER, npu_get_last_error_detail(NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_last_error_detail(BAD));
    detail.size = 1;
    expect(NPU_ERROR_INVALID_SIZE, npu_get_last_error_detail(&detail));
}

static void versions(void)
{
    uint32_t version = 0;

    OK(npu_get_version(&version));
    claim(version == (NPU_VERSION_MAJOR << 16 | NPU_VERSION_MINOR));
    expect(NPU_ERROR_NULL_POINTER, npu_get_version(NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_version(BAD));
}

static void begin_and_end(void)
{
    uint32_t minor = (uint32_t)1 << 16, major = (uint32_t)1 << 24;

    expect(NPU_ERROR_INVALID_VALUE, npu_init(7));
    expect(NPU_ERROR_INVALID_VALUE, npu_init(NPU_INIT_CHECK + 1));
    expect(NPU_ERROR_VERSION_MISMATCH, npu_init(NPU_INIT_CHECK + minor));
    expect(NPU_ERROR_VERSION_MISMATCH, npu_init(NPU_INIT_CHECK + major));
    setenv("NPU_PROFILE", "no-such-profile", 1);
    expect(NPU_ERROR_INVALID_VALUE, npu_init(0));
    unsetenv("NPU_PROFILE");
    setenv("NPU_SEMANTICS", "opencl", 1);
    expect(NPU_ERROR_INVALID_VALUE, npu_init(0));
    unsetenv("NPU_SEMANTICS");
    setenv("NPU_SCHEDULE", "seed:x", 1);
    expect(NPU_ERROR_INVALID_VALUE, npu_init(0));
    unsetenv("NPU_SCHEDULE");
    OK(npu_init(NPU_INIT_CHECK - minor)); /* an older header */
    OK(npu_init(NPU_INIT_CHECK));
    OK(npu_shutdown());
    OK(npu_shutdown());
    expect(NPU_ERROR_NOT_INITIALIZED, npu_shutdown());
}

static void rules(void)
{
    npu_semantics_t found = NPU_SEMANTICS_STRICT;

    setenv("NPU_SEMANTICS", "cuda", 1);
    OK(npu_init(0));
    OK(npu_get_semantics(&found));
    claim(found == NPU_SEMANTICS_CUDA);
    OK(npu_shutdown());
    unsetenv("NPU_SEMANTICS");
    OK(npu_init(0));
    OK(npu_get_semantics(&found));
    claim(found == NPU_SEMANTICS_ASCEND);
    OK(npu_set_semantics(NPU_SEMANTICS_STRICT));
    OK(npu_get_semantics(&found));
    claim(found == NPU_SEMANTICS_STRICT);
    expect(NPU_ERROR_INVALID_VALUE, npu_set_semantics((npu_semantics_t)3));
    expect(NPU_ERROR_NULL_POINTER, npu_get_semantics(NULL));
    expect(NPU_ERROR_BAD_ADDRESS, npu_get_semantics(BAD));
    allocate(64); /* the first use of a device */
    expect(NPU_ERROR_BAD_STATE, npu_set_semantics(NPU_SEMANTICS_ASCEND));
    OK(npu_shutdown());
}

/* The library does not start again once the program has ended the Python in which it ran. */
static void end_of_python(void)
{
    void *names = dlopen(NULL, RTLD_NOW);
    void *ensure = dlsym(names, "PyGILState_Ensure"), *finalize = dlsym(names, "Py_FinalizeEx");
    int (*call)(void);

    OK(npu_init(0));
    memcpy(&call, &ensure, sizeof call);
    call();
    memcpy(&call, &finalize, sizeof call);
    claim(call() == 0);
    expect(NPU_ERROR_NOT_INITIALIZED, npu_init(0));
}

int main(void)
{
    last_error();
    versions();
    begin_and_end();
    rules();
    end_of_python();
    return failures != 0;
}
