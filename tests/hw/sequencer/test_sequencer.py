"""The sequencer: boot checks, scalar operations, issue, conditions and stops."""

import pytest
from amaranth.sim import Simulator

from fastcar_hw.errors import ErrorCode
from fastcar_hw.isa import Cond, CsrIndex, Instruction, LoadClass, Op, Unit
from fastcar_hw.presets import accelerator_preset
from fastcar_hw.sequencer import ImageHeader, Sequencer

MODEL_HASH = 0x1122334455667788
IMAGE = 0x400


def image_bytes(config, program, **overrides):
    """Return header and program as the image format lays them out."""
    words = dict.fromkeys(range(16), 0)
    magic = int.from_bytes(ImageHeader.MAGIC, "little")
    values = {"magic": magic, "version": ImageHeader.VERSION, "count": len(program), "config_hash": config.hash,
              "model": MODEL_HASH} | overrides  # fmt: skip
    words[0], words[1] = values["magic"] & 0xFFFFFFFF, values["magic"] >> 32
    words[ImageHeader.VERSION_WORD] = values["version"]
    words[ImageHeader.PROGRAM_WORDS_WORD] = values["count"]
    words[ImageHeader.CONFIG_HASH_WORD] = values["config_hash"] & 0xFFFFFFFF
    words[ImageHeader.CONFIG_HASH_WORD + 1] = values["config_hash"] >> 32
    words[ImageHeader.MODEL_HASH_WORD] = values["model"] & 0xFFFFFFFF
    words[ImageHeader.MODEL_HASH_WORD + 1] = values["model"] >> 32
    words[ImageHeader.PROGRAM_OFFSET_WORD] = 128
    raw = b"".join(words[i].to_bytes(4, "little") for i in range(16))
    raw += bytes(128 - len(raw))
    for item in program:
        raw += (item if isinstance(item, int) else item.encode()).to_bytes(16, "little")
    return raw + bytes(-len(raw) % config.derived.beat_bytes)


