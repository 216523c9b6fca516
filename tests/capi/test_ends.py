"""The library and the process may end at any point: nothing hangs, nothing is printed, the program's memory is its own again."""

import subprocess

import pytest

# work(name) begins what is in flight when the end comes.
SETUP = r"""
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
enum { SIZE = 1 << 22 };
static sem_t never, running;
static char *p;
static npu_stream_t s, t;
static void block(void *unused) { sem_post(&running); sem_wait(&never); (void)unused; }
static void leave(void *unused) { exit(0); (void)unused; }
static void *wait_for_stream(void *unused)
{
    sem_post(&running);
    npu_synchronize_stream(s);
    return unused;
}
static void work(const char *what, char **argv)
{
    npu_notify_t n;
    npu_blob_t blob;
    npu_kernel_t k;
    pthread_t thread;
    need(npu_init(0));
    need(npu_malloc((void **)&p, SIZE, 0));
    need(npu_create_stream(&s));
    need(npu_create_stream(&t));
    if (strcmp(what, "copies") == 0) {
        for (int i = 0; i < 20; i++)
            need(npu_memset_async(p, SIZE, i, SIZE, i % 2 ? s : t));
    } else if (strcmp(what, "wait") == 0) {
        need(npu_create_notify(&n, 0));
        need(npu_wait_notify(n, s));
        need(npu_memset_async(p, SIZE, 1, SIZE, s));
    } else if (strcmp(what, "stuck") == 0) {
        npu_arg_t args[] = {NPU_BUFFER(p), NPU_BUFFER(p + 64)};
        need(npu_load_blob(&blob, argv[2]));
        need(npu_get_kernel(&k, blob, NULL));
        need(npu_launch_kernel_async(k, args, 2, s));
    } else if (strcmp(what, "host function") == 0) {
        need(npu_stream_add_host_function(s, block, NULL));
        while (npu_query_stream(s) == NPU_NOT_READY && sem_trywait(&running) != 0)
            usleep(1000);
    } else if (strcmp(what, "exit in a host function") == 0) {
        need(npu_stream_add_host_function(s, leave, NULL));
        need(npu_synchronize_stream(s));
    } else if (strcmp(what, "blocked thread") == 0) {
        need(npu_stream_add_host_function(s, block, NULL));
        pthread_create(&thread, NULL, wait_for_stream, NULL);
        sem_wait(&running);
        usleep(20000);
    }
}
"""
STATES = ["copies", "wait", "stuck", "host function", "blocked thread"]


