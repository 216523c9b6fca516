"""A C program starts the library the same way in every environment, and says why when it cannot."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from libnpu.capi import build as build_module

HELLO = r"""
int main(void)
{
    uint32_t count;
    need(npu_init(0));
    need(npu_get_device_count(&count));
    printf("%u\n", count);
    need(npu_shutdown());
}
"""


@pytest.fixture(scope="session")
def hello(build):
    return build(HELLO, "hello")


@pytest.fixture
def hostile(tmp_path):
    """A folder whose json.py, re.py and site.py end every program that imports them."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in ("json.py", "re.py", "site.py", "cffi.py", "numpy.py"):
        (folder / name).write_text("raise SystemExit('hostile')\n")
    return folder


def output(program, environment, folder="/"):
    run = subprocess.run(
        [program], env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return run.returncode, run.stdout, run.stderr


def test_program_runs_in_this_environment(hello):
    assert output(hello, dict(os.environ)) == (0, "1\n", "")


def test_program_runs_in_an_empty_environment(hello):
    assert output(hello, {}) == (0, "1\n", "")


def test_program_runs_with_a_path_that_has_nothing(hello, tmp_path):
    assert output(hello, {"PATH": str(tmp_path)}) == (0, "1\n", "")


def test_program_ignores_python_variables(hello, hostile):
    environment = {
        "PYTHONPATH": str(hostile),
        "PYTHONHOME": "/nonexistent",
        "PYTHONPLATLIBDIR": "nowhere",
        "PYTHONIOENCODING": "utf-7",
        "PYTHONVERBOSE": "1",
        "PYTHONINSPECT": "1",
        "PYTHONDEVMODE": "1",
    }
    assert output(hello, environment) == (0, "1\n", "")


def test_program_ignores_modules_in_the_current_folder(hello, hostile):
    assert output(hello, {}, hostile) == (0, "1\n", "")


@pytest.mark.parametrize("locale", ["C", "de_DE.ISO-8859-1"])
def test_program_runs_in_every_locale(hello, locale):
    assert output(hello, {"LC_ALL": locale, "LANG": locale}) == (0, "1\n", "")


def test_program_finds_the_library_without_ld_library_path(hello):
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    assert output(hello, environment) == (0, "1\n", "")


def test_plain_command_line_links_from_another_folder_outside_the_virtual_environment(cache, tmp_path, hostile):
    config = Path(sys.executable).with_name("npu-config")
    assert config.exists(), "libnpu is not installed in this environment"
    (tmp_path / "prog.c").write_text("#include <npu.h>\nint main(void) { return npu_init(0); }\n")
    environment = {
        "PATH": "/usr/bin:/bin",
        "XDG_CACHE_HOME": str(cache),
        "PYTHONHOME": "/nonexistent",
        "PYTHONPATH": str(hostile),
    }
    command = f"gcc prog.c $({config} --cflags --libs) -o prog && ./prog"
    subprocess.run(["/bin/sh", "-c", command], check=True, cwd=tmp_path, env=environment)


def test_environment_that_is_gone_is_an_error_not_a_crash(build, flags, cache, tmp_path):
    library = next(cache.glob("libnpu/*/libnpu.so"))
    copy = tmp_path / "libnpu.so"
    data = library.read_bytes()
    python = os.fsencode(sys.executable) + b"\0"
    assert data.count(python) == 1
    copy.write_bytes(data.replace(python, b"/gone".ljust(len(python), b"\0")))
    program = build("int main(void) { say(npu_init(0)); detail(); say(npu_init(0)); }", "gone")
    run = subprocess.run([program], env={"LD_PRELOAD": str(copy)}, capture_output=True, text=True, check=False)
    assert run.stdout.splitlines() == [
        "NOT_INITIALIZED",
        "npu_init: the Python installation that libnpu.so was built for is gone: run npu-config again",
        "NOT_INITIALIZED",
    ]
    assert run.stderr == ""


def test_unknown_profile_is_named(hello):
    status, out, err = output(hello, {"NPU_PROFILE": "unit,npu-99"})
    assert (status, err) == (3, "")
    assert out.startswith("INVALID_VALUE\nnpu_init: NPU_PROFILE: no hardware profile named 'npu-99'; there are ")


def test_profiles_are_devices(hello):
    assert output(hello, {"NPU_PROFILE": "unit, npu-40xx"}) == (0, "2\n", "")


def test_functions_that_need_no_library_work_before_it_starts(run):
    program = r"""
    int main(void)
    {
        uint32_t version = 0;
        say(npu_get_version(&version));
        printf("%d\n", version == (NPU_VERSION_MAJOR << 16 | NPU_VERSION_MINOR));
        say(npu_get_last_error());
        say(npu_get_version(NULL));
        detail();
        say(npu_get_version(BAD));
        say(npu_get_last_error());
        puts(npu_get_error_name(NPU_ERROR_IN_USE));
        puts(npu_get_error_string(NPU_ERROR_IN_USE));
        puts(npu_get_error_name(12345));
        puts(npu_get_error_string(-12345));
    }
    """
    assert run(program) == [
        "SUCCESS",
        "1",
        "SUCCESS",
        "NULL_POINTER",
        "npu_get_version: a pointer that must not be NULL is NULL",
        "BAD_ADDRESS",
        "BAD_ADDRESS",
        "NPU_ERROR_IN_USE",
        "the object is in use by work in flight",
        "unknown",
        "unknown result",
    ]


def test_calls_before_init_and_after_shutdown_are_refused(run):
    program = r"""
    int main(void)
    {
        void *p;
        say(npu_malloc(&p, 1, 0));
        detail();
        say(npu_shutdown());
        need(npu_init(0));
        need(npu_init(0));
        need(npu_shutdown());
        say(npu_get_device((uint32_t *)&p));
        need(npu_shutdown());
        say(npu_get_device((uint32_t *)&p));
        detail();
        need(npu_init(0));
        say(npu_init(1));
        detail();
    }
    """
    assert run(program) == [
        "NOT_INITIALIZED",
        "npu_malloc: npu_init has not been called, or did not succeed",
        "NOT_INITIALIZED",
        "SUCCESS",
        "NOT_INITIALIZED",
        "npu_get_device: npu_init has not been called, or npu_shutdown has ended the library",
        "INVALID_VALUE",
        "npu_init: flags is 0x1, neither 0 nor NPU_INIT_CHECK",
    ]


def test_forked_child_is_refused_and_the_parent_goes_on(run):
    program = r"""
    #include <sys/wait.h>
    #include <unistd.h>
    int main(void)
    {
        uint32_t count;
        need(npu_init(0));
        fflush(stdout);
        if (fork() == 0) {
            say(npu_get_device_count(&count));
            detail();
            exit(0);
        }
        wait(NULL);
        say(npu_get_device_count(&count));
    }
    """
    assert run(program) == [
        "NOT_PERMITTED",
        "npu_get_device_count: this process was forked from the one that uses the library; start the library after fork",
        "SUCCESS",
    ]


def test_fork_in_the_middle_of_the_start_refuses_the_child(run):
    program = r"""
    #include <errno.h>
    #include <sys/syscall.h>
    #include <sys/wait.h>
    #include <unistd.h>
    static int forked;
    int access(const char *path, int mode) /* the library's start calls it, with its lock */
    {
        if (!forked) {
            forked = 1;
            if (fork() == 0) {
                alarm(20);
                say(npu_init(0));
                exit(0);
            }
            wait(NULL);
        }
        return syscall(SYS_faccessat, -100, path, mode);
    }
    int main(void)
    {
        say(npu_init(0));
        printf("%d\n", forked);
    }
    """
    assert run(program) == ["NOT_PERMITTED", "SUCCESS", "1"]


def test_fork_before_the_start_gives_the_child_a_library_of_its_own(run):
    program = r"""
    #include <sys/wait.h>
    #include <unistd.h>
    int main(void)
    {
        uint32_t count;
        say(npu_get_device_count(&count));
        fflush(stdout);
        if (fork() == 0) {
            say(npu_init(0));
            exit(0);
        }
        wait(NULL);
        say(npu_init(0));
    }
    """
    assert run(program) == ["NOT_INITIALIZED", "SUCCESS", "SUCCESS"]


def test_calls_after_the_end_of_python_are_refused(run):
    program = r"""
    #include <dlfcn.h>
    int main(void)
    {
        int (*ensure)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
        int (*finalize)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_FinalizeEx");
        void (*initialize)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "Py_Initialize");
        void *p;
        need(npu_init(0));
        need(npu_malloc(&p, 64, 0));
        ensure();
        printf("%d\n", finalize());
        say(npu_free(p));
        say(npu_init(0));
        detail();
        initialize(); /* another interpreter, which has nothing of the library */
        say(npu_malloc(&p, 64, 0));
        say(npu_init(0));
        say(npu_shutdown());
    }
    """
    assert run(program) == [
        "0",
        "NOT_INITIALIZED",
        "NOT_INITIALIZED",
        "npu_init: the Python that the library ran in has ended; it does not start again in this process",
        *["NOT_INITIALIZED"] * 3,
    ]


def test_destructor_behind_the_end_of_the_hosts_python_is_refused(cache, flags, tmp_path):
    (tmp_path / "plugin.c").write_text(
        r"""
        #include <npu.h>
        #include <stdio.h>
        int start(void) { return npu_init(0); }
        __attribute__((destructor)) static void stop(void) { puts(npu_get_error_name(npu_shutdown())); }
        """
    )
    plugin = tmp_path / "plugin.so"
    subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "plugin.c", *flags, "-o", plugin], check=True)
    code = f"import ctypes; print(ctypes.CDLL({str(plugin)!r}).start(), flush=True)"
    run = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "0\nNPU_ERROR_NOT_INITIALIZED\n", "")


