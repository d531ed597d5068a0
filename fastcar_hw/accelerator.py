"""The accelerator: all units, one AXI4 master, one AXI4-Lite slave."""

from amaranth.hdl import Module, Mux, ResetInserter, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from .config import AcceleratorConfig
from .drs.gate import Gate, GateTrace
from .errors import ErrorCode
from .isa import CsrIndex, LoadClass, Unit
from .memory.axi import AxiLiteSignature, AxiReadSignature, AxiWriteSignature
from .memory.beat_fifo import BeatFifo
from .memory.prefetcher import Prefetcher
from .memory.store_unit import StoreUnit
from .registers import RegisterBlock
from .registers_map import register_map
from .sampler import Sampler, TokenTrace
from .sequencer import Sequencer
from .systolic import MatrixUnit
from .systolic.words import TraceWord
from .vector import VectorUnit

__all__ = ["Accelerator"]


class Accelerator(wiring.Component):
    """A decoder that generates video tokens by itself.

    Parameters
    ----------
    config
        The accelerator.

    Attributes
    ----------
    read : Out, `AxiReadSignature`; write : Out, `AxiWriteSignature`
        The memory.
    host : In, `AxiLiteSignature`
        Registers (`registers_map.register_map`).
    irq : Out
        Interrupt, level.
    trace_matrix, trace_vector, trace_gate, trace_token : Out
        Only with ``config.trace``, for simulation: every word that a unit writes.

    Notes
    -----
    One clock domain, `sync`.  A start first waits until the memory side is quiet, then resets all units but the
    registers, so the engine can be started again after any error.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        c, g = config, config.derived
        ports = {
            "read": Out(AxiReadSignature(c.address_width, g.data_width)),
            "write": Out(AxiWriteSignature(c.address_width, g.data_width)),
            "host": In(AxiLiteSignature(register_map(c).addr_width)),
            "irq": Out(1),
        }
        if c.trace:
            ports |= {
                "trace_matrix": Out(TraceWord(c)),
                "trace_vector": Out(TraceWord(c)),
                "trace_gate": Out(GateTrace),
                "trace_token": Out(TokenTrace),
            }
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c = self._config

        registers = RegisterBlock(c)
        sequencer, matrix, vector, gate, sampler = Sequencer(c), MatrixUnit(c), VectorUnit(c), Gate(c), Sampler(c)
        beats, prefetcher, store = BeatFifo(c), Prefetcher(c), StoreUnit(c)
        flush, go = Signal(), Signal()
        restart = ResetInserter(flush)
        m.submodules.registers = registers
        m.submodules.prefetcher = prefetcher
        m.submodules.store = store
        m.submodules.gate = gate
        m.submodules.sequencer = sequencer
        m.submodules.beats = beats
        m.submodules.matrix = restart(matrix)
        m.submodules.vector = restart(vector)
        m.submodules.sampler = sampler

        connect(m, flipped(self.host), registers.axi)
        connect(m, prefetcher.axi, flipped(self.read))
        connect(m, store.axi, flipped(self.write))
        connect(m, prefetcher.o, beats.i)
        connect(m, beats.matrix, matrix.beats)
        connect(m, beats.vector, vector.beats)
        connect(m, beats.ctrl, sequencer.beats)
        connect(m, matrix.y_write, vector.y_write)
        connect(m, matrix.s_write, vector.s_write)
        connect(m, matrix.tas, gate.tas)
        connect(m, matrix.logits, sampler.logits)
        connect(m, vector.bytes, store.bytes)
        connect(m, matrix.places, gate.places)
        units = {
            Unit.LOAD: prefetcher, Unit.MATRIX: matrix, Unit.VECTOR: vector, Unit.STORE: store, Unit.GATE: gate,
            Unit.SAMPLE: sampler,
        }  # fmt: skip
        for unit, block in units.items():
            connect(m, getattr(sequencer, unit.name.lower()), block.command)
            m.d.comb += sequencer.unit_busy[unit.value].eq(block.busy)

        m.d.comb += [
            prefetcher.freed_count.eq(beats.freed_count),
            vector.ex_lane.eq(matrix.ex_lane),
            vector.ex_index.eq(matrix.ex_index),
            matrix.ex_exponent.eq(vector.ex_exponent),
            matrix.ex_scale.eq(vector.ex_scale),
            matrix.act_en.eq(vector.act_en),
            matrix.act_core.eq(vector.act_core),
            matrix.act_index.eq(vector.act_index),
            matrix.act_addr.eq(vector.act_addr),
            matrix.act_data.eq(vector.act_data),
            gate.place_lane.eq(vector.place_lane),
            gate.place_mapped.eq(vector.place_mapped),
            vector.place_core.eq(gate.place_core),
            vector.place_index.eq(gate.place_index),
            gate.cond.eq(sequencer.cond),
            gate.cond_lane.eq(sequencer.cond_lane),
            sequencer.run.eq(gate.run),
            sampler.token_lane.eq(sequencer.token_lane),
            sequencer.token.eq(sampler.token),
        ]
        self._settings(m, registers, sequencer, gate, sampler, prefetcher, store)
        self._control(m, registers, sequencer, gate, sampler, prefetcher, store, beats, flush, go)
        self._statistics(m, registers, sequencer, gate, matrix, vector, prefetcher, store, units)
        if c.trace:
            m.d.comb += [
                self.trace_matrix.eq(matrix.trace),
                self.trace_vector.eq(vector.trace),
                self.trace_gate.eq(gate.trace),
                self.trace_token.eq(sampler.trace),
            ]
            # What units still write after an error, until the next start resets them, is no part of a run.
            for trace in (self.trace_matrix, self.trace_vector, self.trace_gate, self.trace_token):
                with m.If(prefetcher.halt):
                    m.d.comb += trace.valid.eq(0)
        return m

    def _settings(self, m, registers, sequencer, gate, sampler, prefetcher, store) -> None:
        """Hand the registers to those who need them."""
        values = {
            CsrIndex.LANES: registers.lanes,
            CsrIndex.PROMPT: registers.prompt,
            CsrIndex.TOTAL: registers.total,
            CsrIndex.WARMUP: registers.warmup,
            CsrIndex.HEAD_ALL: registers.head_all,
            CsrIndex.IMAGE: registers.image_base,
            CsrIndex.HEAP: registers.heap_base,
        }
        for index, value in values.items():
            m.d.comb += sequencer.csr[index.value].eq(value)
        m.d.comb += [
            sequencer.image_base.eq(registers.image_base),
            sequencer.model_hash.eq(registers.model_hash),
            prefetcher.window_base.eq(registers.read_base),
            prefetcher.window_limit.eq(registers.read_limit),
            store.window_base.eq(registers.write_base),
            store.window_limit.eq(registers.write_limit),
            gate.kind.eq(registers.gate_kind),
            gate.definition.eq(registers.gate_definition),
            gate.static_map.eq(registers.gate_static_map),
            gate.lanes.eq(registers.lanes),
            sampler.topk.eq(registers.topk),
            sampler.inv_temperature.eq(registers.inv_temperature),
            sampler.temp_shift.eq(registers.temp_shift),
            sampler.seed.eq(registers.seed),
        ]
        connect(m, registers.thresholds, gate.thresholds)
        connect(m, registers.head_weights, gate.head_weights)
        connect(m, registers.eligible, gate.eligible_count)
        connect(m, registers.replayed, gate.replayed_count)

    def _control(self, m, registers, sequencer, gate, sampler, prefetcher, store, beats, flush, go) -> None:
        """Start, stop, errors."""
        bus_error = Signal(ErrorCode)
        m.d.sync += bus_error.eq(
            Mux(prefetcher.error != ErrorCode.NONE, prefetcher.error.as_value(), store.error.as_value())
        )
        with m.If(flush):
            m.d.sync += bus_error.eq(ErrorCode.NONE)
        active = Signal()
        # A stop is remembered until it has had its effect, wherever the start before it is.
        start, stop = Signal(), Signal()
        # The reason of a stop reaches the host while the engine still counts as running.
        error = Signal(ErrorCode)
        m.d.comb += registers.error.eq(error)
        m.d.sync += error.eq(ErrorCode.NONE)
        m.d.sync += [start.eq(registers.control_start), stop.eq(stop | registers.control_stop), flush.eq(0)]
        m.d.comb += [
            prefetcher.halt.eq(~active),
            store.halt.eq(~active),
            sequencer.start.eq(go),
            sequencer.stop.eq(stop),
            sequencer.abort.eq(bus_error != ErrorCode.NONE),
            sampler.start.eq(go),
            gate.clear.eq(registers.clear),
            prefetcher.clear.eq(flush),
            store.clear.eq(flush),
            beats.flush.eq(flush),
            self.irq.eq(registers.irq),
        ]
        with m.FSM() as fsm:
            m.d.comb += registers.status_running.eq(~fsm.ongoing("IDLE") | start)
            with m.State("IDLE"):
                m.d.sync += stop.eq(start & registers.control_stop)
                with m.If(start):
                    m.next = "SETTLE"
            with m.State("SETTLE"):
                # What an aborted run left on the bus drains first; then everything is fresh.
                with m.If(stop):
                    m.d.sync += error.eq(ErrorCode.STOPPED)
                    m.next = "WAIT_STOP"
                with m.Elif(prefetcher.quiet & store.quiet & ~gate.busy):
                    m.d.sync += flush.eq(1)
                    m.next = "FLUSH"
            with m.State("FLUSH"):
                m.next = "GO"
            with m.State("GO"):
                m.d.comb += [go.eq(1), active.eq(1)]
                m.next = "RUN"
            with m.State("RUN"):
                m.d.comb += active.eq(1)
                with m.If(sequencer.done):
                    m.d.comb += registers.done.eq(1)
                    m.next = "IDLE"
                with m.Elif(bus_error != ErrorCode.NONE):
                    m.d.sync += error.eq(bus_error)
                    m.next = "WAIT_STOP"
                with m.Elif(sequencer.error != ErrorCode.NONE):
                    m.d.sync += error.eq(sequencer.error)
                    m.next = "WAIT_STOP"
                with m.Elif(stop):
                    m.d.sync += error.eq(ErrorCode.STOPPED)
                    m.next = "WAIT_STOP"
            with m.State("WAIT_STOP"):
                with m.If(~sequencer.running):
                    m.next = "IDLE"
        m.d.comb += [
            registers.error_pc.eq(sequencer.pc),
            registers.error_address.eq(
                Mux(prefetcher.error != ErrorCode.NONE, prefetcher.error_address, store.error_address)
            ),
            registers.position.eq(sequencer.position),
            registers.layer.eq(sequencer.layer),
            registers.pc.eq(sequencer.pc),
            registers.status_busy.eq(sequencer.unit_busy),
        ]

    def _statistics(self, m, registers, sequencer, gate, matrix, vector, prefetcher, store, units) -> None:
        """Feed the counters."""
        del units
        # Counts arrive a cycle late, after their sums over many places.
        m.d.sync += [
            registers.count_stall_beats.eq(matrix.starved),
            registers.count_stall_drain.eq(matrix.held),
            registers.count_stall_sequencer.eq(sequencer.waiting),
            registers.count_stall_fifo.eq(prefetcher.full),
            registers.count_beats_written.eq(store.beat_strobe),
            registers.count_macs.eq(matrix.macs),
            registers.count_drs_cycles.eq(gate.scheduling),
            registers.count_saturations.eq(matrix.saturated + vector.saturated),
            registers.count_dropped.eq(sequencer.dropped),
        ]
        for kind in LoadClass:
            count = getattr(registers, f"count_beats_{kind.name.lower()}")
            m.d.sync += count.eq(prefetcher.beat_strobe & (prefetcher.beat_class == kind))
