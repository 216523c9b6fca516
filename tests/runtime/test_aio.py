"""asyncio on virtual time: tasks wait for streams, events and jobs."""

import asyncio
import threading

import numpy as np
import pytest
from npu_abi import C

import libnpu
from libnpu.errors import NpuError


def operands(memory, out=0):
    return memory.at(0, 4096), memory.at(4096, 4096), memory.at(8192 + 4096 * out, 4096)


def test_a_task_waits_and_others_enqueue_meanwhile(device, context, add, memory):
    one, two = context.create_stream(), context.create_stream()
    seen = []

    async def work(name, stream, out):
        seen.append(f"{name} enqueues")
        job = add.launch(stream, *operands(memory, out), 1024, grid=1)
        await job
        assert job.done
        assert device.now_ps >= job.end_ps
        seen.append(f"{name} goes on")

    async def main():
        await asyncio.gather(work("a", one, 0), work("b", two, 1))

    asyncio.run(main())
    assert seen == ["a enqueues", "b enqueues", "a goes on", "b goes on"]
    assert memory.read(np.float32)[2048] == memory.read(np.float32)[3072] == 2.0


def test_tasks_go_on_in_the_order_of_completion_at_its_time(device, context, add):
    memory = context.alloc(1 << 20)
    streams = [context.create_stream() for _ in range(3)]
    counts = (1 << 18, 4, 1 << 15)
    seen = []

    async def work(number):
        job = add.launch(streams[number], memory, memory, memory, counts[number], grid=1)
        await streams[number]
        seen.append((number, job.end_ps, device.now_ps))

    async def main():
        await asyncio.gather(*(work(number) for number in range(3)))

    asyncio.run(main())
    assert [number for number, _, _ in seen] == [1, 2, 0]
    assert [end for _, end, _ in seen] == sorted(end for _, end, _ in seen)
    assert all(0 < now - end < 10_000_000 for _, end, now in seen)  # the interrupt and the call, no more
    assert seen[0][2] < seen[2][1]  # the first went on before the last had ended


def pipeline():
    """Three buffers, two streams, six pieces: fill in one stream, add in the other. Returns times and the trace."""
    with libnpu.open(trace=True) as device:
        context, add = device.primary, device.kernel("add")
        load, run = context.create_stream(), context.create_stream()
        buffers = [device.alloc(1 << 15) for _ in range(3)]
        sums = device.alloc(1 << 15)
        sums.write(np.zeros(1 << 13, np.float32))
        loaded = [context.create_event() for _ in buffers]
        free = asyncio.Queue()
        full = asyncio.Queue()
        steps = []

        async def loader():
            for piece in range(6):
                slot = await free.get()
                load.fill(buffers[slot], 0)
                host = np.full(1 << 13, piece, np.float32)
                buffers[slot].write(host) if piece == 0 else load.copy(buffers[slot], buffers[(slot + 2) % 3])
                loaded[slot].record(load)
                await loaded[slot]
                steps.append(("loaded", piece, device.now_ps))
                await full.put((piece, slot))

        async def runner():
            for _ in range(6):
                piece, slot = await full.get()
                await add.launch(run, sums, buffers[slot], sums, 1 << 13)
                steps.append(("summed", piece, device.now_ps))
                await free.put(slot)

        async def main():
            for slot in range(3):
                free.put_nowait(slot)
            await asyncio.gather(loader(), runner())

        context.profiler.start()
        asyncio.run(main())
        operations = [(r.stream_id, r.name, r.start_ps, r.end_ps) for r in context.profiler.records]
        return steps, operations, device.trace().tobytes()


def test_a_pipeline_of_three_buffers_and_two_streams_overlaps():
    steps, operations, _ = pipeline()
    assert [piece for what, piece, _ in steps if what == "summed"] == list(range(6))
    kernels = [(start, end) for _, name, start, end in operations if name == "add"]
    fills = [(start, end) for _, name, start, end in operations if name.startswith("fill")]
    overlapping = [k for k in kernels if any(f[0] < k[1] and k[0] < f[1] for f in fills)]
    assert len(overlapping) >= 3


def test_the_pipeline_runs_the_same_way_five_times():
    first = pipeline()
    assert all(pipeline() == first for _ in range(4))


def test_errors_come_out_in_the_task_that_waits(context, blob_bytes, memory):
    stuck = context.load(blob_bytes(nbytes=64, deadlock=True, name="stuck"))
    one, two = context.create_stream(), context.create_stream()

    async def bad():
        with pytest.raises(NpuError, match="NPU_JOB_DEADLOCK") as caught:
            await stuck["stuck"].launch(one, memory.at(0, 64), memory.at(4096, 64))
        assert caught.value.result == C.NPU_ERROR_BARRIER_DEADLOCK

    async def good():
        two.fill(memory, 1)
        await two
        return "good"

    async def main():
        return await asyncio.gather(bad(), good())

    assert asyncio.run(main()) == [None, "good"]
    assert one.query()