def test_missing_package_is_named_by_init(build, flags, cache, tmp_path):
    data = next(cache.glob("libnpu/*/libnpu.so")).read_bytes()
    assert data.count(b"'numpy'") == 1
    copy = tmp_path / "libnpu.so"
    copy.write_bytes(data.replace(b"'numpy'", b"'numpx'"))
    program = build("int main(void) { say(npu_init(0)); detail(); }", "missing")
    run = subprocess.run([program], env={"LD_PRELOAD": str(copy)}, capture_output=True, text=True, check=False)
    assert run.stdout.splitlines() == [
        "NOT_INITIALIZED",
        "npu_init: the library's Python part does not start: ModuleNotFoundError: the Python package numpx is not installed",
    ]
    assert run.stderr == ""


def test_last_error_belongs_to_a_thread(run):
    program = r"""
    #include <pthread.h>
    static void *other(void *unused)
    {
        say(npu_get_last_error());
        say(npu_set_device(7));
        return NULL;
    }
    int main(void)
    {
        pthread_t thread;
        need(npu_init(0));
        say(npu_get_device_count(NULL));
        pthread_create(&thread, NULL, other, NULL);
        pthread_join(thread, NULL);
        say(npu_peek_last_error());
        say(npu_get_last_error());
        say(npu_get_last_error());
    }
    """
    assert run(program) == ["NULL_POINTER", "SUCCESS", "INVALID_VALUE", "NULL_POINTER", "NULL_POINTER", "SUCCESS"]


