"""The memory path again: slow, cycle by cycle, access by access, from the description in memory.h alone.

Nothing is shared with the product but the data of the memory system; nothing is skipped, no ring, no free list.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby, pairwise
from math import ceil, lcm
from operator import itemgetter

MASK = 2**64 - 1


def mix(seed: int, index: int) -> int:
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@dataclass(eq=False)
class Request:
    client: int
    transfer: Transfer | None
    write: bool
    accesses: list[int]  # addresses
    flits: int = 0
    open: int = 0


@dataclass(eq=False)
class Access:
    request: Request
    address: int
    arrived: int
    found: str = "hits"
    data_at: int | None = None  # cycle from which what is read is with the controller


@dataclass(eq=False)
class Side:
    write: bool
    requests: deque  # (accesses, bytes asked)
    total: int
    pace: int
    due: Fraction
    issued: int = 0
    done: int = 0
    open: int = 0
    left_over: int = 0


@dataclass(eq=False)
class Transfer:
    name: object
    client: int
    serial: int
    sides: list[Side]
    in_order: bool = True  # runs go in the order in which they were given
    awaited: deque = field(default_factory=deque)  # reads that are with the controller, and not on their way back
    paused: bool = False
    cancelled: bool = False
    ended: bool = False


@dataclass(eq=False)
class Port:
    flits: deque = field(default_factory=deque)  # (ready cycle, what, last)
    returns: deque = field(default_factory=deque)
    occupancy: int = 0
    most: int = 0

    @property
    def in_use(self) -> int:
        return len(self.flits) + len(self.returns)


@dataclass(eq=False)
class Bank:
    row: int | None = None
    activate: int = 0
    column: int = 0
    precharge: int = 0


class Channel:
    def __init__(self, banks: int, due: float, pins_free: int) -> None:
        self.queue: list[Access] = []
        self.banks = [Bank() for _ in range(banks)]
        self.write = False
        self.drains = False
        self.pins_free = pins_free
        self.due = due
        self.refresh_end = 0
        self.count: Counter[str] = Counter()


class Generator:
    def __init__(self, now: int, rate: int, write_rate: int, accesses: int, address: int, span: int, seed: int) -> None:
        self.rate, self.write_rate, self.accesses, self.address, self.span, self.seed = (
            rate, write_rate, accesses, address, span, seed,
        )  # fmt: skip
        self.draws = self.bursts = self.backlog = 0
        self.arrival = now - 1
        self.draw()

    def draw(self) -> None:
        while True:
            self.arrival += 1
            self.draws += 1
            if mix(self.seed, self.draws - 1) >> 32 < self.rate:
                return


class ReferenceMemory:
    def __init__(self, system) -> None:
        self.system, dram, noc = system, system.dram, system.noc
        self.hz = lcm(noc.clock_hz, dram.transfers_per_second)
        self.cycle = self.hz // noc.clock_hz
        self.size = dram.burst_transfers * dram.channel_bits // 8 * dram.chained_bursts
        self.data_ticks = self.hz * dram.burst_transfers * dram.chained_bursts // dram.transfers_per_second
        self.flits = -(-self.size // noc.flit_bytes)
        self.now = self.serial = 0
        refresh = self.ticks(dram.trefi_ns) if dram.trefi_ns else float("inf")
        turned = -self.ticks(dram.read_to_write_ns)  # the first one does not wait for that
        self.channels = [Channel(dram.banks, refresh, turned) for _ in range(dram.channels)]
        self.priority = [client.priority for client in system.clients]
        self.active: list[list[Transfer]] = [[] for _ in system.clients]
        self.last = [-1] * len(system.clients)
        self.sending: list = [None] * len(system.clients)
        self.splitting: list = [None] * len(system.clients)
        self.data: list[deque] = [deque() for _ in system.clients]
        self.data_flits = [0] * len(system.clients)
        self.generators: list[Generator | None] = [None] * len(system.clients)
        self.window = [0] * len(system.clients)
        self.count: list[Counter[str]] = [Counter() for _ in system.clients]
        self.ports: dict[tuple[int, int, int], Port] = {}
        self.users: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
        for number, client in enumerate(system.clients):
            for direction, nodes in enumerate(([*client.route, "ddr"], [*client.route[::-1], client.name])):
                for hop in range(len(client.route)):
                    self.ports[direction, number, hop] = Port()
                    self.users.setdefault((nodes[hop], nodes[hop + 1]), []).append((direction, number, hop))
        self.order = system.links()
        self.holder = {link: len(self.users[link]) - 1 for link in self.order}
        self.kept = dict.fromkeys(self.order, float("inf"))
        self.yields: set[tuple[str, str]] = set()
        both = [link for link in self.order if not noc.duplex and link[::-1] in self.order]
        self.one_way_at_a_time = [
            any(hop in both for hop in pairwise([*client.route, "ddr"])) for client in system.clients
        ]
        self.link_count: dict[tuple[str, str], Counter[str]] = {link: Counter() for link in self.order}
        self.ended: list[Transfer] = []

    def ticks(self, ns: float) -> int:
        return ceil(Fraction(str(ns)) * self.hz / 10**9)

    def ticks_of_ps(self, ps: int) -> int:
        return ceil(Fraction(ps * self.hz, 10**12))

    # what is asked for

    def submit(self, name, client: int, at_ps: int, reads, writes, pace_ps: int) -> Transfer:
        limit = self.system.clients[client].request_accesses
        sides, start_at = [], self.ticks_of_ps(at_ps) + self.ticks(self.system.clients[client].latency_ns)
        given = [self.merged(runs) for runs in (reads, writes)]
        totals = [sum(len(self.accesses(start, end)) for start, end, _ in runs) for runs in given]
        in_order = True
        for write, runs in enumerate(given):
            least = min(totals) or totals[write]
            buffers = [list(parts) for _, parts in groupby(self.cut(client, runs, totals[write], least), itemgetter(0))]
            ordered = [
                (start, end, asked)
                for parts in buffers
                for start, end, asked in self.by_turns([part[1:] for part in parts])
            ]
            in_order = in_order and ordered == [part[1:] for parts in buffers for part in parts]
            requests: deque = deque()
            for start, end, asked in ordered:
                accesses = self.accesses(start, end)
                for i in range(0, len(accesses), limit):
                    part = accesses[i : i + limit]
                    share = min(asked, min(end, part[-1] + self.size) - max(start, part[0]))
                    requests.append((part, share))
                    asked -= share
            total = sum(len(accesses) for accesses, _ in requests)
            sides.append(Side(bool(write), requests, total, self.ticks_of_ps(pace_ps), start_at))
            self.keep_pace(sides[-1])
        transfer = Transfer(name, client, self.serial, sides, in_order)
        self.serial += 1
        self.active[client].append(transfer)
        return transfer

    def accesses(self, start: int, end: int) -> list[int]:
        return list(range(start // self.size * self.size, end, self.size))

    def merged(self, runs) -> list[list[int]]:
        """First byte, end and bytes asked of runs, of which one that begins in the access in which the one before ends goes on with it."""
        merged: list[list[int]] = []
        for start, length in runs:
            if merged and start // self.size == (merged[-1][1] - 1) // self.size:
                merged[-1][:2] = min(merged[-1][0], start), max(merged[-1][1], start + length)
                merged[-1][2] += length
            else:
                merged.append([start, start + length, length])
        return merged

    def buffer_size(self, client: int, total: int, least: int) -> Fraction:
        """Accesses of a side that fill a buffer, which is as large as what may be outstanding for the side that has fewer."""
        limits = self.system.clients[client]
        return Fraction(limits.requests * limits.request_accesses * total, least)

    def cut(self, client: int, runs, total: int, least: int):
        """Yield the number of the buffer and the part of a run that is in it, access by access put together again."""
        at = 0
        for start, end, asked in runs:
            numbers: dict[int, list[int]] = {}
            for address in self.accesses(start, end):
                numbers.setdefault(at // self.buffer_size(client, total, least), []).append(address)
                at += 1
            for number, accesses in numbers.items():
                first, last = max(start, accesses[0]), min(end, accesses[-1] + self.size)
                share = min(asked, last - first)
                asked -= share
                yield number, first, last, share

    def by_turns(self, runs):
        """The first page of each bank by address, then the second one of each, and so on."""
        runs = sorted(runs)
        pages: dict[tuple[int, int], list[int]] = {}  # rows of each bank, each time that there is another one
        turns = []
        for start, _, _ in runs:
            channel, bank, row = self.place(start)
            rows = pages.setdefault((self.channels.index(channel), bank), [])
            if not rows or rows[-1] != row:
                rows.append(row)
            turns.append(len(rows))
        return [run for _, run in sorted(zip(turns, runs, strict=True))]

    def cancel(self, transfer: Transfer) -> None:
        transfer.cancelled = True
        if transfer in self.active[transfer.client]:
            self.active[transfer.client].remove(transfer)
        if transfer in self.ended:
            self.ended.remove(transfer)

    def pause(self, transfer: Transfer) -> None:
        transfer.paused = True
        if transfer in self.ended:
            self.ended.remove(transfer)

    def resume(self, transfer: Transfer, at_ps: int) -> None:
        transfer.paused = False
        for side in transfer.sides:
            side.due = max(side.due, self.ticks_of_ps(at_ps))
        if transfer.ended:
            self.ended.append(transfer)
        else:
            self.settle(transfer)

    def set_background(self, client: int, bytes_per_second: int, burst_bytes: int, write_share: float, address: int,
                       span: int, seed: int) -> None:  # fmt: skip
        accesses = ceil(burst_bytes / self.size)
        per_cycle = Fraction(bytes_per_second, accesses * self.size * self.system.noc.clock_hz)
        self.generators[client] = None
        if per_cycle:
            rate = min(ceil(per_cycle * 2**32), 2**32)
            self.generators[client] = Generator(
                self.now, rate, round(write_share * 2**32), accesses, address // self.size * self.size,
                max(span // self.size, 1) * self.size, seed,
            )  # fmt: skip

    # time

    def advance(self, until_ps: int):
        """Run to `until_ps`, or to the end of a transfer: return it and the tick, or None."""
        until = until_ps * self.hz // 10**12
        while not self.ended and self.now * self.cycle <= until:
            self.one_cycle()
        return (self.ended.pop(0), (self.now - 1) * self.cycle) if self.ended else None

    def one_cycle(self) -> None:
        for generator in self.generators:
            while generator is not None and generator.arrival <= self.now:
                generator.backlog += 1
                generator.draw()
        for channel in self.channels:
            self.one_command(channel)
        clients = len(self.system.clients)
        for i in range(clients):
            self.split((self.now + i) % clients)
        for port in self.ports.values():
            while port.returns and port.returns[0] <= self.now:
                port.returns.popleft()
        for link in self.order:
            other = (link[1], link[0])
            if self.system.noc.duplex or other not in self.order:
                self.move(link)
            elif self.order.index(link) < self.order.index(other):
                first, second = (other, link) if link in self.yields else (link, other)
                if self.move(first) == "data":
                    self.yields ^= {link}
                    self.move(second, requests_only=True)
                else:
                    self.move(second)
        for client in range(clients):
            self.inject(client)
        for port in self.ports.values():
            port.occupancy += port.in_use
        self.now += 1

    # the controller

    def place(self, address: int) -> tuple[Channel, int, int]:
        dram = self.system.dram
        stripe = dram.interleave_bytes * dram.channels
        channel = address % stripe // dram.interleave_bytes
        page = (address // stripe * dram.interleave_bytes + address % dram.interleave_bytes) // dram.page_bytes
        row = page // dram.banks
        return self.channels[channel], ((page ^ row) if dram.bank_xor else page) % dram.banks, row

    def one_command(self, ch: Channel) -> None:
        ticks, dram = self.now * self.cycle, self.system.dram
        if ticks >= ch.due:
            open_banks = [bank for bank in ch.banks if bank.row is not None]
            assert all(bank.precharge <= ticks for bank in open_banks)
            ch.due += self.ticks(dram.trefi_ns)
            taken = self.ticks(dram.trfc_ns) + self.ticks(dram.trp_ns)
            ch.refresh_end = ticks + max(taken, 1)  # the cycle of its command is the refresh's
            ch.count["refreshes"] += 1
            ch.count["precharges"] += len(open_banks)
            for bank in ch.banks:
                bank.row, bank.activate = None, max(bank.activate, ch.refresh_end)
        if ticks < ch.refresh_end:
            ch.count["refresh_cycles"] += 1
            return
        ch.count["busy_cycles" if ch.queue or ticks < ch.pins_free else "idle_cycles"] += 1
        if ch.queue:
            self.column(ch, self.may_use_the_pins(ch))
            self.row(ch)

    def may_use_the_pins(self, ch: Channel) -> list[Access]:
        """All of the queue, in order; when the first is too old, those that do not hold it up."""
        first, *rest = ch.queue
        if self.now - first.arrived <= self.system.dram.age_limit_cycles:
            return [first, *rest]
        _, bank, row = self.place(first.address)
        if ch.banks[bank].row == row:
            return [first]
        return [first, *(access for access in rest if self.place(access.address)[1] != bank)]

    @staticmethod
    def before(ch: Channel, access: Access) -> list[Request]:
        """What its transfer asked for first."""
        own = access.request.transfer
        earlier = ch.queue[: ch.queue.index(access)]
        return [other.request for other in earlier if own is not None and other.request.transfer is own]

    def stays_behind(self, ch: Channel, access: Access) -> bool:
        """Whether something must go first: all of a transfer that its client has alone, else what goes in the other direction."""
        before = self.before(ch, access)
        if len(self.active[access.request.client]) > 1:
            before = [request for request in before if request.write != access.request.write]
        return bool(before)

    def column(self, ch: Channel, candidates: list[Access]) -> None:
        ticks, dram = self.now * self.cycle, self.system.dram
        hits = [a for a in candidates if self.place(a.address)[2] == ch.banks[self.place(a.address)[1]].row]
        hits = [a for a in hits if not self.stays_behind(ch, a)]
        reads = [a for a in ch.queue if not a.request.write]
        behind_a_write = any(request.write for a in reads for request in self.before(ch, a))
        first = [a for a in hits if a.request.write == (ch.drains or behind_a_write or not reads)]
        for access in first or hits:
            bank = ch.banks[self.place(access.address)[1]]
            write = access.request.write
            soonest = ticks + self.ticks(dram.cwl_ns if write else dram.cl_ns)
            gap = 0 if write == ch.write else self.ticks(dram.read_to_write_ns if write else dram.write_to_read_ns)
            start = max(soonest, ch.pins_free + gap)
            recovered = start + self.data_ticks + self.ticks(dram.twr_ns) if write else ticks + self.data_ticks
            if bank.column > ticks or start >= soonest + self.cycle or recovered > ch.due:
                continue
            ch.queue.remove(access)
            if write and self.writes_of(ch) <= dram.queue_depth // 4:
                ch.drains = False
            ch.pins_free = start + self.data_ticks
            ch.count["turnarounds"] += write != ch.write
            ch.write = write
            ch.count["data_ticks"] += self.data_ticks
            ch.count[access.found] += 1
            ch.count["writes" if write else "reads"] += 1
            self.count[access.request.client]["bytes_moved"] += self.size
            if write:
                bank.precharge = max(bank.precharge, ch.pins_free + self.ticks(dram.twr_ns))
            else:
                bank.precharge = max(bank.precharge, ticks + self.data_ticks)
                access.data_at = ceil(Fraction(ch.pins_free, self.cycle))
                awaited = deque([access]) if access.request.transfer is None else access.request.transfer.awaited
                if len(self.active[access.request.client]) > 1 and access in awaited:
                    awaited.remove(access)
                    self.data[access.request.client].append(access)
                while awaited and awaited[0].data_at is not None:  # of a transfer alone in the order in which it asked
                    self.data[access.request.client].append(awaited.popleft())
            return

    def row(self, ch: Channel) -> None:
        ticks, dram = self.now * self.cycle, self.system.dram
        seen = set()
        for access in ch.queue:
            _, number, row = self.place(access.address)
            if number in seen:
                continue
            seen.add(number)
            bank = ch.banks[number]
            if bank.row == row:
                continue
            if bank.row is None:
                if bank.activate <= ticks and ticks + self.ticks(dram.tras_ns) <= ch.due:
                    bank.row = row
                    bank.column = ticks + self.ticks(dram.trcd_ns)
                    bank.precharge = ticks + self.ticks(dram.tras_ns)
                    if access.found == "hits":
                        access.found = "misses"
                    ch.count["activates"] += 1
            elif bank.precharge <= ticks:
                bank.row, bank.activate = None, ticks + self.ticks(dram.trp_ns)
                access.found = "conflicts"
                ch.count["precharges"] += 1

    def enqueue(self, request: Request) -> bool:
        address = request.accesses[0]
        channel = self.place(address)[0]
        if len(channel.queue) == self.system.dram.queue_depth:
            return False
        channel.queue.append(Access(request, address, self.now))
        if not request.write and request.transfer is not None:
            request.transfer.awaited.append(channel.queue[-1])
        if 2 * self.writes_of(channel) >= self.system.dram.queue_depth:
            channel.drains = True
        del request.accesses[0]
        return True

    @staticmethod
    def writes_of(ch: Channel) -> int:
        return sum(access.request.write for access in ch.queue)

    def split(self, client: int) -> None:
        request = self.splitting[client]
        if request is not None and self.enqueue(request) and not request.accesses:
            self.splitting[client] = None

    # the network

    def move(self, link: tuple[str, str], requests_only: bool = False) -> str:
        """Move one flit over a link, and return what it was: "request", "data", or "" where none could."""
        users, count = self.users[link], self.link_count[link]
        able = []
        for index, (direction, client, hop) in enumerate(users):
            port, following = self.ports[direction, client, hop], self.ports.get((direction, client, hop + 1))
            if not port.flits or port.flits[0][0] > self.now:
                continue
            what = port.flits[0][1]
            if requests_only and (direction == 1 or what.write):
                continue
            if following is not None:
                if following.in_use == self.system.noc.credits:
                    count["stall_credit"] += 1
                    continue
            elif direction == 0:
                if what.write:
                    channel = self.place(what.accesses[0])[0]
                    free = what.flits + 1 < self.flits or len(channel.queue) < self.system.dram.queue_depth
                    split = self.splitting[client]
                    if split is not None and what.transfer is not None and split.transfer is what.transfer:
                        free = False
                else:
                    free = self.splitting[client] is None
                if not free:
                    count["stall_queue"] += 1
                    continue
            able.append(index)
        if not able:
            return ""
        highest = max(self.priority[users[index][1]] for index in able)
        first = [index for index in able if self.priority[users[index][1]] == highest]
        holder = self.holder[link]
        if holder in first and self.kept[link] < self.system.clients[users[holder][1]].keep_flits:
            self.kept[link] += 1
        else:
            self.holder[link] = min(first, key=lambda index: (index - holder - 1) % len(users))
            self.kept[link] = 1
        count["flits"] += 1
        count["stall_arbitration"] += len(able) - 1
        direction, client, hop = users[self.holder[link]]
        port, following = self.ports[direction, client, hop], self.ports.get((direction, client, hop + 1))
        _, what, last = port.flits.popleft()
        port.returns.append(self.now + self.system.noc.credit_return_cycles)
        if following is not None:
            self.put(following, what, last)
        elif direction == 1:
            if last:
                self.access_done(what.request)
        elif not what.write:
            self.splitting[client] = what
        else:
            what.flits += 1
            if what.flits == self.flits:
                what.flits = 0
                assert self.enqueue(what)
                self.access_done(what)
        return "request" if direction == 0 and not what.write else "data"

    def put(self, port: Port, what, last: bool) -> None:
        port.flits.append((self.now + self.system.noc.hop_cycles, what, last))
        port.most = max(port.most, port.in_use)

    # the clients

    def inject(self, client: int) -> None:
        credits = self.system.noc.credits
        there, back = self.ports[0, client, 0], self.ports[1, client, 0]
        data = self.data[client]
        if data and data[0].data_at <= self.now and back.in_use < credits:
            self.data_flits[client] += 1
            last = self.data_flits[client] == self.flits
            self.put(back, data[0], last)
            if last:
                self.data_flits[client] = 0
                data.popleft()
        if self.sending[client] is None and not self.active[client] and self.generators[client] is None:
            return
        if there.in_use == credits:
            self.count[client]["stall_credit"] += 1
            return
        if self.sending[client] is None:
            request = self.generated(client) if self.generators[client] else self.chosen(client)
            if request is None:
                return
            self.sending[client] = (request, len(request.accesses) * self.flits if request.write else 1)
        request, left = self.sending[client]
        self.put(there, request, left == 1)
        self.sending[client] = (request, left - 1) if left > 1 else None

    def generated(self, client: int) -> Request | None:
        g, limits = self.generators[client], self.system.clients[client]
        if not g.backlog:
            return None
        if self.window[client] and self.window[client] + g.accesses > limits.requests * limits.request_accesses:
            self.count[client]["stall_window"] += 1
            return None
        start = g.address + g.bursts * g.accesses * self.size % g.span
        write = mix(~g.seed & MASK, g.bursts) >> 32 < g.write_rate
        g.bursts += 1
        g.backlog -= 1
        self.window[client] += g.accesses
        self.count[client]["bytes_asked"] += g.accesses * self.size
        self.count[client]["accesses_issued"] += g.accesses
        return Request(client, None, write, [start + i * self.size for i in range(g.accesses)])

    def chosen(self, client: int) -> Request | None:
        ready, causes = {}, set()
        for transfer in self.active[client]:
            for number, side in enumerate(transfer.sides):
                if not side.requests or transfer.paused or side.due > self.now * self.cycle:
                    continue
                if side.open == self.system.clients[client].requests:
                    causes.add("stall_window")
                    continue
                if not self.buffer_allows(transfer, side):
                    causes.add("stall_data")
                    continue
                ready[2 * transfer.serial + number] = (transfer, side)
        if not ready:
            if causes:
                self.count[client]["stall_window" if "stall_window" in causes else "stall_data"] += 1
            return None
        key = min((k for k in ready if k > self.last[client]), default=min(ready))
        self.last[client] = key
        transfer, side = ready[key]
        accesses, asked = side.requests.popleft()
        side.open += 1
        side.issued += len(accesses)
        if not all(other.total for other in transfer.sides):
            side.due = max(side.due, (self.now - 1) * self.cycle + 1)
        self.keep_pace(side)
        self.count[client]["bytes_asked"] += asked
        self.count[client]["accesses_issued"] += len(accesses)
        return Request(client, transfer, side.write, accesses, open=len(accesses))

    def buffer_allows(self, transfer: Transfer, side: Side) -> bool:
        """Reads fill one buffer while writes empty the other; each side goes on when the other one is through with its own.

        What is written has been read: as much, or all of the buffer where the order has changed, or all that was asked for where
        links carry data one way at a time.
        """
        totals = [other.total for other in transfer.sides]
        if 0 in totals:
            return True
        sizes = [self.buffer_size(transfer.client, total, min(totals)) for total in totals]
        reading, writing = transfer.sides
        filled, emptied = reading.issued // sizes[0], writing.issued // sizes[1]
        if not side.write:
            return filled - emptied < 2
        if filled - emptied < 2 and reading.requests:
            return False
        if self.one_way_at_a_time[transfer.client]:
            return reading.done == reading.issued
        if transfer.in_order:
            return Fraction(reading.done, reading.total) >= Fraction(side.issued + len(side.requests[0][0]), side.total)
        return reading.done >= min((emptied + 1) * sizes[0], reading.total)

    def keep_pace(self, side: Side) -> None:
        """Each request has its share of the side's pace before it, to the tick over all of them."""
        if side.requests:
            share = side.pace * len(side.requests[0][0]) + side.left_over
            side.due += share // side.total
            side.left_over = share % side.total

    def access_done(self, request: Request) -> None:
        self.count[request.client]["accesses_done"] += 1
        if request.transfer is None:
            self.window[request.client] -= 1
            return
        side = request.transfer.sides[request.write]
        side.done += 1
        request.open -= 1
        side.open -= request.open == 0
        self.settle(request.transfer)

    def settle(self, transfer: Transfer) -> None:
        if transfer.paused or transfer.ended or transfer.cancelled:
            return
        if all(side.done == side.total for side in transfer.sides):
            transfer.ended = True
            self.active[transfer.client].remove(transfer)
            self.ended.append(transfer)
