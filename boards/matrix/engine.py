"""The matrix engine: fetches a vector and a matrix, multiplies, and writes the result back."""

from amaranth.hdl import Module, Signal, signed, unsigned
from amaranth.lib import data, fifo, wiring
from amaranth.lib.wiring import In, Out

from fastcar_hw.config import AcceleratorConfig, ConfigError
from fastcar_hw.isa import Map, MatMode
from fastcar_hw.systolic import MatrixUnit

from .port import PortSignature

__all__ = ["MatrixEngine", "Product"]


class Product(data.StructLayout):
    """A matrix times a vector.

    ``steps``: K, a positive multiple of the columns and no longer than the activation memory; 1 or more ``tiles``:
    output channels over columns; ``vector``, ``matrix``, ``result``: word addresses of K bytes, of the tiles as an
    image has them, and of 32-bit values; ``shift`` and ``exponent`` as in docs/numerics.md, section 6: a result is
    ``rsat(acc * scale, shift - exponent)``.
    """

    def __init__(self, depth: int) -> None:
        super().__init__(
            {
                "steps": unsigned(16),
                "tiles": unsigned(16),
                "vector": range(depth),
                "matrix": range(depth),
                "result": range(depth),
                "shift": signed(7),
                "exponent": signed(8),
            }
        )


class MatrixEngine(wiring.Component):
    """A matrix unit between one port of a memory.

    Parameters
    ----------
    config
        An accelerator of one lane; of it, only the matrix unit is made.
    depth
        Words of the memory; a word is a beat.

    Attributes
    ----------
    product : In, `Product`; start : In
        What to do; it must stay while ``busy``.  ``start`` is a strobe while not ``busy``.
    busy : Out
        From the cycle after ``start`` until the last result was written.
    port : Out, `PortSignature`
        The memory.
    grant : In
        The port may be used in this cycle.

    Raises
    ------
    ConfigError
        When the configuration has several lanes, or a word of results is no whole number of beats.

    Notes
    -----
    A beat a cycle, less what the results take: at most ``steps / vector_width + tiles * (steps + 3 + 4 *
    vector_width)`` cycles and `START` more.
    """

    #: Cycles beside the beats: beginnings of the two reads, first beat of the unit, drain of the last tile.
    START = 40
    #: Beats that are read ahead.
    AHEAD = 8

    def __init__(self, config: AcceleratorConfig, depth: int) -> None:
        if config.lanes != 1:
            raise ConfigError(f"lanes must be 1 in a matrix engine, not {config.lanes!r}")
        if 4 * config.vector_width < config.cols:
            raise ConfigError(
                f"vector_width must be at least cols/4={config.cols // 4} in a matrix engine, "
                f"not {config.vector_width!r}"
            )
        self._config, self._depth = config, depth
        super().__init__(
            {
                "product": In(Product(depth)),
                "start": In(1),
                "busy": Out(1),
                "port": Out(PortSignature(depth, config.derived.data_width)),
                "grant": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c = self._config
        product = self.product
        m.submodules.unit = unit = MatrixUnit(c)
        m.submodules.ahead = ahead = fifo.SyncFIFOBuffered(width=c.derived.data_width, depth=self.AHEAD)
        room, put_back = Signal(), Signal()
        begin_vector, begin_matrix, reading = Signal(), Signal(), Signal()

        # Reads: as many beats as were asked for, while there is room for the one that is on its way, too.
        place, left, tiles = Signal(range(self._depth)), Signal(16), Signal(16)
        arriving = Signal()
        m.d.comb += [
            room.eq(ahead.w_level + arriving < self.AHEAD - 1),
            reading.eq(self.grant & ~put_back & room & (left != 0)),
            ahead.w_data.eq(self.port.r_data),
            ahead.w_en.eq(arriving),
        ]
        m.d.sync += arriving.eq(reading)
        with m.If(begin_vector):
            m.d.sync += [place.eq(product.vector), left.eq(product.steps >> (c.cols.bit_length() - 1))]
        with m.Elif(begin_matrix):
            m.d.sync += [place.eq(product.matrix), tiles.eq(product.tiles)]
        with m.Elif(reading):
            m.d.sync += [place.eq(place + 1), left.eq(left - 1)]
        with m.Elif((left == 0) & (tiles != 0)):
            # Two beats of scales begin a tile.
            m.d.sync += [tiles.eq(tiles - 1), left.eq(product.steps + 2)]

        # Writes come first: nothing can be lost, and the unit drains.
        beats_a_word = 4 * c.vector_width // c.cols
        y = unit.y_write
        part = Signal(range(beats_a_word))
        m.d.comb += [
            put_back.eq(y.valid),
            self.port.en.eq(self.grant & (put_back | reading)),
            self.port.addr.eq(place),
            self.port.w_data.eq(y.payload.data.as_value().word_select(part, c.derived.data_width)),
            y.ready.eq(self.grant & (part == beats_a_word - 1)),
        ]
        with m.If(put_back):
            m.d.comb += [
                self.port.write.eq(-1),
                self.port.addr.eq(product.result + y.payload.addr * beats_a_word + part),
            ]
            with m.If(self.grant):
                m.d.sync += part.eq(part + 1)
                with m.If(y.ready):
                    m.d.sync += part.eq(0)

        # The vector goes into the array's activation memory, a part of a beat a cycle.
        words = c.cols // c.vector_width
        turn, address = Signal(range(words)), Signal(range(c.derived.act_depth))
        m.d.comb += [
            unit.act_addr.eq(address),
            unit.act_data.as_value().eq(ahead.r_data.word_select(turn, 8 * c.vector_width)),
            unit.ex_exponent.eq(product.exponent),
            unit.places.static_count[0].eq(1),
            unit.command.payload.a.eq(product.steps),
            unit.command.payload.b.eq(product.tiles),
            unit.command.payload.shift.eq(product.shift),
            unit.command.payload.func.eq(MatMode.LINEAR.value),
            unit.command.payload.map.eq(Map.STATIC),
            unit.beats.stream.payload.eq(ahead.r_data),
        ]
        with m.FSM() as fsm:
            m.d.comb += self.busy.eq(~fsm.ongoing("IDLE"))
            with m.State("IDLE"):
                m.d.sync += [turn.eq(0), address.eq(0)]
                with m.If(self.start):
                    m.d.comb += begin_vector.eq(1)
                    m.next = "VECTOR"
            with m.State("VECTOR"):
                m.d.comb += unit.act_en.eq(ahead.r_rdy)
                with m.If(ahead.r_rdy):
                    m.d.sync += [turn.eq(turn + 1), address.eq(address + c.vector_width)]
                    with m.If(turn == words - 1):
                        m.d.comb += ahead.r_en.eq(1)
                        m.d.sync += turn.eq(0)
                        with m.If(address + c.vector_width == product.steps):
                            m.next = "COMMAND"
            with m.State("COMMAND"):
                m.d.comb += [unit.command.valid.eq(1), begin_matrix.eq(unit.command.ready)]
                with m.If(unit.command.ready):
                    m.next = "MULTIPLY"
            with m.State("MULTIPLY"):
                m.d.comb += [
                    unit.beats.stream.valid.eq(ahead.r_rdy),
                    ahead.r_en.eq(unit.beats.stream.ready),
                ]
                with m.If(~unit.busy):
                    m.next = "IDLE"
        return m
