"""The memory path as the engines know it, and fidelity `fast` of it: transfers as a fluid through the parts of a memory system.

What a transfer costs of each part is memory_forms.py's. Those in progress share the parts max-min fairly, by the turns that
clients have at a link, each at most at its port's rate and at what it can have alone; traffic of clients without an engine is
one of them. One that always gets its full rate ends on its port's clock edge; another when its bytes are through.
"""

from __future__ import annotations

from heapq import heappush
from math import ceil, inf
from operator import mul
from typing import Protocol

from npu_model.memory_cycles import Background
from npu_model.memory_forms import ClosedForms, Cost
from npu_model.memory_runs import Runs
from npu_model.profile import Profile

from npu_device.clock import PRIORITY_ENGINE, Clock, Unit

ANNOUNCED = -1  # share of a flow whose latency is not over
FIRST_TOKEN = 2  # actions from here on are tokens
CAUGHT_UP = 1  # action of the path's own event
ROUNDS = 20  # in which parts are divided, at most: more than are needed where few share
KEPT_RATES = (
    1 << 12
)  # sets of sharers whose rates are kept, some hundred bytes each (chosen): more than a large model has


class Flow(Protocol):
    """A transfer in its data phase. `remaining_ps` is what it still needs at full rate."""

    client: str  # of the memory system
    demand: int  # bytes per millisecond at full rate
    remaining_ps: int
    since_ps: int
    share: int  # bytes per millisecond that it gets
    token: int  # action of the end event that counts; older ones are stale

    def runs(self) -> tuple[Runs, Runs]:
        """Return the contiguous runs in memory that it reads and that it writes: physical addresses and bytes."""

    def cost(self, forms: ClosedForms) -> Cost:
        """Return what those runs cost."""


class MemoryPath(Protocol):
    """Where engines move bytes to and from external memory. The end of a flow arrives as `unit.fire(flow.token, flow)`."""

    @property
    def idle(self) -> bool:
        """Whether no flow is in progress or announced."""

    def clear(self) -> None:
        """Forget every flow."""

    def set_traffic(self, traffic: Background) -> None:
        """Start the traffic of a client now, or end it: 0 bytes per second."""

    def set_priority(self, client: int, priority: int) -> None:
        """Let `client` go before those of a lower priority, 0 to 7."""

    def enter(self, flow: Flow, unit: Unit, joined_ps: int, join_action: int) -> None:
        """Start `flow`, whose share is 0. Its data phase begins at `joined_ps`, after the latency, where latency is a number;
        an event of the unit with `join_action` may have to call `arrive` then.
        """

    def waiting_ps(self, nbytes: int) -> int:
        """Return what the first data of a transfer of so many bytes needs beyond the latency."""

    def arrive(self, flow: Flow, unit: Unit) -> None:
        """Begin the data phase."""

    def leave(self, flow: Flow) -> None:
        """Take out a flow that has ended."""

    def withdraw(self, flow: Flow) -> None:
        """Take out a flow whose transfer is cancelled; its events are void."""

    def pause(self, flow: Flow) -> None:
        """Hold up a flow in its data phase; `join` lets it go on."""

    def join(self, flow: Flow, unit: Unit, at_ps: int) -> None:
        """Let a flow that was held up go on, now."""


class _Sharer:
    """A flow, or traffic, among those that share. Rates are transfers per picosecond."""

    __slots__ = (
        "asked",
        "backlog",
        "cost",
        "fastest",
        "flow",
        "limit",
        "most",
        "rate",
        "unit",
        "waits_ps",
        "whole_ps",
    )

    def __init__(
        self, cost: Cost, whole_ps: float, fastest_ps: float, flow: Flow | None = None, unit: Unit | None = None
    ) -> None:
        self.cost = cost
        self.asked = self.most = 0.0  # of traffic: rate without and with a backlog
        self.backlog = 0.0  # transfers that it has not got
        self.waits_ps = [0.0]  # of traffic: that somebody else waits for it, by the number of his channels
        self.whole_ps = whole_ps  # the data phase at full rate
        self.fastest = 1 / (fastest_ps or 1.0)
        self.rate = self.limit = self.fastest
        self.flow, self.unit = flow, unit