@pytest.fixture
def end(build, blobs):
    """end(body, what) -> lines: runs `body` with what is in flight; exit status 0 and no output on standard error, in time."""

    def end(body: str, what: str) -> list[str]:
        source = f"{SETUP}int main(int argc, char **argv)\n{{\nwork(argv[1], argv);\n{body}}}\n"
        command = [build(source), what, str(blobs / "stuck.blob")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return end


@pytest.mark.parametrize("what", STATES)
def test_shutdown_with_work_in_flight(end, what):
    body = r"""
    need(npu_shutdown());
    say(npu_synchronize_stream(s));
    need(npu_init(0));
    say(npu_synchronize_stream(s));
    say(npu_malloc((void **)&p, 64, 0));
    say(npu_memset(p, 64, 1, 64));
    """
    assert end(body, what) == ["NOT_INITIALIZED", "STALE_HANDLE", "SUCCESS", "SUCCESS"]


@pytest.mark.parametrize("what", STATES)
def test_reset_with_work_in_flight(end, what):
    body = r"""
    need(npu_reset_device());
    say(npu_synchronize_stream(s));
    say(npu_malloc((void **)&p, 64, 0));
    say(npu_memset(p, 64, 1, 64));
    """
    assert end(body, what) == ["STALE_HANDLE", "SUCCESS", "SUCCESS"]


@pytest.mark.parametrize("what", [*STATES, "exit in a host function"])
def test_exit_with_work_in_flight(end, what):
    assert end("exit(0);", what) == []


def test_registered_memory_and_mappings_at_the_end(end):
    body = r"""
    char *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *mapped, *pinned;
    memset(memory, 1, 8192);
    need(npu_host_register(memory, 8192, 0));
    need(npu_map((void **)&mapped, p, 64, NPU_BIDIRECTIONAL));
    need(npu_malloc_host((void **)&pinned, SIZE, 0));
    need(npu_memset_async(memory, 4096, 2, 4096, s));
    need(npu_synchronize_stream(s));
    for (int i = 0; i < 9; i++)
        need(npu_memcpy_async(pinned, SIZE, p, SIZE, NPU_MEMCPY_DEFAULT, t));
    need(npu_memcpy_async(p, 4096, memory, 4096, NPU_MEMCPY_DEFAULT, t));
    need(npu_shutdown());
    printf("%d %d\n", memory[4095], memory[4096]);
    memory[0] = 3;
    munmap(memory, 8192);
    """
    assert end(body, "nothing") == ["2 1"]


@pytest.mark.parametrize("what", ["host function", "blocked thread"])
def test_interrupt_ends_the_process_as_usual(build, what):
    source = f"{SETUP}int main(int argc, char **argv)\n{{\nwork(argv[1], argv);\nraise(SIGINT);\n}}\n"
    done = subprocess.run([build(source), what], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-2, "", "")


def test_fork_while_threads_are_inside_refuses_the_child(end):
    body = r"""
    npu_event_t e;
    if (fork() == 0) {
        alarm(10);
        say(npu_synchronize_stream(s));
        say(npu_create_event(&e, 0));
        say(npu_shutdown());
        exit(0);
    }
    int status;
    pid_t wait(int *);
    wait(&status);
    printf("%d\n", status);
    """
    assert end(body, "blocked thread") == ["NOT_PERMITTED"] * 3 + ["0"]


def test_memory_and_descriptors_are_given_back_at_the_last_shutdown(run):
    body = r"""
#include <dirent.h>
static int descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}
static int mappings(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;
    while (fgets(line, sizeof line, file))
        count += strstr(line, "npu-dram") != NULL;
    fclose(file);
    return count;
}
int main(void)
{
    int before = 0;
    for (int i = 0; i < 4; i++) {
        npu_context_t context;
        npu_stream_t stream;
        void *p;
        need(npu_init(0));
        need(npu_create_context(&context, 0));
        need(npu_create_stream(&stream));
        need(npu_malloc(&p, 1 << 20, 0));
        need(npu_memset_async(p, 1 << 20, 1, 1 << 20, stream));
        need(npu_shutdown());
        before = before ? before : descriptors();
        printf("%d %d\n", mappings(), descriptors() - before);
    }
}
"""
    assert run(body) == ["0 0"] * 4


def test_a_host_function_that_ends_its_thread_has_failed(run):
    body = r"""
#include <pthread.h>
#include <unistd.h>
static int count;
static void leave(void *unused) { pthread_exit(unused); }
static void cancel(void *unused) { pthread_cancel(pthread_self()); pause(); (void)unused; }
static void add(void *unused) { count++; (void)unused; }
int main(void)
{
    npu_stream_t one, two;
    uint32_t reproducible;
    need(npu_init(0));
    need(npu_create_stream(&one));
    need(npu_create_stream(&two));
    for (int i = 0; i < 4; i++) {
        need(npu_stream_add_host_function(one, i % 2 ? cancel : leave, NULL));
        need(npu_stream_add_host_function(two, add, NULL));
        need(npu_stream_add_host_function(one, add, NULL));
        say(npu_synchronize_stream(one));
        need(npu_synchronize_device());
    }
    need(npu_is_reproducible(&reproducible));
    printf("%d %u\n", count, reproducible);
    need(npu_stream_add_host_function(one, leave, NULL));
    need(npu_shutdown());
    need(npu_init(0));
    need(npu_create_stream(&one));
    need(npu_stream_add_host_function(one, add, NULL));
    need(npu_synchronize_stream(one));
    printf("%d\n", count);
}
"""
    assert run(body) == ["HOST_FUNCTION"] * 4 + ["8 1", "9"]


@pytest.mark.parametrize("moment_us", [20, 170, 333, 490, 805, 1777])
def test_exit_out_of_a_handler_ends_the_process_whatever_the_call_was_at(build, moment_us):
    program = r"""
    #include <signal.h>
    #include <sys/time.h>
    static void leave(int signal) { (void)signal; exit(9); }
    int main(int argc, char **argv)
    {
        struct itimerval timer = {.it_value.tv_usec = 20000 + atoi(argv[1])};
        unsigned char *p;
        need(npu_init(0));
        need(npu_malloc((void **)&p, 4096, 0));
        signal(SIGALRM, leave);
        setitimer(ITIMER_REAL, &timer, NULL);
        for (;;) {
            need(npu_memset_async(p, 4096, 1, 4096, NULL));
            need(npu_synchronize_stream(NULL));
        }
    }
    """
    done = subprocess.run([build(program), str(moment_us)], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (9, "", "")


def test_exit_out_of_a_handler_that_has_interrupted_free(build, blobs):
    program = r"""
    #include <pthread.h>
    #include <signal.h>
    static pthread_mutex_t arena = PTHREAD_MUTEX_INITIALIZER; /* as malloc's own */
    static int armed;
    void __libc_free(void *);
    void free(void *memory)
    {
        pthread_mutex_lock(&arena);
        if (armed && !--armed)
            raise(SIGUSR1);
        __libc_free(memory);
        pthread_mutex_unlock(&arena);
    }
    static void leave(int signal) { printf("left\n"); exit(9); (void)signal; }
    int main(int argc, char **argv)
    {
        need(npu_init(0));
        signal(SIGUSR1, leave);
        armed = atoi(argv[1]);
        for (;;) {
            npu_blob_t blob;
            need(npu_load_blob(&blob, argv[2]));
            need(npu_unload(blob));
        }
    }
    """
    done = subprocess.run(
        [build(program), "3", str(blobs / "stuck.blob")], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (9, "left\n", "")


def test_a_handler_cannot_call_while_it_has_interrupted_a_call(run):
    body = r"""
    #include <signal.h>
    #include <sys/time.h>
    static npu_stream_t s;
    static volatile int other, refused;
    static void ask(int signal)
    {
        npu_result_t result = npu_query_stream(s);
        refused += result == NPU_ERROR_NOT_PERMITTED;
        other += result != NPU_ERROR_NOT_PERMITTED && result != NPU_SUCCESS && result != NPU_NOT_READY;
        (void)signal;
    }
    int main(void)
    {
        struct itimerval timer = {{0, 500}, {0, 500}}, never = {0};
        unsigned char *p;
        need(npu_init(0));
        need(npu_create_stream(&s));
        need(npu_malloc((void **)&p, 4096, 0));
        signal(SIGALRM, ask);
        setitimer(ITIMER_REAL, &timer, NULL);
        while (refused < 20) {
            need(npu_memset_async(p, 4096, 1, 4096, s));
            need(npu_synchronize_stream(s));
        }
        setitimer(ITIMER_REAL, &never, NULL);
        printf("%d\n", other);
        say(npu_shutdown());
    }
    """
    assert run(body) == ["0", "SUCCESS"]


def test_exit_handlers_that_call_behind_an_exit_out_of_a_handler(build):
    program = r"""
    #include <signal.h>
    #include <sys/time.h>
    static npu_stream_t s;
    static void leave(int signal) { (void)signal; exit(9); }
    static void clean_up(void) { say(npu_destroy_stream(s)); say(npu_shutdown()); }
    int main(void)
    {
        struct itimerval timer = {.it_value.tv_usec = 20000};
        unsigned char *p;
        need(npu_init(0));
        need(npu_create_stream(&s));
        need(npu_malloc((void **)&p, 1 << 20, 0));
        atexit(clean_up);
        signal(SIGALRM, leave);
        setitimer(ITIMER_REAL, &timer, NULL);
        for (;;)
            npu_memset(p, 1 << 20, 1, 1 << 20);
    }
    """
    done = subprocess.run([build(program)], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (9, "NOT_PERMITTED\nNOT_PERMITTED\n", "")


def test_a_program_that_closes_descriptors_which_it_does_not_know(run):
    body = r"""
    #include <unistd.h>
    int main(void)
    {
        char *p;
        need(npu_init(0));
        need(npu_malloc_host((void **)&p, 64, 0));
        for (int i = 3; i < 200; i++)
            close(i);
        p[63] = 1;
        say(npu_shutdown());
    }
    """
    assert run(body) == ["SUCCESS"]
