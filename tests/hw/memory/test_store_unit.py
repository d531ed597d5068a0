"""Store unit on a memory that judges every request and every beat."""

from dataclasses import dataclass
from functools import cache

import pytest
from axi_model import Behaviour, WriteMemory
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_bench import SMALL as NARROW
from memory_bench import Bench, Pauses, in_a_row, send

from fastcar_hw.errors import ErrorCode
from fastcar_hw.isa import StoreFunc
from fastcar_hw.memory.axi import Response
from fastcar_hw.memory.store_unit import StoreUnit

#: A word of the vector unit fills half a beat; in `NARROW` it fills the beat.
SMALL = NARROW.replace(cols=8, max_hidden=64)
WINDOW = (0x1000, 0x8FFF)


@dataclass(frozen=True)
class Store:
    """A STORE with its data: the bytes of each word that the vector unit sends for it."""

    func: StoreFunc
    addr: int
    words: tuple[bytes, ...] = ()
    lane: int = 0
    value: int = 0

    @property
    def data(self):
        return b"".join(self.words)

    def command(self):
        b = self.value if self.func is StoreFunc.WORD else len(self.data)
        return {"a": self.addr, "b": b, "d": self.lane, "func": self.func.value}

    def beats(self, size):
        """Return (address, data, strobe) of the beats; scattered bytes alone have a meaning in theirs."""
        if self.func is StoreFunc.SCATTER:
            lane = self.lane % size
            return [(self.addr + i * size, byte << 8 * lane, 1 << lane) for i, byte in enumerate(self.data)]
        data = self.value.to_bytes(size, "little") if self.func is StoreFunc.WORD else self.data
        return [
            (self.addr + at, int.from_bytes(data[at : at + size], "little"), (1 << size) - 1)
            for at in range(0, len(data), size)
        ]


def scatter(addr, data, lane=0, word=4):
    return Store(StoreFunc.SCATTER, addr, tuple(data[at : at + word] for at in range(0, len(data), word)), lane)


def pack(addr, data, word=4):
    return Store(StoreFunc.PACK, addr, tuple(data[at : at + word] for at in range(0, len(data), word)))


def word(addr, value):
    return Store(StoreFunc.WORD, addr, value=value)


def some_bytes(count, start=1):
    return bytes((start + 37 * i) & 255 for i in range(count))


class StoreBench(Bench):
    """Commands and words in, beats on the bus out."""

    LIMIT = 6000

    def __init__(self, config):
        super().__init__(StoreUnit(config))
        self.config = config
        self.size, self.unit = config.derived.beat_bytes, 2 * config.vector_width
        self.memory = WriteMemory(config, self.dut.axi)
        self.sim.add_testbench(self.memory.serve, background=True)
        self.sim.add_testbench(self._watch, background=True)
        self.sim.add_testbench(self._supply, background=True)
        self.sim.add_testbench(self._drive)

    def run(self, stores=(), behaviour=None, *, pauses=(0.0, 0.0), seed=0, script=None):
        """Run stores to their end, or ``script(ctx)`` (the words of ``stores`` are offered all the same)."""
        self.stores, self.script = stores, script
        self.memory.behave(behaviour or Behaviour(), WINDOW)
        self.pauses = [Pauses(probability, seed + i) for i, probability in enumerate(pauses)]
        self.commanded, self.written = [], 0
        self.simulate()

    async def _drive(self, ctx):
        dut = self.dut
        ctx.set(dut.window_base, WINDOW[0])
        ctx.set(dut.window_limit, WINDOW[1])
        if self.script is not None:
            await self.script(ctx)
            return
        for store in self.stores:
            await self.store(ctx, store)
        assert ctx.get(dut.busy) or not self.stores
        await ctx.tick().until(~dut.busy)
        self.idle = self.cycle
        assert ctx.get(dut.quiet)

    async def store(self, ctx, *stores):
        """Queue commands."""
        for store in stores:
            await send(ctx, self.dut.command, [store.command()], self.pauses[0])
            self.commanded.append(self.cycle)

    def _item(self, word):
        # What lies behind the valid bytes must not matter.
        return {"data": list(word) + [0xA5] * (self.unit - len(word)), "count": len(word)}

    async def _supply(self, ctx):
        await send(
            ctx, self.dut.bytes, [self._item(word) for store in self.stores for word in store.words], self.pauses[1]
        )

    async def _watch(self, ctx):
        async for _, _, written in ctx.tick().sample(self.dut.beat_strobe):
            self.written += written

    async def quiet(self, ctx):
        """Wait until the bus is (in a script)."""
        while not ctx.get(self.dut.quiet):
            await ctx.tick()

    async def clear(self, ctx):
        """Forget everything (in a script)."""
        ctx.set(self.dut.clear, 1)
        await ctx.tick()
        ctx.set(self.dut.clear, 0)

    async def works(self, ctx, addr=0x2000):
        """Store something as after a reset (in a script, without words left over)."""
        before = len(self.memory.beats)
        stores = [word(addr, 0x01020304), pack(addr + 0x40, some_bytes(self.size + 1)), scatter(addr, b"abc", 1)]
        await self.store(ctx, *stores)
        await send(ctx, self.dut.bytes, [self._item(w) for s in stores for w in s.words])
        await ctx.tick().until(~self.dut.busy)
        assert self.meaning(self.memory.beats[before:]) == self.expected(stores)
        assert ctx.get(self.dut.error) == ErrorCode.NONE

    def meaning(self, beats):
        """Return (address, data, strobe) of beats, without the bytes that are not written."""
        mask = {strobe: sum(255 << 8 * i for i in range(self.size) if strobe >> i & 1)
                for strobe in range(1 << self.size)}  # fmt: skip
        return [(addr, data & mask[strobe], strobe) for _, addr, data, strobe in beats]

    def expected(self, stores):
        return [beat for store in stores for beat in store.beats(self.size)]

    def check(self):
        """The bus carried exactly the beats of the stores, in order, and every burst was answered."""
        assert self.meaning(self.memory.beats) == self.expected(self.stores)
        assert self.written == len(self.memory.beats) == self.memory.asked
        assert len(self.memory.answered) == len(self.memory.requests)
        assert self.memory.most_in_flight <= StoreUnit.OUTSTANDING


