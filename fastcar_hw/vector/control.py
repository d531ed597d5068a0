"""Pass control: the steps of a pass, and the functions at its end."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..isa import Command
from ..numerics.divider import Reciprocal
from ..numerics.rsqrt import ReciprocalSqrt
from .configure import PassConfiguration
from .decode import PassTraits
from .pipeline import PassSettings
from .words import ExponentEntry

__all__ = ["PassControl"]


class PassControl(wiring.Component):
    """Take commands one after another, and run each as look-up, header, settings, words, end.

    Attributes
    ----------
    pending : In; command : In, `isa.Command`; traits : In, `PassTraits`
        The pass at the head of the queue.
    finish : Out
        Strobe in the last cycle of the pass: the command leaves the queue.
    restart : Out
        Counters and accumulators of a pass are cleared.
    clear : Out
        The sum that this pass makes is cleared.
    run : Out; done : In
        Words are issued; the last result is written, and no reduction is under way.
    settings : Out, `PassSettings`
        For the pipeline, while words run.
    send_header : Out; header_sent : In; header : Out, u5
        Exponent for the store unit.
    skip : Out; skipped : In; skip_header : In, u5
        Beat in front of a replayed vector; the exponent in it.
    drop : Out
        Strobe: what is left of the last beat is not wanted.
    settling : In
        Maxima of the scores are not final yet.
    largest : In, u32; square_sum : In, u48; exp_sum : In, u32; ve_largest : In, u5
        Reductions of the pass; largest exponent of V in the bank.
    x_largest : In, u32
        XMAX of the lane.
    x_write, entry_write : Out; entry : Out, `ExponentEntry`
        Strobes: ``largest`` is the new XMAX; new entry of the exponent file.

    Notes
    -----
    `CYCLES` beside those with ``run``, ``send_header`` or ``skip`` waiting; `ROOT` more for the reciprocal square root,
    `DIVISION` less the bits of the sum for the reciprocal of a softmax.
    """

    CYCLES = 5
    ROOT = 1 + ReciprocalSqrt.LATENCY
    #: The divider shifts one position a cycle, then makes 17 bits of quotient.
    DIVISION = 52

    pending: In(1)
    command: In(Command)
    traits: In(PassTraits)
    finish: Out(1)
    restart: Out(1)
    clear: Out(1)
    run: Out(1)
    done: In(1)
    settings: Out(PassSettings)
    send_header: Out(1)
    header_sent: In(1)
    header: Out(5)
    skip: Out(1)
    skipped: In(1)
    skip_header: In(5)
    drop: Out(1)
    settling: In(1)
    largest: In(32)
    square_sum: In(48)
    exp_sum: In(32)
    ve_largest: In(5)
    x_largest: In(32)
    x_write: Out(1)
    entry_write: Out(1)
    entry: Out(ExponentEntry)

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        cmd, traits = self.command, self.traits
        m.submodules.configuration = configuration = PassConfiguration()
        m.submodules.rsqrt = rsqrt = ReciprocalSqrt()
        m.submodules.reciprocal = reciprocal = Reciprocal()

        largest = Signal(32)  # A of the law: of the last pass that kept it
        skipped_header = Signal(5)
        m.d.comb += [
            configuration.command.eq(cmd),
            configuration.largest.eq(largest),
            configuration.x_largest.eq(self.x_largest),
            configuration.header.eq(skipped_header),
            configuration.r.eq(rsqrt.r),
            configuration.h.eq(rsqrt.h),
            self.settings.eq(configuration.settings),
            self.header.eq(configuration.e8),
        ]
        with m.If(traits.sends_mantissas):
            m.d.comb += self.header.eq(configuration.e16)

        # Epsilon is ready long before the sum that it is added to.
        epsilon, scaled_epsilon, total = Signal(40), Signal(40), Signal(48)
        m.d.sync += [epsilon.eq(cmd.a << cmd.eidx[:4]), scaled_epsilon.eq(epsilon >> (configuration.x_e16 << 1))]
        m.d.comb += [
            rsqrt.v.eq(total),
            reciprocal.x.eq(self.exp_sum),
            self.entry.exponent.eq(configuration.e8),
        ]
        with m.If(traits.reads_scores):
            m.d.comb += [
                self.entry.exponent.eq(configuration.e8 + self.ve_largest - reciprocal.bits),
                self.entry.scale.eq(reciprocal.o),
            ]

        with m.FSM():
            with m.State("ACCEPT"):
                # What the pass before left is looked up while nothing moves.
                m.d.comb += [self.restart.eq(1), configuration.look_up.eq(1)]
                with m.If(self.pending & ~(self.settling & traits.reads_scores)):
                    m.next = "HEADER"
            with m.State("HEADER"):
                m.d.comb += [
                    self.clear.eq(1),
                    self.send_header.eq(traits.sends_bytes | traits.sends_mantissas),
                    self.skip.eq(traits.skips_header),
                ]
                m.d.sync += skipped_header.eq(self.skip_header)
                with m.If((~self.send_header | self.header_sent) & (~self.skip | self.skipped)):
                    m.next = "CONFIGURE"
            with m.State("CONFIGURE"):
                m.d.comb += configuration.configure.eq(1)
                m.next = "RUN"
            with m.State("RUN"):
                m.d.comb += self.run.eq(1)
                with m.If(self.done):
                    m.next = "REDUCE"
            with m.State("REDUCE"):
                m.d.comb += self.drop.eq(traits.streams)
                m.d.sync += total.eq(self.square_sum + scaled_epsilon)
                m.next = "FINISH"
                with m.If(traits.sums_squares):
                    m.next = "ROOT"
                with m.If(traits.sums_exps):
                    m.d.comb += reciprocal.start.eq(1)
                    m.next = "DIVIDE"
            with m.State("ROOT"):
                m.d.comb += rsqrt.start.eq(1)
                m.next = "ROOT_WAIT"
            with m.State("ROOT_WAIT"):
                with m.If(rsqrt.done):
                    m.next = "FINISH"
            with m.State("DIVIDE"):
                with m.If(reciprocal.done):
                    m.next = "FINISH"
            with m.State("FINISH"):
                with m.If(traits.keeps_largest):
                    m.d.sync += largest.eq(self.largest)
                m.d.comb += [
                    self.x_write.eq(traits.writes_x),
                    self.entry_write.eq(traits.writes_act),
                    self.finish.eq(1),
                ]
                m.next = "ACCEPT"
        return m
