"""Users share the device: what one may have, and what it leaves to the others."""

from __future__ import annotations

import errno

import pytest
from npu_abi import C
from npu_driver.params import parse
from npu_driver.process import Process as Caller

MALLORY, ALICE, ROOT = Caller(10, 1234, "mallory", False), Caller(11, 1235, "alice", False), Caller(12, 0, "root", True)


@pytest.fixture
def as_user(kernel, process_type):
    """as_user(caller, process=None): who calls from now on; opens the node unless `process` has."""

    def become(caller, process=None):
        kernel.current = caller
        return process or process_type(kernel)

    return become


def ring(process, handle):
    """Give a queue more a job: what its submit returns."""
    ret = process.submit(process.queue(), handle)
    if ret == 0:
        assert process.wait(handle)[1].job_status == C.NPU_JOB_SUCCESS
    return ret


def test_a_user_has_half_of_the_contexts(kernel, as_user):
    mine = [as_user(MALLORY) for _ in range(C.NPU_USER_CONTEXTS)]
    assert min(process.fd for process in mine) > 0
    assert as_user(MALLORY).fd == -errno.EMFILE
    assert kernel.log[-1].endswith("user 1234 has 32 contexts; NPU_USER_CONTEXTS is 32")
    assert len(kernel.contexts) == C.NPU_USER_CONTEXTS
    assert as_user(ALICE).fd > 0
    assert as_user(MALLORY, mine[3]).call(C.NPU_SYS_CLOSE)[0] == 0
    assert as_user(MALLORY).fd > 0


def test_a_user_has_half_of_the_doorbells_in_all_contexts_together(kernel, as_user, nop):
    one, two = as_user(MALLORY), as_user(MALLORY)
    first, second = one.commands(nop), two.commands(nop)
    assert [ring(one, first) for _ in range(100)] == [0] * 100
    assert [ring(two, second) for _ in range(28)] == [0] * 27 + [-errno.EBUSY]
    assert kernel.log[-1].endswith("user 1234 has 127 doorbells; NPU_USER_DOORBELLS is 127")
    assert len(kernel.doorbells) == C.NPU_USER_DOORBELLS
    segment = second.to_bytes(4, "little")
    assert two.call(C.NPU_IOCTL_SUBMIT, "npu_submit", [segment], buffers_ptr=1, buffer_count=1)[0] == -errno.EBUSY
    alice = as_user(ALICE)
    assert ring(alice, alice.commands(nop)) == 0
    as_user(MALLORY, one)
    assert one.call(C.NPU_IOCTL_CMDQ_DESTROY, "npu_cmdq_destroy", cmdq_id=2)[0] == 0
    assert ring(two, second) == 0


def test_a_privileged_user_has_all(kernel, as_user):
    assert min(as_user(ROOT).fd for _ in range(64)) > 0
    assert as_user(ROOT).fd == -errno.EMFILE
    assert kernel.log[-1].endswith("all 64 contexts are in use")


@pytest.mark.parametrize("caller", [MALLORY, ROOT])
def test_the_parameters_count_for_every_user(kernel, as_user, nop, caller):
    kernel.load(parse("max_contexts=40 max_doorbells=3"))
    process, *_ = [as_user(caller) for _ in range(40)]
    assert as_user(caller).fd == -errno.EMFILE
    assert kernel.log[-1].endswith(f"user {caller.uid} has 40 contexts; max_contexts is 40")
    handle = process.commands(nop)
    assert [ring(process, handle) for _ in range(4)] == [0] * 3 + [-errno.EBUSY]
    assert kernel.log[-1].endswith(f"user {caller.uid} has 3 doorbells; max_doorbells is 3")