@cache
def bench(config=SMALL):
    return StoreBench(config)


def test_every_primitive():
    b = bench()
    b.run([
        word(0x1000, 0xDEADBEEF), scatter(0x1100, some_bytes(9), 5), pack(0x1200, some_bytes(19)),
        word(0x8FF8, 0), scatter(0x1108, b"x", 2 * 8 + 7), pack(0x3000, b"", 4), pack(0x3008, b"y"),
    ])  # fmt: skip
    b.check()
    # Beside a scattered byte nothing changes; behind packed ones there are zeros.
    assert b.memory.data[0x1100 + 5] == 1
    assert 0x1100 not in b.memory.data
    assert [b.memory.data[0x1210 + i] for i in range(8)] == [*some_bytes(19)[16:], 0, 0, 0, 0, 0]


@st.composite
def stores(draw, config):
    """Draw a store whose words end where the vector unit's do: never across the end of a beat."""
    size, unit = config.derived.beat_bytes, 2 * config.vector_width
    func = draw(st.sampled_from(StoreFunc))
    page = draw(st.integers(WINDOW[0] // 4096 + 1, WINDOW[1] // 4096))
    # Half of them start shortly before a 4 KiB boundary.
    addr = draw(st.sampled_from([4096 * page - size * draw(st.integers(1, 9)), WINDOW[0] + size * page]))
    if func is StoreFunc.WORD:
        return word(addr, draw(st.integers(0, 0xFFFF_FFFF)))
    left = draw(st.integers(0, 20 if func is StoreFunc.SCATTER else 5 * size))
    words, filled = [], 0
    while left:
        room = unit if func is StoreFunc.SCATTER else min(unit, size - filled)
        words.append(draw(st.binary(min_size=1, max_size=min(room, left))))
        left -= len(words[-1])
        filled = (filled + len(words[-1])) % size
    return Store(func, addr, tuple(words), draw(st.integers(0, 0xFFFF)))


@pytest.mark.parametrize("config", [SMALL, NARROW], ids=["half a beat", "a beat"])
def test_any_stores_and_any_stalls(config):
    b = bench(config)
    pause = st.sampled_from([0.0, 0.3, 0.6])

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(st.data())
    def check(data):
        behaviour = Behaviour(data.draw(st.integers(1, 40)), *data.draw(st.tuples(pause, pause, pause)),
                              seed=data.draw(st.integers(0, 999)))  # fmt: skip
        plan = data.draw(st.lists(stores(config), min_size=1, max_size=6))
        b.run(plan, behaviour, pauses=data.draw(st.tuples(pause, pause)), seed=data.draw(st.integers(0, 999)))
        b.check()

    check()


def test_bursts_are_as_long_as_they_may_be():
    """Whole bursts, a short one up to the 4 KiB boundary, and what is left."""
    b = bench()
    b.run([scatter(0x1FC8, some_bytes(14)), pack(0x2FF0, some_bytes(25))])
    b.check()
    assert [(burst.addr, burst.beats) for burst in b.memory.requests] == [
        (0x1FC8, 4), (0x1FE8, 3), (0x2000, 4), (0x2020, 3), (0x2FF0, 2), (0x3000, 2)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("store", "beats", "bursts", "words"),
    [
        (scatter(0x1000, some_bytes(10)), 10, 3, 1), (scatter(0x1000, b"x"), 1, 1, 1),
        (pack(0x1000, some_bytes(48)), 6, 2, 2), (pack(0x1000, some_bytes(8)), 1, 1, 2), (pack(0x1000, b"x"), 1, 1, 1),
        (pack(0x1000, some_bytes(8), 1), 1, 1, 8), (word(0x1000, 3), 1, 1, 1),
    ],
    ids=lambda value: value.func.name if isinstance(value, Store) else None,
)  # fmt: skip
@pytest.mark.parametrize("latency", [1, 32])
def test_cycles(store, beats, bursts, words, latency):
    """Stores follow each other as fast as was said, and no answer is waited for, but by ``busy``."""
    b = bench()
    b.run([store] * 3, Behaviour(latency=latency))
    b.check()
    cycles = StoreUnit.cycles(store.func, beats=beats, bursts=bursts, words=words)
    asked = [burst.cycle for burst in b.memory.requests]
    assert asked[0] - b.commanded[0] == StoreUnit.FIRST
    assert in_a_row(asked[::bursts]) == [cycles, cycles]
    assert b.idle == b.memory.answered[-1] + 1 == b.memory.beats[-1][0] + latency + 1


def test_scattered_bytes_leave_in_every_cycle():
    """Words of any length, as long as the burst lasts; a new burst takes two cycles."""
    b = bench()
    b.run([Store(StoreFunc.SCATTER, 0x1000, (b"a", b"bcde", b"f", b"gh", b"ijkl"))])
    b.check()
    assert in_a_row([cycle for cycle, *_ in b.memory.beats]) == [1, 1, 1, 3, 1, 1, 1, 3, 1, 1, 1]


def test_so_many_bursts_are_in_flight():
    """With a memory that answers late the unit waits, and loses nothing."""
    b = bench()
    b.run([word(0x1000 + 8 * i, i) for i in range(40)], Behaviour(latency=200))
    b.check()
    assert b.memory.most_in_flight == StoreUnit.OUTSTANDING


@pytest.mark.parametrize(
    "store",
    [
        word(0x0FF8, 1), word(0x9000, 1), word(0x1004, 1), word(0x8FFF, 1), word(0, 1), word(0xFFFF_FFF8, 1),
        scatter(0x0FF8, b"ab"), scatter(0x8FF8, b"ab"), scatter(0x1001, b"a"), pack(0x8FF0, some_bytes(17)),
        pack(0x0FF8, b"abc"), pack(0x2004, b""),
    ],
    ids=lambda store: f"{store.func.name}-{store.addr:#x}",
)  # fmt: skip
def test_outside_of_the_window(store):
    """The error stays, the bus sees nothing of it, and nothing behind it; its data disappear."""
    b = bench()

    async def script(ctx):
        dut = b.dut
        await b.store(ctx, store, word(0x2000, 1), word(0x2008, 1))
        await ctx.tick().repeat(30)
        assert ctx.get(dut.error) == ErrorCode.WRITE_WINDOW
        assert ctx.get(dut.error_address) == store.addr
        assert ctx.get(dut.quiet)
        assert not ctx.get(dut.bytes.valid)
        assert not b.memory.requests
        await b.clear(ctx)
        assert ctx.get(dut.error) == ErrorCode.NONE
        assert not ctx.get(dut.busy)
        await b.works(ctx)

    b.run([store], script=script)


def test_the_window_can_be_used_to_its_ends():
    b = bench()
    b.run([word(0x1000, 1), word(0x8FF8, 2), pack(0x8FE8, some_bytes(24)), scatter(0x8FF0, b"ab"), pack(0x9000, b"")])
    b.check()


@pytest.mark.parametrize("response", [Response.SLVERR, Response.DECERR], ids=lambda response: response.name)
def test_an_error_response(response):
    """The address is that of the burst, though the unit is bursts ahead, and also when more errors follow."""
    b = bench()
    behaviour = Behaviour(latency=20, failing=((0x2028, response), (0x2040, Response.SLVERR)))
    plan = [word(0x4000, 3), scatter(0x2000, some_bytes(40)), pack(0x3000, some_bytes(40))]

    async def script(ctx):
        dut = b.dut
        await b.store(ctx, *plan)
        await ctx.tick().until(dut.error != ErrorCode.NONE)
        assert ctx.get(dut.error) == ErrorCode.WRITE_BUS
        assert ctx.get(dut.error_address) == 0x2020
        await b.quiet(ctx)
        await ctx.tick().repeat(30)
        assert ctx.get(dut.error) == ErrorCode.WRITE_BUS
        assert ctx.get(dut.error_address) == 0x2020
        # Nothing begins any more, and what the vector unit sends goes nowhere.
        assert 0x2040 <= b.memory.requests[-1].addr < 0x2000 + 40 * 8
        assert not ctx.get(dut.bytes.valid)
        await b.clear(ctx)
        await b.works(ctx, 0x5000)

    b.run(plan, behaviour, script=script)


def test_an_exclusive_okay_is_no_error():
    b = bench()
    b.run([word(0x1000, 1), word(0x1008, 2)], Behaviour(failing=((0x1000, Response.EXOKAY),)))
    b.check()


@pytest.mark.parametrize("plan", ["scatter", "pack", "word"])
@pytest.mark.parametrize("wait", range(24))
def test_halt_at_any_time(plan, wait):
    """What was offered stays as it is; the rest of the burst writes nothing; then the bus is quiet."""
    b = bench()
    # Requests and beats are taken late, so some halts come while one is offered.
    behaviour = Behaviour(latency=5, ask_pause=0.6, beat_pause=0.6, seed=wait)
    plan = {
        "scatter": [Store(StoreFunc.SCATTER, 0x2000, (b"a", b"bcde", b"fg", b"hijk"), 3)],
        "pack": [pack(0x2000, some_bytes(33))],
        "word": [word(0x2000 + 8 * i, i + 1) for i in range(6)],
    }[plan]

    async def script(ctx):
        dut = b.dut
        await b.store(ctx, *plan)
        await ctx.tick().repeat(wait + 1)
        ctx.set(dut.halt, 1)
        asked = len(b.memory.requests) + ctx.get(dut.axi.aw.valid)
        before = len(b.memory.beats)
        assert not ctx.get(dut.axi.aw.valid) or not ctx.get(dut.quiet)
        await b.quiet(ctx)
        await ctx.tick().repeat(20)
        assert ctx.get(dut.quiet)
        assert len(b.memory.requests) == len(b.memory.answered) == asked
        assert len(b.memory.beats) == b.memory.asked
        written = [beat for beat in b.memory.beats if beat[3]]
        # A beat that was held back before the halt is still written.
        assert before <= len(written) <= before + 1
        assert b.written == len(written)
        assert b.meaning(written) == b.expected(plan)[: len(written)]
        # The data that were left are gone.
        assert not ctx.get(dut.bytes.valid)
        await b.clear(ctx)
        assert not ctx.get(dut.busy)
        ctx.set(dut.halt, 0)
        await b.works(ctx, 0x5000)

    b.run(plan, behaviour, pauses=(0.0, 0.3), seed=wait, script=script)


@pytest.mark.parametrize("wait", range(12))
def test_clear_whenever_quiet(wait):
    """Also without a halt before it: nothing of the old commands is written."""
    b = bench()

    async def script(ctx):
        await b.store(ctx, word(0x3000, 1), word(0x3008, 2), word(0x3010, 3))
        await ctx.tick().repeat(wait + 1)
        await b.quiet(ctx)
        await b.clear(ctx)
        assert not ctx.get(b.dut.busy)
        before = len(b.memory.requests)
        await b.works(ctx)
        assert [burst.addr for burst in b.memory.requests[before:]] == [0x2000, 0x2040, 0x2000]

    b.run(script=script)


def test_the_queue_holds_eight_commands():
    """None is lost when no more are accepted."""
    b = bench()
    plan = [word(0x2000 + 8 * i, i + 1) for i in range(8)]

    async def script(ctx):
        dut = b.dut
        ctx.set(dut.halt, 1)
        await b.store(ctx, *plan)
        ctx.set(dut.command.valid, 1)
        for _ in range(5):
            assert not ctx.get(dut.command.ready)
            assert ctx.get(dut.busy)
            assert ctx.get(dut.quiet)
            await ctx.tick()
        ctx.set(dut.command.valid, 0)
        ctx.set(dut.halt, 0)
        await ctx.tick().until(~dut.busy)
        assert b.meaning(b.memory.beats) == b.expected(plan)

    b.run(script=script)
