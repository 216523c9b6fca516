/* SPDX-License-Identifier: Apache-2.0
 * start.c - start Python inside the program that uses the library, the same way in every environment.
 *
 *   1. Refuse a process that runs another Python version, or an installation that is gone.
 *   2. Unless the process runs Python already, start it: isolated from the environment (PATH, PYTHONHOME, PYTHONPATH and locale have no
 *      say), with the interpreter that npu-config ran under as its program name, without signal handlers.
 *   3. Release the GIL, add the package folders to sys.path where they are missing, and run cffi's start code.
 *
 * And call the program's host functions.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "library.h"
#include "paths.h" /* generated: NPU_PYTHON, NPU_STDLIB, NPU_LIBPYTHON, NPU_PACKAGE, NPU_PATH_CODE */

#define STRING_OF(x) #x
#define STRING(x) STRING_OF(x)
#define PYTHON_SERIES STRING(PY_MAJOR_VERSION) "." STRING(PY_MINOR_VERSION) "."

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int begun;   /* somebody has called npu_start */
static atomic_int running; /* it has succeeded */
static atomic_int ended;   /* the interpreter that it ran in is gone; another one has nothing of the library */
static atomic_int forked;
static const char *failure; /* the first start's verdict holds for the life of the process */

static char reason_text[512] = "the library's Python part does not start";

void npu_set_reason(const char *text)
{
    snprintf(reason_text, sizeof reason_text, "the library's Python part does not start: %s", text);
}

static void in_child(void)
{
    if (atomic_load(&begun)) /* also in the middle of another thread's start: its lock is never released here */
        atomic_store(&forked, 1);
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

/* A signal's handler may end the process in the middle of a call, which has Python's locks and perhaps malloc's: Python is not asked, and the
 * exit handlers of the libraries below, which free memory, are left out too. Standard output is written as exit does it, without its locks. */
static void at_exit(int status, void *unused)
{
    (void)unused;
    if (npu_calls()) {
        fcloseall();
        _exit(status);
    }
    if (!npu_forked() && npu_obstacle() == NULL)
        npu_embed_exit();
}

static void at_end_of_python(void)
{
    atomic_store(&ended, 1);
}

/* The first import of Python's signal module takes SIGINT over. Let it happen now, tell Python that the signal is none of its business, and
 * give the program its handler back. */
static void keep_interrupt_handler(void)
{
    struct sigaction handler;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *module, *by_default = NULL;

    sigaction(SIGINT, NULL, &handler);
    if ((module = PyImport_ImportModule("signal")) && (by_default = PyObject_GetAttrString(module, "SIG_DFL")))
        Py_XDECREF(PyObject_CallMethod(module, "signal", "iO", SIGINT, by_default));
    Py_XDECREF(by_default);
    Py_XDECREF(module);
    PyErr_Clear();
    sigaction(SIGINT, &handler, NULL);
    PyGILState_Release(state);
}

static const char *start_python(void)
{
    PyPreConfig before;
    PyConfig config;
    PyStatus status;
    Dl_info own;

    /* Python prints pages to stderr when it finds no standard library, so look first. */
    if (access(NPU_PYTHON, X_OK) < 0 || access(NPU_STDLIB, R_OK) < 0)
        return "the Python installation that libnpu.so was built for is gone: run npu-config again";
    /* Extension modules expect Python's symbols in the global scope, also when this library is a plug-in. */
    if (NPU_LIBPYTHON[0])
        dlopen(NPU_LIBPYTHON, RTLD_NOW | RTLD_GLOBAL);
    else if (dladdr(&running, &own)) /* linked into this library */
        dlopen(own.dli_fname, RTLD_NOW | RTLD_GLOBAL);
    PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1;
    status = Py_PreInitialize(&before);
    if (PyStatus_Exception(status))
        return "Python does not start";
    PyConfig_InitIsolatedConfig(&config); /* no environment, no signal handlers, no stdio settings, no user site */
    config.pathconfig_warnings = 0;
    status = PyConfig_SetBytesString(&config, &config.program_name, NPU_PYTHON);
    if (!PyStatus_Exception(status))
        status = Py_InitializeFromConfig(&config);
    PyConfig_Clear(&config);
    if (PyStatus_Exception(status))
        return "Python does not start";
    PyEval_SaveThread();
    keep_interrupt_handler();
    return NULL;
}

static const char *find_packages(void)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *names = PyDict_New();
    PyObject *done = NULL;

    if (names && PyDict_SetItemString(names, "__builtins__", PyEval_GetBuiltins()) == 0)
        done = PyRun_String(NPU_PATH_CODE, Py_file_input, names, names);
    PyErr_Clear();
    Py_XDECREF(names);
    Py_XDECREF(done);
    Py_AtExit(at_end_of_python);
    PyGILState_Release(state);
    return done ? NULL : "cffi is not installed in this Python environment";
}

static const char *start(void)
{
    const char *reason;

    if (strncmp(Py_GetVersion(), PYTHON_SERIES, strlen(PYTHON_SERIES)) != 0)
        return "this process runs another Python version than libnpu.so was built for (" PYTHON_SERIES "x)";
    if (access(NPU_PACKAGE, R_OK) < 0)
        return "the libnpu package that libnpu.so was built from is gone: run npu-config again";
    if (!Py_IsInitialized() && (reason = start_python()) != NULL)
        return reason;
    if ((reason = find_packages()) != NULL)
        return reason;
    if (npu_embed_start() < 0)
        return reason_text;
    on_exit(at_exit, NULL);
    return NULL;
}

const char *npu_start(void)
{
    static int tried;

    atomic_store(&begun, 1);
    if (!atomic_load(&running)) {
        pthread_mutex_lock(&lock);
        if (!tried) { /* no handler of a signal runs in a Python half started, or on a thread that its libraries start */
            sigset_t all, mask;
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, &mask);
            failure = start();
            pthread_sigmask(SIG_SETMASK, &mask, NULL);
            tried = 1;
            atomic_store(&running, failure == NULL);
        }
        pthread_mutex_unlock(&lock);
    }
    return failure ? failure : npu_obstacle();
}

const char *npu_obstacle(void)
{
    if (!atomic_load(&running))
        return "npu_init has not been called, or did not succeed";
    if (atomic_load(&ended) || !Py_IsInitialized())
        return "the Python that the library ran in has ended; it does not start again in this process";
    return NULL;
}

int npu_forked(void)
{
    return atomic_load(&forked);
}

static void thread_ends(void *unused)
{
    (void)unused;
    npu_embed_thread_ends();
}

static _Thread_local int in_function;

int npu_in_function(void) { return in_function; }

void npu_call_function(uintptr_t function, uintptr_t argument)
{
    in_function = 1;
    pthread_cleanup_push(thread_ends, NULL);
    ((void (*)(void *))function)((void *)argument);
    pthread_cleanup_pop(0);
    in_function = 0;
}