def test_a_stream_raises_its_first_error_once(context, blob_bytes, memory):
    stuck = context.load(blob_bytes(nbytes=64, deadlock=True, name="stuck"))
    stream = context.create_stream()
    stuck["stuck"].launch(stream, memory.at(0, 64), memory.at(4096, 64))

    async def main():
        with pytest.raises(NpuError, match="stuck"):
            await stream
        await stream

    asyncio.run(main())


def test_who_waits_for_what_nothing_will_signal_is_told(context):
    stream, notify = context.create_stream(), context.create_notify()
    notify.wait(stream)

    async def main():
        with pytest.raises(NpuError, match="a notify") as caught:
            await stream
        assert caught.value.result == C.NPU_ERROR_BARRIER_DEADLOCK

    asyncio.run(main())
    notify.record(context.default_stream)
    context.synchronize()


def test_a_cancelled_wait_leaves_the_stream_usable(context, memory):
    stream = context.create_stream()

    async def wait():
        stream.fill(memory, 7)
        await stream

    async def main():
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stream.fill(memory.at(0, 4), 8)
        await stream

    asyncio.run(main())
    assert memory.read()[:5].tolist() == [8, 8, 8, 8, 7]


def test_a_loop_that_ends_with_waits_outstanding_does_not_hang(context, memory):
    stream = context.create_stream()

    async def wait():
        stream.fill(memory, 7)
        await stream

    async def main():
        _ = asyncio.create_task(wait())  # noqa: RUF006 - left alone on purpose
        await asyncio.sleep(0)

    asyncio.run(main())
    asyncio.run(main())
    stream.synchronize()


def test_a_task_that_is_always_ready_does_not_hold_the_device_up_for_ever(context, memory):
    stream = context.create_stream()
    done = []

    async def wait():
        stream.fill(memory, 7)
        await stream
        done.append(True)

    async def spin():
        while not done:
            await asyncio.sleep(0)

    async def main():
        await asyncio.gather(wait(), spin())

    asyncio.run(main())


def test_awaiting_what_is_done_or_was_never_enqueued(context, memory):
    stream, event = context.create_stream(), context.create_event()

    async def main():
        await stream
        await event  # never recorded
        job = stream.fill(memory, 1)
        event.record(stream)
        stream.synchronize()
        await job
        await event
        await stream

    asyncio.run(main())


def test_an_event_is_awaited_as_of_now(context, memory):
    stream, event = context.create_stream(), context.create_event()

    async def main():
        stream.fill(memory, 1)
        event.record(stream)
        last = stream.fill(memory, 2)
        await event
        assert not last.done
        await last

    asyncio.run(main())


def test_nothing_is_awaited_in_a_capture(context, memory):
    stream = context.create_stream()

    async def main():
        stream.capture()
        job = stream.fill(memory, 1)
        with pytest.raises(NpuError) as caught:
            await stream
        assert caught.value.result == C.NPU_ERROR_CAPTURE_UNSUPPORTED
        with pytest.raises(NpuError):
            await job
        with pytest.raises(NpuError):
            stream.end_capture()

    asyncio.run(main())


@pytest.mark.parametrize("schedule", ["eager", "lazy", "newest-first"])
def test_other_schedules(device, context, add, memory, schedule):
    device.set_schedule(schedule)
    one, two, event = context.create_stream(), context.create_stream(), context.create_event()

    async def first():
        add.launch(one, *operands(memory), 1024)
        event.record(one)
        await one

    async def second():
        two.wait_event(event)
        two.copy(memory.at(0, 4096), memory.at(8192, 4096))
        await two

    async def main():
        await asyncio.gather(first(), second())

    asyncio.run(main())
    assert memory.read(np.float32)[0] == 2.0


def test_two_devices_in_one_loop():
    with libnpu.open() as one, libnpu.open() as two:

        async def work(device):
            buffer, stream = device.alloc(4096), device.create_stream()
            stream.fill(buffer, 5)
            await stream
            return int(buffer.read()[0])

        async def main():
            return await asyncio.gather(work(one), work(two), work(one))

        assert asyncio.run(main()) == [5, 5, 5]


def test_loops_in_two_threads(device, context, add):
    memory = context.alloc(1 << 16)
    memory.write(np.ones(1 << 14, np.float32))
    ends = {}

    async def work(rank):
        stream = context.create_stream()
        for _ in range(3):
            await add.launch(stream, *operands(memory, rank), 1024)
        ends[rank] = device.now_ps

    with device.team(2) as team:

        def run(rank):
            team.enter(rank)
            asyncio.run(work(rank))
            team.leave()

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sorted(ends) == [0, 1]
    assert device.reproducible