class FluidPath:
    """The memory path of one device."""

    def __init__(self, clock: Clock, profile: Profile) -> None:
        self._clock = clock
        self.forms = ClosedForms(profile.memory_system, profile.ddr.bytes_per_second)
        self._clients = {client.name: number for number, client in enumerate(profile.memory_system.clients)}
        self._keeps = [client.keep_flits for client in profile.memory_system.clients]
        self._priorities = [client.priority for client in profile.memory_system.clients]
        self._traffic: dict[int, _Sharer] = {}  # by client
        self._sharers: dict[Flow, _Sharer] = {}  # in the order of their start
        self._flows: list[_Sharer] = []  # of which in their data phase
        self._announced = 0  # flows that will join later
        self._caught_up = 0  # argument of the event at which a backlog of traffic will be gone
        self._accounted_ps = 0  # to which the backlogs belong
        self._found: dict[
            tuple[tuple[Cost, float, bool], ...], list[float]
        ] = {}  # rates, by who shares under these priorities

    def clear(self) -> None:
        """Forget every flow."""
        self._flows.clear()
        self._sharers.clear()
        self._announced = self._caught_up = 0

    def set_traffic(self, traffic: Background) -> None:
        """Start the traffic of a client now, or end it: 0 bytes per second."""
        forms = self.forms
        cost = forms.traffic(traffic)
        self._keep_accounts()
        self._traffic.pop(cost.client, None)
        if traffic.bytes_per_second:
            pace_ps = cost.moved / traffic.bytes_per_second * 1e12
            sharer = self._traffic[cost.client] = _Sharer(cost, pace_ps, pace_ps)
            sharer.asked, sharer.most = 1 / pace_ps, 1 / forms.fastest_ps(cost, 0)
            channels = range(1, forms.system.dram.channels + 1)
            sharer.waits_ps = [0.0, *(forms.waiting_ps(cost, sharer.asked, count) for count in channels)]
        self._share()

    def set_priority(self, client: int, priority: int) -> None:
        """Let `client` go before those of a lower priority, 0 to 7."""
        self._priorities[client] = priority
        self._found.clear()
        self._share()

    def waiting_ps(self, nbytes: int) -> int:
        """As of MemoryPath: a transfer in order waits for the slowest of its channels."""
        if not self._traffic:
            return 0
        dram = self.forms.system.dram
        channels = min(-(-nbytes // dram.interleave_bytes), dram.channels)
        return round(sum(sharer.waits_ps[channels] for sharer in self._traffic.values()))

    @property
    def idle(self) -> bool:
        """Whether no flow is in the channel or on its way: the next one may join ahead of its time."""
        return not self._flows and not self._announced

    def enter(self, flow: Flow, unit: Unit, joined_ps: int, join_action: int) -> None:
        """Let `flow`, whose share is 0, join at `joined_ps`: now, ahead of its time, or by an event that calls `arrive`."""
        clock = self._clock
        cost = flow.cost(self.forms)
        fastest_ps = self.forms.fastest_ps(cost, flow.remaining_ps, self.waiting_ps(1))
        self._sharers[flow] = _Sharer(cost, flow.remaining_ps, fastest_ps, flow, unit)
        if self.idle or joined_ps == clock.now_ps:
            self.join(flow, unit, joined_ps)
        else:
            self._announced += 1
            flow.share = ANNOUNCED
            heappush(clock.heap, (joined_ps, PRIORITY_ENGINE, clock.next_sequence(), unit, join_action, flow))

    def arrive(self, flow: Flow, unit: Unit) -> None:
        """Start a flow that was announced."""
        self._announced -= 1
        flow.share = 0
        self.join(flow, unit, self._clock.now_ps)

    def withdraw(self, flow: Flow) -> None:
        """Take out a flow whose transfer is cancelled, joined or only announced; its events are void."""
        if flow.share == ANNOUNCED:
            self._announced -= 1
            flow.share = 0
        self.leave(flow)

    def pause(self, flow: Flow) -> None:
        """Take out `flow`, which is in its data phase, and note what it still needs; `join` lets it go on."""
        done = (self._clock.now_ps - flow.since_ps) * flow.share // flow.demand
        flow.remaining_ps = max(flow.remaining_ps - done, 0)
        self._part(self._sharers[flow])
        flow.share = 0

    def join(self, flow: Flow, unit: Unit, at_ps: int) -> None:
        """Start `flow` at `at_ps`, which is now unless the path is idle; its share must be 0.

        Latency is the same for all, so a flow that starts later also joins later; one that goes on has none.
        """
        flow.since_ps = at_ps
        self._flows.append(self._sharers[flow])
        self._share()

    def leave(self, flow: Flow) -> None:
        """Take out `flow`, which may have ended."""
        sharer = self._sharers.pop(flow, None)
        if sharer is not None:
            self._part(sharer)

    def _part(self, sharer: _Sharer) -> None:
        if sharer in self._flows:
            assert sharer.flow is not None
            sharer.flow.token += 1
            self._flows.remove(sharer)
            self._share()

    def _share(self) -> None:
        """Work out what each flow gets from now on, and when it ends."""
        flows = self._flows
        if self._traffic:
            self._share_with_traffic()
        elif len(flows) == 1:
            flows[0].rate = flows[0].fastest
        elif flows:
            self._fill(flows)
        now, clock = self._clock.now_ps, self._clock
        for sharer in flows:
            flow, unit = sharer.flow, sharer.unit
            assert flow is not None
            assert unit is not None
            demand = flow.demand
            share = max(min(int(sharer.rate * sharer.whole_ps * demand * (1 + 1e-9)), demand), 1)
            if share == flow.share:
                continue
            start = max(now, flow.since_ps)  # later than now: joined ahead of its time
            done = (start - flow.since_ps) * flow.share // demand
            flow.remaining_ps = max(flow.remaining_ps - done, 0)
            flow.since_ps = start
            flow.share = share
            flow.token += 1
            end = start + -(-flow.remaining_ps * demand // share)
            heappush(clock.heap, (end, PRIORITY_ENGINE, clock.next_sequence(), unit, flow.token, flow))

    def _share_with_traffic(self) -> None:
        """As `_fill`. Traffic that has a backlog asks for all it can have until that is gone, which is an event while there are flows."""
        self._keep_accounts()
        traffic = list(self._traffic.values())
        for sharer in traffic:
            sharer.limit = sharer.most if sharer.backlog else sharer.asked
        if self._flows:  # what they get without traffic: it makes nobody faster
            self._fill(self._flows)
        for sharer in self._flows:
            sharer.limit = sharer.rate
        self._fill([*self._flows, *traffic])
        for sharer in self._flows:
            sharer.limit = sharer.fastest
        if self._caught_up:
            self._clock.cancel(self, self._caught_up)
            self._caught_up = 0
        spans = [
            sharer.backlog / (sharer.rate - sharer.asked)
            for sharer in traffic
            if sharer.backlog and sharer.rate > sharer.asked
        ]
        if spans and self._flows:
            self._caught_up = CAUGHT_UP
            self._clock.at(self._clock.now_ps + ceil(min(spans)), PRIORITY_ENGINE, self, CAUGHT_UP, CAUGHT_UP)

    def _keep_accounts(self) -> None:
        """Note what traffic has asked for and not got up to now."""
        now = self._clock.now_ps
        for sharer in self._traffic.values():
            more = (sharer.asked - sharer.rate) * (now - self._accounted_ps)
            sharer.backlog = max(sharer.backlog + more, 0.0)
            if sharer.backlog < 1e-6:
                sharer.backlog = 0.0
        self._accounted_ps = now

    def fire(self, action: int, arg: int) -> None:
        """Share again: a backlog is gone."""
        self._caught_up = 0
        self._share()

    def _fill(self, sharers: list[_Sharer]) -> None:
        """Work out the rates: the part that is wanted most is divided first, until each can do what is asked of it.

        They depend on nothing but what each costs and may have at most, and a list of tasks that runs again meets the same.
        """
        found = self._found
        costs = [sharer.cost for sharer in sharers]
        key = tuple([(sharer.cost, sharer.limit, sharer.flow is None) for sharer in sharers])
        rates = found.get(key)
        if rates is not None:
            for sharer, rate in zip(sharers, rates, strict=True):
                sharer.rate = rate
            return
        forms = self.forms
        limits = [sharer.limit for sharer in sharers]
        if self._traffic:
            self._bound_after_refresh(sharers)
        held = sum(sharer.cost.held for sharer in sharers if sharer.flow is not None)
        asked = sum(sharer.cost.moved * sharer.limit for sharer in sharers if sharer.flow is None) * 1e12
        first = forms.capacities(costs, [sharer.limit for sharer in sharers], held, asked)
        self._fill_parts(sharers, first)
        # Traffic holds all it may where it gets less than it asks for.
        more = sum(
            s.cost.held
            for s, limit in zip(sharers, limits, strict=True)
            if s.flow is None and s.rate < limit * (1 - 1e-9)
        )
        capacities = forms.capacities(costs, [sharer.rate for sharer in sharers], held + more, 0.0 if more else asked)
        if capacities != first:
            self._fill_parts(sharers, capacities)
        asked_for = [sharer.limit for sharer in sharers]
        waits = forms.waits_ps(costs, [sharer.rate for sharer in sharers])
        for sharer, waiting_ps in zip(sharers, waits, strict=True):
            cost = sharer.cost
            if sharer.flow is not None and cost.trip_ns:  # fewer requests come back while each takes longer
                sharer.limit = min(sharer.limit, 1 / (cost.window_ps * (1 + waiting_ps / cost.trip_ns / 1000)))
        if [sharer.limit for sharer in sharers] != asked_for:
            self._fill_parts(sharers, capacities)
        rates = [sharer.rate for sharer in sharers]
        met, left = forms.clashes(costs, rates)
        if met:
            self._fill_parts(sharers, capacities[: forms.links] + [left * part for part in capacities[forms.links :]])
            for sharer, rate in zip(sharers, rates, strict=True):
                # Traffic catches up when the transfers are in other banks.
                slower = min(rate, sharer.rate)
                if sharer.flow is None:
                    sharer.rate = rate
                else:  # nothing where what comes first leaves nothing
                    sharer.rate = 1 / ((1 - met) / rate + met / slower) if slower else 0.0
        for sharer, limit in zip(sharers, limits, strict=True):
            sharer.limit = limit
        if len(found) >= KEPT_RATES:
            found.clear()
        found[key] = [sharer.rate for sharer in sharers]

    def _bound_after_refresh(self, sharers: list[_Sharer]) -> None:
        """Bound what traffic gets that moves more than its share of the pins, in which memory serves clients alike after a refresh."""
        limits = [sharer.limit for sharer in sharers]
        for sharer in sharers:
            sharer.limit = max(sharer.limit, sharer.most)
        self._fill_parts(sharers, [1.0] * self.forms.parts)
        moving: dict[int, float] = {}
        held: dict[int, float] = {}
        for sharer in sharers:
            cost = sharer.cost
            moving[cost.client] = moving.get(cost.client, 0.0) + sharer.rate * cost.moved * 1e12
            held[cost.client] = held.get(cost.client, 0.0) + cost.held
        bounds = self.forms.after_refresh(moving, held, max(sharer.cost.trip_ns for sharer in sharers))
        for sharer, limit in zip(sharers, limits, strict=True):
            client = sharer.cost.client
            sharer.limit = (
                min(limit, sharer.rate * bounds[client] / moving[client])
                if client in bounds and sharer.flow is None
                else limit
            )

    def _fill_parts(self, sharers: list[_Sharer], capacities: list[float]) -> None:
        """Divide part after part, each among those who want more than it has, until nothing changes: who gets less from another part does
        not ask for more here. On the way there first, as it comes first.
        """
        others = self.forms.others
        limits = []
        for sharer in sharers:
            sharer.rate = sharer.limit
            limits.append(sharer.limit)
        busy = [sharer.cost.busy_ps for sharer in sharers]
        columns = list(zip(*busy, strict=True))
        wanted = [sum(map(mul, column, limits)) for column in columns]
        short = []
        alike: set[tuple[bool, float, tuple[float, ...]]] = set()
        for part in self.forms.order:
            if wanted[part] + (wanted[others[part]] if others[part] != part else 0.0) > capacities[part] * (1 + 1e-9):
                kind = part < self.forms.links, capacities[part], columns[part]
                if others[part] != part or kind not in alike:  # what one of equal parts allows is what the others do
                    short.append(part)
                    alike.add(kind)
        if not short:
            return
        bounds = [[inf] * len(short) for _ in sharers]  # what each of those parts lets each have
        rates = limits.copy()
        users_of = [[i for i, own in enumerate(busy) if own[part]] for part in short]
        rules: dict[int, tuple[list[float], list[int]]] = {}
        given_to: dict[int, float] = {}
        for _ in range(ROUNDS):
            changed = False
            for at, part in enumerate(short):
                users = users_of[at]
                allowed, other = capacities[part], others[part]
                if other != part:  # two directions that exclude each other have half each, or what the other one leaves
                    left = max(allowed / 2, allowed - sum(map(mul, rates, [own[other] for own in busy])))
                    allowed = given_to[part] = (
                        left + given_to.get(part, left)
                    ) / 2  # halfway: who uses both takes from itself
                for i in users:
                    bounds[i][at] = inf
                found = [min(limits[i], *bounds[i]) for i in users]
                wants = [rate * busy[i][part] for i, rate in zip(users, found, strict=True)]
                if sum(wants) > allowed * (1 + 1e-9):
                    if at not in rules:
                        rules[at] = self._rules(part, [sharers[i] for i in users])
                    given = _divide(allowed, *rules[at], wants)
                    for k, (i, share, want) in enumerate(zip(users, given, wants, strict=True)):
                        if share < want:
                            bounds[i][at] = share / busy[i][part]
                            found[k] = min(found[k], bounds[i][at])
                for i, rate in zip(users, found, strict=True):
                    changed = changed or abs(rate - rates[i]) > 1e-3 * rates[i]
                    rates[i] = rate
            if not changed:
                break
        for sharer, rate in zip(sharers, rates, strict=True):
            sharer.rate = rate

    def _rules(self, part: int, sharers: list[_Sharer]) -> tuple[list[float], list[int]]:
        """Return the weight and the rank of each in a part: in a link by the turns that clients have, and by priority; in a channel clients
        are alike, which put reads into its queue in turn. Writes come there straight from the link: among them its rules hold, and those
        that only read are beside them.
        """
        is_link = part < self.forms.links
        clients = [sharer.cost.client for sharer in sharers]
        lowest = min(self._priorities[client] for client in clients)
        by_link = [1.0 if is_link else sharer.cost.write_share for sharer in sharers]
        keeps = [
            share * self._keeps[client] / clients.count(client) for share, client in zip(by_link, clients, strict=True)
        ]
        alike = sum(share / clients.count(client) for share, client in zip(by_link, clients, strict=True))
        together = 1.0 if all(by_link) or not any(by_link) else sum(keeps) / alike
        weights = [
            keep / together + (1 - share) / clients.count(client)
            for keep, share, client in zip(keeps, by_link, clients, strict=True)
        ]
        ranks = [
            self._priorities[client] if share == 1 else lowest for share, client in zip(by_link, clients, strict=True)
        ]
        return weights, ranks


def _divide(left: float, weights: list[float], ranks: list[int], wants: list[float]) -> list[float]:
    """Return what each gets of a part of which `left` is there, max-min fairly: the highest rank first, then by weight."""
    given = [0.0] * len(wants)
    for rank in sorted(set(ranks), reverse=True):
        group = [i for i, own in enumerate(ranks) if own == rank]
        while group:
            level = left / sum([weights[i] for i in group])
            done = [i for i in group if wants[i] <= level * weights[i]] or group
            for i in done:
                given[i] = min(wants[i], level * weights[i])
            left = max(left - sum([given[i] for i in done]), 0.0)
            group = [i for i in group if i not in done]
    return given


def demand_of(nbytes: int, duration_ps: int) -> int:
    """Return the bytes per millisecond of a transfer of `nbytes` in `duration_ps`, rounded up."""
    return -(-nbytes * 10**9 // (duration_ps or 1))
