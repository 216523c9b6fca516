"""npu check --guard: loads and stores of C programs in memory that the device uses are seen, with their lines."""

import json
import subprocess

import pytest

from libnpu.tools.replays import watched

PROGRAM = r"""
#include <npu.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SIZE = 8192 };
static unsigned char *in, *out;
static void *memory;
static npu_stream_t one, two;
static int fixed;

static void wait_for(npu_stream_t stream) { if (fixed) npu_synchronize_stream(stream); }

static void store_to_the_source(void)
{
    npu_memcpy_async(memory, SIZE, in, SIZE, NPU_MEMCPY_DEFAULT, one); /* <- source first */
    wait_for(one);
    in[4096] = 2; /* <- source second */
    npu_synchronize_stream(one);
}

static void load_in_a_library(void)
{
    char text[64];
    npu_memset_async(memory, SIZE, 1, SIZE, one);
    npu_memcpy_async(out, SIZE, memory, SIZE, NPU_MEMCPY_DEFAULT, one); /* <- libc first */
    wait_for(one);
    memcpy(text, out + 64, (size_t)(31 + fixed)); /* <- libc second */
    npu_synchronize_stream(one);
    printf("%d %d\n", text[0], out[SIZE - 1]);
}

static void look(void *pointer)
{
    volatile unsigned char *bytes = pointer;
    (void)bytes[5]; /* <- function second */
}

static void load_in_a_host_function(void)
{
    npu_memset_async(out, SIZE, 1, SIZE, one); /* <- function first */
    npu_stream_add_host_function(fixed ? one : two, look, out);
    npu_synchronize_stream(one);
    npu_synchronize_stream(two);
}

static void registered(void)
{
    unsigned char *pages = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    npu_host_register(pages, SIZE, 0);
    npu_memset_async(pages, SIZE, 1, SIZE, one); /* <- registered first */
    wait_for(one);
    pages[8000] = 1; /* <- registered second */
    npu_synchronize_stream(one);
    npu_host_unregister(pages);
    pages[1] = 1;
}

static void mapped(void)
{
    unsigned char *bytes;
    npu_map((void **)&bytes, memory, SIZE, NPU_BIDIRECTIONAL);
    npu_memset_async(memory, SIZE, 1, 4096, one); /* <- mapped first */
    bytes[5000] = 1;
    wait_for(one);
    bytes[100] = 1; /* <- mapped second */
    npu_synchronize_stream(one);
    npu_unmap(bytes);
}

static void handler(int number) { (void)number; _exit(7); }

static void own_handler(void)
{
    signal(SIGSEGV, handler);
    npu_memcpy_async(memory, SIZE, in, SIZE, NPU_MEMCPY_DEFAULT, one); /* <- handler first */
    wait_for(one);
    in[0] = 9; /* <- handler second */
    npu_synchronize_stream(one);
}

static void handler_that_comes_later(void)
{
    npu_memcpy_async(memory, SIZE, in, SIZE, NPU_MEMCPY_DEFAULT, one);
    npu_synchronize_stream(one);
    own_handler();
}

static void annotated(void)
{
    unsigned char *bytes;
    npu_memcpy_async(memory, SIZE, in, SIZE, NPU_MEMCPY_DEFAULT, one); /* <- annotated first */
    wait_for(one);
    npu_annotate_host_write(in + 64, 128); /* <- annotated second */
    memset(in + 64, 1, 128);
    npu_synchronize_stream(one);
    npu_map((void **)&bytes, (char *)memory + 4096, 4096, NPU_FROM_DEVICE);
    npu_memset_async(memory, SIZE, 3, SIZE, one); /* <- mapping first */
    wait_for(one);
    npu_annotate_host_read(bytes + 8, 8); /* <- mapping second */
    npu_synchronize_stream(one);
    npu_unmap(bytes);
}

/* What is right though pages of it are in use. */
static void neighbours(void)
{
    npu_memcpy_async(out, 6000, in, 6000, NPU_MEMCPY_DEFAULT, one);
    out[6000] = out[7000];
    npu_memset_async(memory, SIZE, 1, SIZE, one);
    npu_memcpy_async(in + 1000, 1000, memory, 1000, NPU_MEMCPY_DEFAULT, one);
    in[7000] = in[6000];
    npu_mem_get_info((uint64_t *)(out + 6008), (uint64_t *)(out + 6016)); /* the library writes there for the program */
    printf("%d\n", *(uint64_t *)(out + 6016) > 0);
    npu_synchronize_stream(one);
}

int main(int argc, char **argv)
{
    const struct { const char *name; void (*run)(void); } all[] = {
        {"source", store_to_the_source}, {"libc", load_in_a_library}, {"function", load_in_a_host_function},
        {"registered", registered}, {"mapped", mapped}, {"handler", own_handler}, {"later", handler_that_comes_later},
        {"neighbours", neighbours}, {"annotated", annotated}};
    fixed = !strcmp(argv[argc - 1], "fixed");
    npu_init(0);
    npu_create_stream(&one);
    npu_create_stream(&two);
    npu_malloc_host((void **)&in, SIZE, 0);
    npu_malloc_host((void **)&out, SIZE, 0);
    npu_malloc(&memory, SIZE, 0);
    memset(in, 1, SIZE);
    memset(out, 1, SIZE);
    npu_memset_async(memory, SIZE, 1, SIZE, one);
    npu_synchronize_stream(one);
    for (int n = 1; n < argc; n++)
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            if (!strcmp(all[i].name, argv[n]))
                all[i].run();
    npu_shutdown();
    return 0;
}
"""
RULES = {"source": "HD-WAR", "libc": "HD-RAW", "function": "XS-RAW", "registered": "HD-WAW", "mapped": "HD-WAW"}
GUARDED = "the host's access, which a guarded page has stopped"