def test_many_threads_may_start_the_library_at_once(run):
    program = r"""
    #include <pthread.h>
    static void *work(void *unused)
    {
        uint32_t count = 0;
        need(npu_init(0));
        for (int i = 0; i < 200; i++)
            need(npu_get_device_count(&count));
        need(npu_shutdown());
        return NULL;
    }
    int main(void)
    {
        pthread_t threads[8];
        for (int i = 0; i < 8; i++)
            pthread_create(&threads[i], NULL, work, NULL);
        for (int i = 0; i < 8; i++)
            pthread_join(threads[i], NULL);
        say(npu_get_device(NULL));
    }
    """
    assert run(program) == ["NOT_INITIALIZED"]


def test_process_may_end_without_shutdown(run):
    program = r"""
    int main(int argc, char **argv)
    {
        need(npu_init(0));
        need(npu_set_device(0));
        exit(0);
    }
    """
    assert run(program) == []


def test_process_may_end_while_threads_are_inside(run):
    program = r"""
    #include <pthread.h>
    #include <semaphore.h>
    static sem_t calls;
    static void *work(void *unused)
    {
        void *p;
        for (;; sem_post(&calls))
            if (npu_malloc(&p, 4096, 0) == NPU_SUCCESS)
                npu_free(p);
        return NULL;
    }
    int main(void)
    {
        pthread_t threads[3];
        need(npu_init(0));
        need(npu_set_device(0));
        sem_init(&calls, 0, 0);
        for (int i = 0; i < 3; i++)
            pthread_create(&threads[i], NULL, work, NULL);
        for (int i = 0; i < 100; i++)
            sem_wait(&calls);
        exit(0);
    }
    """
    assert run(program) == []


def test_interrupt_ends_the_program_as_usual(build):
    program = build(
        r"""
    #include <signal.h>
    int main(void)
    {
        need(npu_init(0));
        need(npu_set_device(0));
        raise(SIGINT);
        return 0;
    }
    """
    )
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-2, "")


def test_library_is_a_plug_in_with_local_symbols(cache, flags, tmp_path):
    source = tmp_path / "plugin.c"
    source.write_text(
        r"""
        #include <dlfcn.h>
        int main(int argc, char **argv)
        {
            void *library = dlopen(argv[1], RTLD_LAZY | RTLD_LOCAL);
            int (*init)(unsigned) = (int (*)(unsigned))dlsym(library, "npu_init");
            int (*set_device)(unsigned) = (int (*)(unsigned))dlsym(library, "npu_set_device");
            return -init(0) - set_device(0);
        }
        """
    )
    subprocess.run(["gcc", source, "-o", tmp_path / "plugin", "-ldl"], check=True)
    subprocess.run([tmp_path / "plugin", next(cache.glob("libnpu/*/libnpu.so"))], check=True, env={})


def test_library_loads_into_a_running_python(cache, flags):
    library = next(cache.glob("libnpu/*/libnpu.so"))
    code = f"""
import ctypes
library = ctypes.CDLL({str(library)!r})
count = ctypes.c_uint32()
print(library.npu_init(0), library.npu_get_device_count(ctypes.byref(count)), count.value)
"""
    run = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("0 0 1\n", "")


@pytest.mark.slow
def test_archive_serves_where_there_is_no_shared_libpython(monkeypatch, tmp_path, hello):
    archives = [path for path in build_module.python_libraries() if path.suffix == ".a"]
    if not archives:
        pytest.skip("this Python brings no libpython archive")
    monkeypatch.setattr(build_module, "python_libraries", lambda: archives)
    try:
        build_module.compile_library(tmp_path)
    except build_module.BuildError as error:
        if "position-independent" not in str(error):  # something else is wrong
            raise
        pytest.skip(f"this Python's archive is not position-independent: {error}")
    assert output(hello, {"LD_PRELOAD": str(tmp_path / "libnpu.so")}) == (0, "1\n", "")
