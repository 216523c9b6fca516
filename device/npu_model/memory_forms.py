"""Closed forms of the memory path: how long a transfer keeps each part of a memory system busy, and what it needs at least alone.

Nothing here is simulated: rows, channels and banks are counted from the addresses, and each costs what the memory system's timings say. What
memory.h does cycle by cycle is the measure; docs/memory.md has how far off this is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm
from operator import mul
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from npu_model.memory import MemorySystem
from npu_model.memory_cycles import Background
from npu_model.memory_runs import NO_RUNS, Runs

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
KEPT_COSTS = 1 << 13  # chosen: more than a large model has
KEPT_RUNS = 1 << 8  # of a transfer whose cost is kept (chosen): 16 bytes each


@dataclass(frozen=True, slots=True)
class Cost:
    """What one transfer costs. Picoseconds are of the whole transfer, as if there were no refresh."""

    client: int
    moved: int  # bytes of whole accesses
    least_ps: float  # what it needs alone, at any pace
    window_ps: float  # of which for its requests, as many outstanding as it may have
    busy_ps: tuple[float, ...]  # of each part: links, then channels
    held: float  # bytes that are under way when it has all the requests outstanding that it may
    trip_ns: float  # of one request
    write_share: float  # of the bytes
    queued_ps: float = 0.0  # that channels still write when the transfer is over
    banks: tuple[float, ...] = ()  # share of the accesses in each bank, of whichever channel
    pages: float = 0.0  # that are opened for an access
    is_copy: bool = False
    _hash: int = field(init=False, compare=False, repr=False)  # of a hundred numbers or more

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.client, self.moved, self.least_ps, self.busy_ps, self.banks)))

    def __hash__(self) -> int:
        return self._hash


class ClosedForms:
    """The parts of one memory system: directions of links that clients share, then channels.

    `others[part]` is the other direction of a link that moves one flit a cycle both together, itself where there is none.
    """

    def __init__(self, system: MemorySystem, bytes_per_second: int | None = None) -> None:
        """With `bytes_per_second` a long transfer of the DMA ports alone gets that, and all else is faster or slower by as much."""
        dram, noc = system.dram, system.noc
        self.system = system
        own = system.bytes_per_second("npu_dma")
        self.scale = own / (bytes_per_second or own)
        self._costs: dict[tuple[int, int, bytes | tuple[int, ...]], Cost] = {}
        self._period = _period(system)
        self._split = system.split_bytes_per_second
        self._cycle_ps = 1e12 / noc.clock_hz
        self._access_ps = 1e12 * dram.burst_transfers * dram.chained_bursts / dram.transfers_per_second
        self._access_flits = -(-dram.access_bytes // noc.flit_bytes)
        self._trip_cycles = max(noc.hop_cycles + noc.credit_return_cycles, noc.credits)
        self._users, self.others = _shared_links(system)
        self._most_ps = dram.queue_depth * self._access_ps
        self._buffers = dram.queue_depth * dram.access_bytes * dram.channels
        self.links = len(self._users)
        self.ways = [next(iter(users))[1] for users in self._users]  # 0: there, 1: back
        self.parts = self.links + dram.channels
        self.others += range(self.links, self.parts)
        backward = [part for part in range(self.links) if self.ways[part]]
        self.order = [part for part in range(self.parts) if part not in backward] + backward  # as a read passes them

    def cost(self, client: int, reads: Runs, writes: Runs) -> Cost:
        """Return the cost of a transfer of `client` that reads and writes runs; those that lie alike in the banks have the same."""
        if len(reads) + len(writes) > KEPT_RUNS:
            return self._cost(client, reads, writes)
        key: tuple[int, int, bytes | tuple[int, ...]]
        if len(reads) + len(writes) == 1:
            start, size = (reads if len(reads) else writes)[0].tolist()
            key = client, len(reads), (start % self._period, size)
        else:
            runs = np.concatenate((reads, writes))
            runs[:, 0] -= int(runs[0, 0]) // self._period * self._period
            key = client, len(reads), runs.tobytes()
        found = self._costs.get(key)
        if found is None:
            if len(self._costs) >= KEPT_COSTS:
                self._costs.clear()
            found = self._costs[key] = self._cost(client, reads, writes)
        return found

    def _cost(self, client: int, reads: Runs, writes: Runs) -> Cost:
        sides = [self._side(client, runs, write) for write, runs in ((False, reads), (True, writes)) if len(runs)]
        channels = sum((side.channel_ps for side in sides), np.zeros(self.system.dram.channels))
        own = self.system.clients[client]
        copy_ps = pieces = 0.0
        if len(sides) > 1:
            # Piece by piece is read, as fast as the controller splits requests, and written, as fast as a link carries it.
            side_ps = [
                max(flits * self._cycle_ps, float(side.channel_ps.max()))
                for flits, side in zip((sides[0].accesses, sides[1].there), sides, strict=True)
            ]
            piece, least_accesses = own.requests * own.request_accesses, min(side.accesses for side in sides)
            pieces = least_accesses // piece
            copy_ps = sum(side_ps)
            if len(reads) == len(writes) == 1:
                turns_ps = self._turns_ps(client, reads[0].tolist(), writes[0].tolist())
                channels = channels + turns_ps
                copy_ps += turns_ps
        there = sum(side.there for side in sides)
        back = sum(side.back for side in sides)
        # Where a link moves one flit of data both ways, requests are beside it.
        written = sum(side.there for side in sides if not side.back)
        busy = [
            self._cycle_ps
            * ((there if other == part else written) * ((client, 0) in users) + back * ((client, 1) in users))
            for part, (users, other) in enumerate(zip(self._users, self.others, strict=False))  # others: channels too
        ]
        port_ps = max(there, back) * self._cycle_ps * self._trip_cycles / self.system.noc.credits
        # A copy writes the next piece when the last read of the one before is back: a link with one flit both ways waits that long.
        back_ps = pieces * (len(own.route) + 1) * self.system.noc.hop_cycles * self._cycle_ps
        links = [
            part if other == number else part + busy[other] + back_ps
            for number, (part, other) in enumerate(zip(busy, self.others, strict=False))
        ]
        queued_ps = sum(side.queued_ps for side in sides)
        least = max(
            port_ps, *links, *(side.window_ps for side in sides), max(float(channels.max()), copy_ps) - queued_ps
        )
        return Cost(
            client,
            sum(side.accesses for side in sides) * self.system.dram.access_bytes,
            least * self.scale,
            max(side.window_ps for side in sides) * self.scale,
            tuple(part * self.scale for part in (*busy, *channels.tolist())),
            min(side.held for side in sides)
            / len(sides),  # of a piece that is read or written half is left, on average
            max(side.trip_ps for side in sides) / 1000,
            sum(side.accesses for side in sides if not side.back) / sum(side.accesses for side in sides),
            queued_ps * self.scale,
            *self._banks(reads, writes),
            len(sides) > 1,
        )

    def traffic(self, traffic: Background) -> Cost:
        """Return the mean cost of one burst of background traffic."""
        system = self.system
        client, dram = system.client(traffic.client), system.dram
        own = system.clients[client]
        accesses = -(-traffic.burst_bytes // dram.access_bytes)
        run = np.array([[0, accesses * dram.access_bytes]])
        read, write = self.cost(client, run, NO_RUNS), self.cost(client, NO_RUNS, run)
        share = traffic.write_share
        busy = tuple((1 - share) * r + share * w for r, w in zip(read.busy_ps, write.busy_ps, strict=True))
        held = max(own.requests * own.request_accesses // accesses, 1) * read.moved
        links = [
            part if other == number else part + busy[other]
            for number, (part, other) in enumerate(zip(busy, self.others, strict=True))
        ]
        window = read.trip_ns * 1000 * read.moved / held
        least = max(window, *links)
        everywhere = (1 / dram.banks,) * dram.banks  # bursts go through all of them in turn
        return Cost(
            client,
            read.moved,
            least,
            window,
            busy,
            held,
            read.trip_ns,
            share,
            0.0,
            everywhere,
            dram.access_bytes / dram.page_bytes,
        )

    def waiting_ps(self, cost: Cost, bursts_per_ps: float, channels: int = 1) -> float:
        """Return how long a request of somebody else waits for bursts that come at random, on average: for the pins of the slowest of so many channels.

        A channel keeps as many waiting as its load says, and those for times that are exponential.
        """
        load, work_ps = self._load(cost, bursts_per_ps)
        if not load:
            return 0.0
        slowest = sum((1 - max(1 - load, 0) ** n) / n for n in range(1, channels + 1))
        return min(self._queueing_ps(load, work_ps) / min(load, 1) * slowest, self._most_ps)

    def waits_ps(self, costs: Sequence[Cost], rates: Sequence[float]) -> list[float]:
        """Return how long a request of each of those transfers, so many of each a picosecond, waits for the others."""
        loads = [self._load(cost, rate) for cost, rate in zip(costs, rates, strict=True)]
        load, work_ps = (sum(column) for column in zip(*loads, strict=True))
        return [self._queueing_ps(load - own, work_ps - own_ps) for own, own_ps in loads]

    def _load(self, cost: Cost, rate: float) -> tuple[float, float]:
        """Return the part of the time in which a channel is busy with transfers of that cost, and the mean of what is left of the service that a
        request finds, twice: reads are served by the block, writes until a queue that was half full of them is a quarter full, with two turns.
        """
        dram = self.system.dram
        drain_ps = dram.queue_depth / 4 * self._access_ps
        service_ps = drain_ps + 1000 * (dram.read_to_write_ns + dram.write_to_read_ns)
        load = max(cost.busy_ps[self.links :]) * rate / (1 - self.system.refresh_share)
        written = load * cost.write_share * service_ps / drain_ps
        read = load * (1 - cost.write_share)
        block_ps = min(cost.moved, dram.interleave_bytes) // dram.access_bytes * self._access_ps
        return read + written, read * block_ps + written * service_ps

    def _queueing_ps(self, load: float, work_ps: float) -> float:
        """Return the wait in the queue of one server, which is no longer than the controller's."""
        return min(work_ps / (2 * (1 - load)), self._most_ps) if load < 1 else self._most_ps

    def fastest_ps(self, cost: Cost, pace_ps: float, waiting_ps: float = 0.0) -> float:
        """Return how long a transfer takes whose accesses are spread over `pace_ps` or longer, and whose requests wait for so long, but with
        no other transfer beside it.
        """
        system = self.system
        # A copy's pace goes on while memory refreshes: it catches up as far as its buffers reach.
        whole = cost.least_ps if cost.is_copy else max(cost.least_ps, pace_ps)
        if waiting_ps and cost.trip_ns:
            whole = max(whole, cost.window_ps * (1 + waiting_ps / cost.trip_ns / 1000))
        rate = cost.moved / whole * 1e12
        stalled = system.stalled_share(rate, cost.held, cost.trip_ns, self._split > rate * self.scale)
        channel_ps = max(cost.busy_ps[self.links :]) - cost.queued_ps
        return max(whole / (1 - stalled), pace_ps, channel_ps / (1 - system.refresh_share))

    def capacities(
        self, costs: Sequence[Cost], rates: Sequence[float], held: float, others: float = 0.0
    ) -> list[float]:
        """Return the part of the time in which each part can be busy while those transfers go on, so many of each a picosecond: less for refresh,
        and where the pins change their direction. They hold `held` bytes, but those who move `others` bytes a second, which are none of these.
        """
        system, dram = self.system, self.system.dram
        link = system.noc.link_bytes_per_second
        split = len({cost.client for cost in costs}) * self._split
        under_way = max(cost.trip_ns for cost in costs) * max(1 - others / link, 0.0)
        links = 1 - system.stalled_share(link, held, under_way, split > link)
        channels = 1 - system.refresh_share
        moved = [cost.moved * rate for cost, rate in zip(costs, rates, strict=True)]
        written = sum(cost.write_share * own for cost, own in zip(costs, moved, strict=True)) / sum(moved)
        # Writes go from half of a queue to a quarter, while others come, and collecting a quarter of it takes as long as reads make it.
        turning_ns = 4 * written * (1 - written) * (dram.read_to_write_ns + dram.write_to_read_ns)
        channels /= 1 + 1000 * turning_ns / (dram.queue_depth * self._access_ps)
        return [links] * self.links + [channels] * dram.channels

    def after_refresh(self, moving: Mapping[int, float], held: Mapping[int, float], trip_ns: float) -> dict[int, float]:
        """Return the bytes a second that clients get at most who would move more than an equal share of the pins, where others move less.

        While memory refreshes, those who are slower at the links send what they hold of data; then memory serves all alike, until they
        hold as much again.
        """
        system, dram = self.system, self.system.dram
        link, pins = system.noc.link_bytes_per_second, dram.pin_bytes_per_second / system.page_turns
        alike = pins / len(moving)
        fast = [client for client in moving if moving[client] > alike]
        if not dram.trefi_ns or not fast or len(fast) == len(moving):
            return {}
        gap_ns, period_ns = system.refresh_ns, dram.trefi_ns
        reserves = {client: min(max(held[client] / moving[client] * 1e9 - trip_ns, 0.0), gap_ns) for client in fast}
        stock = sum(max(held[c] - moving[c] * trip_ns / 1e9, 0.0) for c in moving if c not in fast)
        sent = min(stock, link * (gap_ns - min(reserves.values())) / 1e9)
        refill_ns = sent / max(pins - link, 1.0) * 1e9
        if refill_ns >= period_ns - gap_ns:
            return {}  # the pins are what is short, not the link
        return {
            client: (moving[client] * (period_ns - gap_ns - refill_ns + reserves[client]) + alike * refill_ns)
            / period_ns
            for client in fast
        }

    def clashes(self, costs: Sequence[Cost], rates: Sequence[float]) -> tuple[float, float]:
        """Return the part of the time in which two of those transfers, so many of each a picosecond, are in one bank with different pages, and what is
        left of the channels meanwhile.

        A transfer is in as many banks as there are pages in its part of a queue. While the controller takes what is there for the open page, the queue
        fills up with what waits for the other one; then the bank turns, and nobody in the queue has data for the pins. Whose pages are in the
        queue as a whole has them in one go, with or without others.
        """
        dram = self.system.dram
        whole = sum(cost.moved * rate for cost, rate in zip(costs, rates, strict=True))
        parts = [cost.moved * rate / whole for cost, rate in zip(costs, rates, strict=True)]
        spread = [1 + dram.queue_depth * part * cost.pages for cost, part in zip(costs, parts, strict=True)]
        met = lost_ns = 0.0
        for second in range(len(costs)):
            for first in range(second):
                one, other = costs[first], costs[second]
                if min(spread[first], spread[second]) >= 2:
                    continue
                shared = sum(map(mul, one.banks, other.banks)) * spread[first] * spread[second]
                written = (one.write_share + other.write_share) / 2
                turn_ns = dram.trp_ns + dram.trcd_ns + written * (dram.twr_ns + dram.cwl_ns)
                lost_ns += shared * 2 * parts[first] * parts[second] / dram.queue_depth * turn_ns
                met += shared
        access_ns = self._access_ps / 1000
        return min(met, 1.0), access_ns / (access_ns + lost_ns / met if met else access_ns)

    def _banks(self, reads: Runs, writes: Runs) -> tuple[tuple[float, ...], float]:
        """Return the share of the accesses in each bank, and the pages that are opened for an access."""
        dram = self.system.dram
        size = dram.page_bytes * dram.channels
        found = np.zeros(dram.banks)
        opened, accesses = 0.0, 0.0
        for runs in (reads, writes):
            if not len(runs):
                continue
            first, last = runs[:, 0] // size, (runs[:, 0] + runs[:, 1] - 1) // size
            pages = last - first + 1
            run = np.repeat(np.arange(len(runs)), pages)
            page = first[run] + np.arange(len(run)) - np.repeat(np.cumsum(pages) - pages, pages)
            begin = np.maximum(page * size, runs[run, 0])
            nbytes = np.minimum((page + 1) * size, (runs[:, 0] + runs[:, 1])[run]) - begin
            found += np.bincount(self._place(page * size)[0], nbytes, dram.banks)
            heads = np.flatnonzero(np.concatenate(([True], page[1:] != page[:-1])))
            opened += np.minimum(np.ceil(np.add.reduceat(nbytes, heads) / dram.interleave_bytes), dram.channels).sum()
            accesses += np.ceil(nbytes / dram.access_bytes).sum()
        return tuple((found / found.sum()).tolist()), float(opened / accesses)

    def _side(self, client: int, runs: Runs, write: bool) -> _Side:
        system, dram, own = self.system, self.system.dram, self.system.clients[client]
        size = dram.access_bytes
        if len(runs) == 1:
            address, nbytes = int(runs[0][0]), int(runs[0][1])
            accesses = (address % size + nbytes - 1) // size + 1
            requests = -(-accesses // own.request_accesses)
            channel_ps = np.full(dram.channels, accesses * self._access_ps * system.page_turns / dram.channels)
            opened, own_accesses = 0.0, accesses / dram.channels
        else:
            starts, counts = _merge(runs, size)
            accesses = int(counts.sum())
            requests = int((-(-counts // own.request_accesses)).sum())
            channel_ps, opened, own_accesses = self._channels(starts, counts, write, own.requests * accesses / requests)
        flits = accesses * self._access_flits
        window_bytes = own.requests * accesses / requests * size
        queue_ps = float(channel_ps.max())
        if write:
            hops = len(own.route)
            trip_ps = hops * system.noc.hop_cycles * self._cycle_ps
            held = min(window_bytes, self._buffers + hops * system.noc.credits * system.noc.flit_bytes)
            # What the queues still have at the end is written while the next transfer waits for its latency.
            queued_ps = min(dram.queue_depth * queue_ps / own_accesses, own.latency_ns * 1000, queue_ps)
            return _Side(accesses, flits, 0, channel_ps, queued_ps, requests / own.requests * trip_ps, held, 0.0)
        trip_ps = (
            system.network_latency_ns(own.name) * 1000 + (accesses / requests - 1) * self._access_flits * self._cycle_ps
        )
        trips = requests / own.requests
        window_ps = trips * trip_ps
        if len(runs) > 1:
            # Others find their page open. Where pages open, all requests outstanding wait for that: once for those that are at once.
            opening_ps = 1000 * (dram.trp_ns + dram.trcd_ns)
            hit_ps = trip_ps - 1000 * dram.trcd_ns
            trip_ps = hit_ps + opened * opening_ps
            window_ps = trips * hit_ps + min(opened * own_accesses, trips) * opening_ps
        return _Side(accesses, requests, flits, channel_ps, 0.0, window_ps, window_bytes, trip_ps)

    def _turns_ps(self, client: int, read: Sequence[int], write: Sequence[int]) -> float:
        """Return what a copy of one run waits for between its pieces: a channel reads one and writes the one before, so the pins turn twice a
        piece, and a bank in which one piece ends and the other begins has to close its page first.
        """
        dram, own = self.system.dram, self.system.clients[client]
        size = dram.access_bytes
        piece = own.requests * own.request_accesses * size
        pieces = -(-min(read[1], write[1]) // piece)
        if pieces == 1:
            return 1000 * dram.read_to_write_ns
        at = np.arange(pieces)
        begins, ends = at * piece, np.minimum((at + 1) * piece, min(read[1], write[1])) - 1
        # Reads of a piece, writes of the one before, reads of the next one.
        after_read = self._clash(read[0] + ends[1:], write[0] + begins[:-1])
        after_write = self._clash(write[0] + ends[:-2], read[0] + begins[2:])
        closing_ns = dram.trp_ns + dram.trcd_ns
        reopened_ns = after_read * max(
            closing_ns + dram.cwl_ns - dram.cl_ns - dram.read_to_write_ns, 0
        ) + after_write * max(dram.twr_ns + closing_ns + dram.cl_ns - dram.write_to_read_ns, 0)
        return 1000 * (pieces * dram.read_to_write_ns + (pieces - 1) * dram.write_to_read_ns + reopened_ns)

    def _clash(self, one: Ints, other: Ints) -> int:
        """Return how many pairs of addresses are in different rows of one bank."""
        (bank, row), (other_bank, other_row) = self._place(one), self._place(other)
        return int(np.count_nonzero((bank == other_bank) & (row != other_row)))

    def _place(self, addresses: Ints) -> tuple[Ints, Ints]:
        """Return bank and row, in whichever channel."""
        dram = self.system.dram
        page = addresses // (dram.interleave_bytes * dram.channels) * dram.interleave_bytes // dram.page_bytes
        row = page // dram.banks
        return (page ^ row if dram.bank_xor else page) % dram.banks, row

    def _channels(self, starts: Ints, counts: Ints, write: bool, outstanding: float) -> tuple[Floats, float, int]:
        """Return how long each channel is busy with runs of accesses, the share of accesses that open a page, and the accesses of the channel
        that has most.

        The controller chooses from the next accesses of a channel, as many as its queue has. Of those, data goes over the pins one behind the other, and each
        bank opens its pages one behind the other: what takes longest counts, for so many and for all of them.
        """
        dram = self.system.dram
        channel, bank, row, n = self._blocks(starts, counts)
        heads = _heads(channel[None])
        queue = int(max(min(dram.queue_depth, outstanding / len(heads)), 1))
        most = int(np.add.reduceat(n, heads).max())
        before = np.cumsum(n) - n
        window = (before - np.repeat(before[heads], np.diff(heads, append=len(n)))) // queue
        # The pages of each bank, window by window.
        order = np.lexsort((row, window, bank, channel))
        keys, n = np.stack([channel, bank, window, row])[:, order], n[order]
        heads = _heads(keys)
        keys, n = keys[:, heads], np.add.reduceat(n, heads)
        closing_ns = dram.cwl_ns + dram.twr_ns if write else 0.0
        opening = 1000 * (
            np.maximum(dram.tras_ns, dram.trcd_ns + closing_ns + n * self._access_ps / 1000) + dram.trp_ns
        )
        data = n * self._access_ps
        opened = np.ones(len(n), bool)
        opened[1:] = (keys[0, 1:] != keys[0, :-1]) | (keys[1, 1:] != keys[1, :-1]) | (keys[3, 1:] != keys[3, :-1])
        opening = np.where(opened, opening, data)
        heads = _heads(keys[:2])
        last = np.append(heads[1:], len(n)) - 1  # nobody waits for a bank to close behind the last page
        banks = np.zeros(dram.channels)
        np.maximum.at(banks, keys[0, heads], np.add.reduceat(opening, heads) - opening[last] + data[last])
        heads = _heads(keys[:3])  # a bank that opens one page in a window does so beside the others
        several = np.diff(heads, append=len(n)) > 1
        data, opening = np.add.reduceat(data, heads), np.add.reduceat(opening, heads)
        keys = keys[:3, heads]
        order = np.lexsort((keys[2], keys[0]))
        keys, data, opening = keys[:, order], data[order], np.where(several, opening, data)[order]
        heads = _heads(keys[::2])
        time = np.maximum(np.add.reduceat(data, heads), np.maximum.reduceat(opening, heads))
        busy = np.maximum(np.bincount(keys[0, heads], time, dram.channels), banks)
        return busy, float(opened.sum()) / int(counts.sum()), most

    def _blocks(self, starts: Ints, counts: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return channel, bank, row and number of accesses of each part of the runs that is in one block of the interleave, by channel."""
        dram = self.system.dram
        size = dram.interleave_bytes // dram.access_bytes
        first = starts // size
        blocks = (starts + counts - 1) // size - first + 1
        run = np.repeat(np.arange(len(starts)), blocks)
        block = first[run] + np.arange(len(run)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
        n = np.minimum((block + 1) * size, (starts + counts)[run]) - np.maximum(block * size, starts[run])
        channel = block % dram.channels
        bank, row = self._place(block * dram.interleave_bytes)
        order = np.argsort(channel, kind="stable")
        return channel[order], bank[order], row[order], n[order]


@dataclass(frozen=True, slots=True)
class _Side:
    """What a transfer reads, or writes. Picoseconds are of all of it."""

    accesses: int
    there: int  # flits on the way to the controller
    back: int
    channel_ps: Floats  # of each channel
    queued_ps: float  # of which when all is in the queues
    window_ps: float  # that its requests outstanding need
    held: float  # bytes
    trip_ps: float  # of one request


def _period(system: MemorySystem) -> int:
    """Return bytes by which all addresses of a transfer may move without a change to what it costs; 1 << 62 where there are none."""
    dram = system.dram
    if dram.bank_xor and dram.banks & (dram.banks - 1):
        return 1 << 62
    lines = lcm(dram.interleave_bytes, dram.page_bytes) * dram.channels  # whole pages of all channels
    return lcm(lines * dram.banks * dram.banks, dram.access_bytes)


def _heads(keys: Ints) -> Ints:
    """Return where the columns of `keys` change."""
    found: Ints = np.flatnonzero(np.concatenate(([True], np.any(keys[:, 1:] != keys[:, :-1], axis=0))))
    return found


def _merge(runs: Runs, size: int) -> tuple[Ints, Ints]:
    """Return first accesses and numbers of accesses of runs; one that begins in the access in which the one before ends shares it."""
    starts, ends = runs[:, 0] // size, (runs[:, 0] + runs[:, 1] - 1) // size + 1
    heads = np.flatnonzero(np.concatenate(([True], starts[1:] != ends[:-1] - 1)))
    firsts = np.minimum.reduceat(starts, heads)
    return firsts, np.maximum.reduceat(ends, heads) - firsts


def _shared_links(system: MemorySystem) -> tuple[list[frozenset[tuple[int, int]]], list[int]]:
    """Return who uses each direction of a link, (client, 0 there or 1 back), and the number of the other direction of a link that is not
    duplex, or its own; without those whose users all share another one that does not move more.
    """
    users: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for number, client in enumerate(system.clients):
        for way, links in enumerate(system.ways(client)):
            for link in links:
                users.setdefault(link, set()).add((number, way))

    def is_shared(link: tuple[str, str]) -> bool:
        return not system.noc.duplex and link[::-1] in users

    kept: list[tuple[str, str]] = []
    for link in sorted(users, key=lambda link: (len(users[link]), is_shared(link)), reverse=True):
        if not any(users[link] <= users[other] and is_shared(other) >= is_shared(link) for other in kept):
            kept += [link, link[::-1]] if is_shared(link) else [link]
    numbers = {link: number for number, link in enumerate(kept)}
    others = [numbers[link[::-1]] if is_shared(link) else number for number, link in enumerate(kept)]
    return [frozenset(users[link]) for link in kept], others