@pytest.fixture(scope="module")
def program(compile_c, tmp_path_factory):
    return compile_c(tmp_path_factory.mktemp("guard"), "program", PROGRAM)


def marked(text):
    """Return the line that has a mark."""
    return next(line for line, content in enumerate(PROGRAM.splitlines(), 1) if f"<- {text} */" in content)


def found(program, *arguments, guard=True):
    """Return [(rule, lines of the acts, evidence)]; the program ends well."""
    status, records = watched([program, *arguments], stdout=subprocess.DEVNULL, options={"guard": guard})
    assert status == 0
    lines = [[int(site.rpartition(":")[2] or 0) for act in r["acts"] for site in [act["site"]]] for r in records]
    return [(r["rule"], at, r["evidence"]) for r, at in zip(records, lines, strict=True)]


def at(name, rule):
    return rule, [marked(f"{name} first"), marked(f"{name} second")], GUARDED


def test_accesses_to_memory_in_use_are_reported_at_their_lines_and_what_is_right_is_not(program):
    assert sorted(found(program, *RULES, "neighbours")) == sorted(at(*each) for each in RULES.items())
    assert found(program, *RULES, "neighbours", "annotated", "later", "fixed") == []


def test_a_program_with_a_handler_of_its_own_for_faults_is_not_disturbed(program):
    assert found(program, "handler") == [at("handler", "HD-WAR")]
    (report,) = found(program, "later")
    assert report[0] == "HD-WAR"
    assert report[1] == [marked("handler first"), 0]
    assert "bytes when the copy was enqueued" in report[2]


def test_without_guard_the_evidence_is_the_bytes_and_accesses_that_the_program_annotates(program):
    (rule, _, evidence), *annotated = found(program, "source", "annotated", guard=False)
    assert (rule, evidence.startswith("the source's bytes")) == ("HD-WAR", True)
    marks = [[marked(f"{name} first"), marked(f"{name} second")] for name in ("annotated", "mapping")]
    evidence = "the host's access, by an annotation of the program"
    assert annotated == [("HD-WAR", marks[0], evidence), ("HD-RAW", marks[1], evidence)]


def test_the_option(npu, program, tmp_path):
    report = tmp_path / "report"
    assert npu("check", "--guard", "--json", "--witnesses", "0", "-o", report, "--", program, "source")[0] == 1
    (record,) = json.loads(report.read_text())
    assert (record["evidence"], record["bytes"]) == (GUARDED, [4096, 4097])
