"""The sequencer: runs the program of an image, so that whole videos need no host."""

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal, unsigned
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..errors import ErrorCode
from ..isa import PROGRAM_BYTES, Command, Cond, CsrIndex, InstructionLayout, Op, Unit, unit_of
from .boot import Boot

__all__ = ["Sequencer"]


class Sequencer(wiring.Component):
    """Scalar machine that issues commands to the units in program order.

    Parameters
    ----------
    config
        The accelerator.

    Attributes
    ----------
    start, stop : In
        Strobes.  ``start`` is taken only while idle.
    abort : In
        A unit reported an error: stop now, in the same way as ``stop``.
    image_base, model_hash : In
        Where the image is, and whose model it must hold.
    csr : In
        Values of `isa.CsrIndex`, 32 bits each.
    load, matrix, vector, store, gate, sample : Out, streams of `isa.Command`
        Commands to the units.
    unit_busy : In
        Bit `isa.Unit` is 1 while that unit has work.
    beats : In, stream of beats
        Beats loaded for `Dest.CTRL`.
    cond, cond_lane : Out; run : In
        The condition of the present instruction, judged by the DRS dispatcher.
    dropped : Out
        Strobe: the present instruction was dropped by the dispatcher.
    token_lane : Out; token : In
        Look-up of the last token of a lane (combinational).
    running, done, error, pc, position, layer : Out
        State.  ``done`` and ``error`` (an `ErrorCode`) are strobes; position is r2 and layer is r1 by convention.
    waiting : Out
        1 while an instruction waits for a unit, a queue or a beat.

    Notes
    -----
    Two cycles an instruction; a third one for those with a condition and for branches that compare, and one for scalar
    operations other than SET.  Issue takes longer only when it has to wait.
    """

    #: Register numbers that the host reads as state.
    LAYER_REGISTER = 1
    POSITION_REGISTER = 2

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        beat = data.ArrayLayout(unsigned(8), config.derived.beat_bytes)
        super().__init__(
            {
                "start": In(1),
                "stop": In(1),
                "abort": In(1),
                "image_base": In(config.address_width),
                "model_hash": In(64),
                "csr": In(data.ArrayLayout(32, len(CsrIndex))),
                **{unit.name.lower(): Out(stream.Signature(Command)) for unit in Unit},
                "unit_busy": In(len(Unit)),
                "beats": In(stream.Signature(beat)),
                "cond": Out(Cond),
                "cond_lane": Out(5),
                "run": In(1),
                "dropped": Out(1),
                "token_lane": Out(5),
                "token": In(17),
                "running": Out(1),
                "done": Out(1),
                "error": Out(ErrorCode),
                "pc": Out(range(config.program_words)),
                "position": Out(32),
                "layer": Out(32),
                "waiting": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c = self._config

        halt = self.stop | self.abort
        boot = Boot(c)
        # A boot that was cut short must not wait for beats that never come.
        m.submodules.boot = ResetInserter(halt)(boot)
        m.submodules.program = program = memory.Memory(shape=8 * PROGRAM_BYTES, depth=c.program_words, init=[])
        m.submodules.registers = registers = memory.Memory(shape=32, depth=16, init=[])
        fill = program.write_port()
        fetch = program.read_port()
        write = registers.write_port()
        reads = [registers.read_port(domain="comb") for _ in range(4)]

        m.d.comb += [
            boot.image_base.eq(self.image_base),
            boot.model_hash.eq(self.model_hash),
            fill.en.eq(boot.write_en),
            fill.addr.eq(boot.write_addr),
            fill.data.eq(boot.write_data),
        ]

        # Decode: the word leaves the program memory, operands are read and added, all in one cycle.
        word = data.View(InstructionLayout.as_shape(), fetch.data)
        for read, name in zip(reads, ("ra", "rb", "rc", "rd"), strict=True):
            m.d.comb += read.addr.eq(word[name])
        ra, rb, rc, rd = (read.data for read in reads)

        ins = Signal(InstructionLayout)
        command = Signal(Command)
        value_a, value_b = Signal(32), Signal(32)
        index_c = Signal(4)
        next_pc = Signal.like(self.pc)
        taken, runs, is_set, advance = Signal(), Signal(), Signal(), Signal()
        outcome = Signal(34)
        pending = Signal()

        m.d.comb += [
            fetch.addr.eq(next_pc),
            next_pc.eq(Mux(taken, ins.imm, self.pc + 1)),
            self.cond.eq(ins.cond),
            self.cond_lane.eq(command.lane),
            self.token_lane.eq(value_a[:5]),
            write.addr.eq(index_c),
        ]

        result = Signal(32)
        writes = Signal()
        # r0 is never written and so reads as zero.
        m.d.comb += [write.data.eq(result), write.en.eq(writes & (index_c != 0))]
        with m.If(write.en & (index_c == self.LAYER_REGISTER)):
            m.d.sync += self.layer.eq(result)
        with m.If(write.en & (index_c == self.POSITION_REGISTER)):
            m.d.sync += self.position.eq(result)

        units = {unit: getattr(self, unit.name.lower()) for unit in Unit}
        for unit, port in units.items():
            if unit is not Unit.LOAD:
                m.d.comb += port.payload.eq(command)
        held, beat = Signal(), Signal.like(self.beats.payload)
        booting = Signal()
        load_valid = Signal()
        m.d.comb += [
            self.load.payload.eq(Mux(booting, boot.load.payload, command)),
            self.load.valid.eq(Mux(booting, boot.load.valid, load_valid)),
            boot.load.ready.eq(booting & self.load.ready),
            boot.beats.valid.eq(booting & held),
            boot.beats.payload.eq(beat),
        ]
        # A beat is taken before it is known who wants it: the FIFO that it comes from serves others, too.
        pop = Signal()
        m.d.comb += self.beats.ready.eq(~held)
        with m.If(self.beats.ready):
            m.d.sync += [held.eq(self.beats.valid), beat.eq(self.beats.payload)]
        with m.Elif(Mux(booting, boot.beats.ready, pop)):
            m.d.sync += held.eq(0)

        # A cycle late is early enough: an instruction takes two, so that a unit that got a command is seen at work by
        # the next one.
        busy = Signal(len(Unit))
        m.d.sync += busy.eq(self.unit_busy)
        blocked = (ins.wait & busy).any()

        with m.FSM() as fsm:
            m.d.comb += self.running.eq(~fsm.ongoing("IDLE"))
            with m.State("IDLE"):
                m.d.sync += held.eq(0)
                with m.If(self.start):
                    m.d.comb += boot.start.eq(1)
                    m.next = "BOOT"
            with m.State("BOOT"):
                m.d.comb += booting.eq(1)
                with m.If(halt):
                    m.next = "STOP"
                with m.Elif(boot.error != ErrorCode.NONE):
                    m.d.comb += self.error.eq(boot.error)
                    m.next = "IDLE"
                with m.Elif(boot.done):
                    m.d.comb += [fetch.en.eq(1), next_pc.eq(0)]
                    m.d.sync += [self.pc.eq(0), self.layer.eq(0), self.position.eq(0)]
                    m.next = "DECODE"
            with m.State("DECODE"):
                m.d.sync += [
                    ins.eq(word),
                    index_c.eq(word.rc),
                    value_a.eq(ra),
                    value_b.eq(rb),
                    command.a.eq(ra + word.imm),
                    command.b.eq(rb + word.n),
                    command.d.eq(rd + word.off),
                    command.lane.eq(rc),
                    command.func.eq(word.func),
                    command.shift.eq(word.shift),
                    command.eidx.eq(word.eidx),
                    command.bank.eq(word.bank),
                    command.map.eq(word.map),
                    command.tag.eq(word.tag),
                    command.layer.eq(self.layer),
                ]
                m.d.sync += pending.eq(0)
                m.d.sync += runs.eq(1)
                m.d.sync += [taken.eq(word.op == Op.JMP), is_set.eq(word.op == Op.SET)]
                m.next = "EXECUTE"
                with m.If((word.cond != Cond.ALWAYS) | word.op.matches(Op.BLT, Op.BGE, Op.BEQ)):
                    m.next = "JUDGE"
                with m.If(halt):
                    m.next = "STOP"
                with m.Elif(self.pc >= boot.words):
                    m.d.comb += self.error.eq(ErrorCode.BAD_INSTRUCTION)
                    m.next = "IDLE"
            with m.State("JUDGE"):
                # First the wait: the unit that is waited for may be the one that decides.
                m.d.sync += runs.eq(self.run)
                with m.Switch(ins.op):
                    for op, condition in (
                        (Op.BLT, value_a < value_b), (Op.BGE, value_a >= value_b), (Op.BEQ, value_a == value_b)
                    ):  # fmt: skip
                        with m.Case(op):
                            m.d.sync += taken.eq(condition)
                with m.If(halt):
                    m.next = "STOP"
                with m.Elif(blocked):
                    m.d.comb += self.waiting.eq(1)
                with m.Else():
                    m.next = "EXECUTE"
            with m.State("EXECUTE"):
                # The word behind, or where a branch goes; read anew until the instruction is done.
                m.d.comb += fetch.en.eq(1)
                with m.If(halt):
                    m.next = "STOP"
                with m.Elif(blocked):
                    m.d.comb += self.waiting.eq(1)
                with m.Elif(~runs):
                    m.d.comb += [advance.eq(1), self.dropped.eq(1), next_pc.eq(self.pc + 1)]
                with m.Else():
                    self._execute(m, ins, command, value_a, value_b, units, load_valid, result, writes, advance,
                                  pop, outcome, pending, is_set, held, beat)  # fmt: skip
                with m.If(advance):
                    m.d.sync += self.pc.eq(next_pc)
                    m.next = "DECODE"
            with m.State("STOP"):
                # One cycle, so that the reason of an abort is registered by the time that the host sees idle.
                m.next = "IDLE"
        return m

    def _execute(self, m, ins, command, value_a, value_b, units, load_valid, result, writes, advance, pop, outcome,
                 pending, is_set, held, beat) -> None:  # fmt: skip
        """Add the Switch over operations; runs while the instruction is neither dropped nor blocked."""

        def scalar(value, there=1) -> None:
            """Find the value in one cycle, write it in the next."""
            with m.If(~pending & there):
                m.d.sync += [outcome.eq(value), pending.eq(1)]

        m.d.comb += result.eq(Mux(is_set, command.a, outcome))
        with m.If(is_set | pending):
            m.d.comb += [writes.eq(1), advance.eq(1)]

        with m.Switch(ins.op):
            with m.Case(Op.NOP, Op.JMP, Op.BLT, Op.BGE, Op.BEQ):
                m.d.comb += advance.eq(1)
            with m.Case(Op.HALT):
                m.d.comb += self.done.eq(1)
                m.next = "IDLE"
            with m.Case(Op.TRAP):
                m.d.comb += self.error.eq(ErrorCode.TRAP)
                m.next = "IDLE"
            with m.Case(Op.SET):
                pass
            with m.Case(Op.ADD):
                scalar(value_a + value_b)
            with m.Case(Op.SUB):
                scalar(value_a - value_b)
            with m.Case(Op.AND):
                scalar(value_a & ins.imm)
            with m.Case(Op.SHR):
                scalar(value_a >> ins.n[:5])
            with m.Case(Op.MUL):
                scalar(value_a[:18] * ins.n)
            with m.Case(Op.CSR):
                with m.Switch(ins.n):
                    for index in CsrIndex:
                        with m.Case(index.value):
                            scalar(self.csr[index.value])
                    with m.Default():
                        m.d.comb += self.error.eq(ErrorCode.BAD_INSTRUCTION)
                        m.next = "IDLE"
            with m.Case(Op.POP):
                m.d.comb += [pop.eq(~pending), self.waiting.eq(pop & ~held)]
                scalar(Cat(beat[i] for i in range(4)), held)
            with m.Case(Op.TOK):
                scalar(self.token)
            for op in Op:
                if op.value < Op.LOAD.value:
                    continue
                with m.Case(op):
                    port = units[unit_of(op)]
                    m.d.comb += (load_valid if op is Op.LOAD else port.valid).eq(1)
                    m.d.comb += [advance.eq(port.ready), self.waiting.eq(~port.ready)]
            with m.Default():
                m.d.comb += self.error.eq(ErrorCode.BAD_INSTRUCTION)
                m.next = "IDLE"