class Bench:
    """Run a program with units that accept everything; keep what was issued."""

    def __init__(self, program, *, preset="test", run=lambda cond, lane: True, ctrl=(), unit_delay=0,
                 cycles=4000, stop_at=None, **overrides):  # fmt: skip
        self.config = accelerator_preset(preset)
        self.issued, self.errors, self.done, self.dropped = [], [], 0, 0
        memory = image_bytes(self.config, program, **overrides)
        dut = Sequencer(self.config)
        beat = self.config.derived.beat_bytes
        loads, queue = [], list(ctrl)
        ports = [getattr(dut, unit.name.lower()) for unit in Unit]

        async def units(ctx):
            busy = 0
            async for _, reset, *values in ctx.tick().sample(
                *[p.valid for p in ports], *[p.ready for p in ports], *[p.payload for p in ports],
            ):  # fmt: skip
                del reset
                valid, ready, payload = values[:6], values[6:12], values[12:]
                busy = max(0, busy - 1)
                for unit in Unit:
                    if valid[unit.value] and ready[unit.value]:
                        command = payload[unit.value]
                        if unit is Unit.LOAD and command.func >> 2 == LoadClass.CONTROL.value and booting[0]:
                            loads.append((command.a, command.b))
                        else:
                            self.issued.append((unit, {k: command[k] for k in ("a", "b", "d", "lane", "layer")}))
                            busy = unit_delay
                ctx.set(dut.unit_busy, 1 << Unit.VECTOR.value if busy else 0)

        booting = [True]

        async def feeder(ctx):
            async for *_, ready, valid in ctx.tick().sample(dut.beats.ready, dut.beats.valid):
                if valid and ready:
                    queue.pop(0) if not boot_queue else boot_queue.pop(0)
                while loads:
                    asked[0] += 1
                    address, count = loads.pop(0)
                    for i in range(count):
                        start = address - IMAGE + i * beat
                        boot_queue.append(memory[start : start + beat])
                # Beats of the program's own come behind the two loads of the boot: header and program.
                source = boot_queue or (queue if asked[0] >= 2 else [])
                ctx.set(dut.beats.valid, bool(source))
                if source:
                    ctx.set(dut.beats.payload, list(source[0]))

        boot_queue: list[bytes] = []
        asked = [0]

        async def conditions(ctx):
            async for cond, lane in ctx.changed(dut.cond, dut.cond_lane):
                ctx.set(dut.run, run(Cond(cond), lane))

        async def main(ctx):
            for port in ports:
                ctx.set(port.ready, 1)
            ctx.set(dut.image_base, IMAGE)
            ctx.set(dut.model_hash, MODEL_HASH)
            ctx.set(dut.run, 1)
            ctx.set(dut.token, 77)
            for index in CsrIndex:
                ctx.set(dut.csr[index.value], 100 + index.value)
            ctx.set(dut.start, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            for cycle in range(cycles):
                if cycle == stop_at:
                    ctx.set(dut.stop, 1)
                done, error, dropped = ctx.get(dut.done), ctx.get(dut.error), ctx.get(dut.dropped)
                self.done += done
                self.dropped += dropped
                if error != ErrorCode.NONE:
                    self.errors.append(ErrorCode(error))
                await ctx.tick()
                if not ctx.get(dut.running):
                    break
                booting[0] = booting[0] and not ctx.get(dut.pc) and not self.issued
            else:
                pytest.fail("the program did not end")
            self.pc = ctx.get(dut.pc)
            self.layer, self.position = ctx.get(dut.layer), ctx.get(dut.position)
            self.cycles = cycle

        sim = Simulator(dut)
        sim.add_clock(1e-6)
        sim.add_testbench(main)
        sim.add_testbench(units, background=True)
        sim.add_testbench(feeder, background=True)
        sim.add_testbench(conditions, background=True)
        sim.run_until((cycles + 10) * 1e-6)


def ins(op, **values):
    return Instruction(op=op, **values)


def values_of(bench):
    return [command["a"] for _, command in bench.issued]


def emit(register):
    """Show a register to the bench as the operand of a gate command."""
    return ins(Op.GATE, ra=register)


@pytest.mark.parametrize("preset", ["test", "test-passes", "tiny"])
def test_scalar_operations(preset):
    program = [
        ins(Op.SET, rc=3, imm=1000), emit(3),
        ins(Op.SET, rc=4, ra=3, imm=-1), emit(4),
        ins(Op.ADD, rc=5, ra=3, rb=4), emit(5),
        ins(Op.SUB, rc=6, ra=4, rb=3), emit(6),
        ins(Op.SHR, rc=7, ra=3, n=3), emit(7),
        ins(Op.MUL, rc=8, ra=3, n=4321), emit(8),
        ins(Op.AND, rc=9, ra=3, imm=0xF0), emit(9),
        ins(Op.CSR, rc=10, n=CsrIndex.TOTAL.value), emit(10),
        ins(Op.TOK, rc=11, ra=3), emit(11),
        ins(Op.SET, rc=0, imm=5), emit(0),
        ins(Op.HALT),
    ]  # fmt: skip
    bench = Bench(program, preset=preset)
    assert values_of(bench) == [1000, 999, 1999, 0xFFFFFFFF, 125, 4321000, 1000 & 0xF0, 102, 77, 0]
    assert bench.done == 1 and not bench.errors


def test_loops_branches_and_status_registers():
    program = [
        ins(Op.SET, rc=3, imm=3),
        ins(Op.SET, rc=1, ra=1, imm=1),  # 1: r1 counts up to 3
        ins(Op.SET, rc=2, ra=2, imm=10),
        ins(Op.GATE, ra=1, rb=2, n=7, rd=3, off=5, rc=1),
        ins(Op.BLT, ra=1, rb=3, imm=1),
        ins(Op.BEQ, ra=1, rb=3, imm=7),
        ins(Op.TRAP),
        ins(Op.BGE, ra=3, rb=1, imm=9),
        ins(Op.TRAP),
        ins(Op.JMP, imm=11),
        ins(Op.TRAP),
        ins(Op.HALT),
    ]
    bench = Bench(program)
    assert [(c["a"], c["b"], c["d"], c["lane"], c["layer"]) for _, c in bench.issued] == [
        (1, 17, 8, 1, 1), (2, 27, 8, 2, 2), (3, 37, 8, 3, 3),
    ]  # fmt: skip
    assert (bench.layer, bench.position, bench.done) == (3, 30, 1)


def test_two_cycles_an_instruction():
    short = Bench([ins(Op.NOP)] * 10 + [ins(Op.HALT)])
    long = Bench([ins(Op.NOP)] * 30 + [ins(Op.HALT)])
    # The program takes two beats of 8 bytes an instruction to load: 4 words, and a beat register fills in a cycle.
    loading = 20 * (4 + 2)
    assert long.cycles - short.cycles == 20 * 2 + loading


def test_every_unit_gets_its_commands():
    ops = [Op.LOAD, Op.MATMUL, Op.VECTOR, Op.STORE, Op.GATE, Op.SAMPLE]
    bench = Bench([ins(op, imm=i + 1, func=1) for i, op in enumerate(ops)] + [ins(Op.HALT)])
    assert [(unit, c["a"]) for unit, c in bench.issued] == [(Unit(i), i + 1) for i in range(6)]


def test_wait_holds_until_the_unit_is_idle():
    mask = 1 << Unit.VECTOR.value
    free = Bench([ins(Op.VECTOR), ins(Op.MATMUL), ins(Op.HALT)], unit_delay=50)
    held = Bench([ins(Op.VECTOR), ins(Op.MATMUL, wait=mask), ins(Op.HALT)], unit_delay=50)
    assert held.cycles - free.cycles >= 45


def test_conditions_drop_instructions_by_lane():
    program = [
        ins(Op.SET, rc=3, imm=1),
        ins(Op.VECTOR, cond=Cond.COMPUTE, rc=0, imm=10),
        ins(Op.VECTOR, cond=Cond.COMPUTE, rc=3, imm=11),
        ins(Op.VECTOR, cond=Cond.REPLAY, rc=3, imm=12),
        ins(Op.HALT),
    ]
    bench = Bench(program, run=lambda cond, lane: cond is Cond.ALWAYS or (cond is Cond.COMPUTE) == (lane == 0))
    assert values_of(bench) == [10, 12]
    assert bench.dropped == 1


def test_pop_takes_the_low_word_of_a_beat():
    beats = [bytes([1, 2, 3, 4, 5, 6, 7, 8]), bytes([9] * 8)]
    bench = Bench([ins(Op.POP, rc=3), emit(3), ins(Op.POP, rc=3), emit(3), ins(Op.HALT)], ctrl=beats)
    assert values_of(bench) == [0x04030201, 0x09090909]


@pytest.mark.parametrize(
    ("override", "code"),
    [
        ({"magic": 0}, ErrorCode.BAD_MAGIC),
        ({"magic": 0, "version": 9}, ErrorCode.BAD_MAGIC),
        ({"version": 2}, ErrorCode.BAD_VERSION),
        ({"config_hash": 1}, ErrorCode.BAD_CONFIG),
        ({"model": MODEL_HASH ^ 1 << 40}, ErrorCode.BAD_MODEL),
        ({"count": 0}, ErrorCode.PROGRAM_SIZE),
        ({"count": 513}, ErrorCode.PROGRAM_SIZE),
    ],
)
def test_boot_refuses_strangers(override, code):
    bench = Bench([ins(Op.GATE), ins(Op.HALT)], **override)
    assert bench.errors == [code]
    assert not bench.issued and not bench.done


def test_trap_bad_word_and_running_off_the_end():
    assert Bench([ins(Op.TRAP, imm=3)]).errors == [ErrorCode.TRAP]
    assert Bench([(1 << 6) - 1, ins(Op.HALT)]).errors == [ErrorCode.BAD_INSTRUCTION]
    assert Bench([ins(Op.CSR, n=31), ins(Op.HALT)]).errors == [ErrorCode.BAD_INSTRUCTION]
    bench = Bench([ins(Op.NOP)])
    assert bench.errors == [ErrorCode.BAD_INSTRUCTION] and bench.pc == 1


def test_stop_ends_an_endless_loop_and_a_hanging_pop():
    bench = Bench([ins(Op.JMP, imm=0)], stop_at=300)
    assert not bench.done and bench.cycles < 310
    bench = Bench([ins(Op.POP, rc=3), ins(Op.HALT)], stop_at=300)
    assert not bench.done and bench.cycles < 310
