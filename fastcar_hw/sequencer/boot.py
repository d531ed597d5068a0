"""Boot loader: verifies the header of a memory image and fills the program memory."""

from amaranth.hdl import Const, Module, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..config import AcceleratorConfig
from ..errors import ErrorCode
from ..isa import PROGRAM_BYTES, Command, Dest, LoadClass

__all__ = ["Boot", "ImageHeader"]


class ImageHeader:
    """Word offsets and constants of the 64-byte image header (little-endian 32-bit words)."""

    BYTES = 64
    MAGIC = b"FCARIMG1"
    VERSION = 1
    MAGIC_WORD = 0  #: two words
    VERSION_WORD = 2
    PROGRAM_WORDS_WORD = 3
    CONFIG_HASH_WORD = 4  #: two words
    MODEL_HASH_WORD = 6  #: two words
    PROGRAM_OFFSET_WORD = 8
    IMAGE_BYTES_WORD = 9
    HEAP_BYTES_WORD = 10
    CRC_WORD = 15


class Boot(wiring.Component):
    """Load header and program of the image at ``image_base``.

    The header is compared with the hardware's own hash and with the model hash that the host wrote, so a
    stranger's image stops here, before a single instruction runs.

    Parameters
    ----------
    config
        The accelerator.

    Attributes
    ----------
    start : In
        Strobe; begins with the header.
    image_base : In, ``address_width`` bits
        Byte address of the image.
    model_hash : In, 64 bits
        Model that the host expects.
    load : Out, stream of `isa.Command`
        Descriptors for the prefetcher.
    beats : In, stream of beats
        What the prefetcher delivers for `Dest.CTRL`.
    write : Out
        ``en``, ``addr``, ``data`` (128 bits) of the program memory.
    words : Out
        Number of instructions, valid after ``done``.
    busy, done, error : Out
        ``done`` is a strobe; ``error`` is an `ErrorCode`, valid (not NONE) for one cycle.

    Notes
    -----
    Takes two memory latencies plus four cycles an instruction.
    """

    def __init__(self, config: AcceleratorConfig) -> None:
        self._config = config
        beat = data.ArrayLayout(unsigned(8), config.derived.beat_bytes)
        super().__init__(
            {
                "start": In(1),
                "image_base": In(config.address_width),
                "model_hash": In(64),
                "load": Out(stream.Signature(Command)),
                "beats": In(stream.Signature(beat)),
                "write_en": Out(1),
                "write_addr": Out(range(config.program_words)),
                "write_data": Out(8 * PROGRAM_BYTES),
                "words": Out(range(config.program_words + 1)),
                "busy": Out(1),
                "done": Out(1),
                "error": Out(ErrorCode),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Build the module."""
        del platform
        m = Module()
        c, g = self._config, self._config.derived
        words_per_beat = g.beat_bytes // 4

        # Beats are taken apart into 32-bit words, whatever the width of the memory is.
        beat = Signal(g.data_width)
        left = Signal(range(words_per_beat + 1))
        word = beat[:32]
        have = left != 0
        take = Signal()
        reading = Signal()
        m.d.comb += self.beats.ready.eq(reading & ~have)
        with m.If(self.beats.valid & self.beats.ready):
            m.d.sync += [beat.eq(self.beats.payload.as_value()), left.eq(words_per_beat)]
        with m.Elif(take):
            m.d.sync += [beat.eq(beat >> 32), left.eq(left - 1)]

        index = Signal(4)
        count = Signal.like(self.words)
        part = Signal(2)
        instruction = Signal(8 * PROGRAM_BYTES)
        offset = Signal(32)
        verdict = Signal(ErrorCode)

        command = self.load.payload
        m.d.comb += command.func.eq(Dest.CTRL.value | LoadClass.CONTROL.value << 2)

        magic = int.from_bytes(ImageHeader.MAGIC, "little")
        expected = {
            ImageHeader.MAGIC_WORD: (Const(magic & 0xFFFFFFFF, 32), ErrorCode.BAD_MAGIC),
            ImageHeader.MAGIC_WORD + 1: (Const(magic >> 32, 32), ErrorCode.BAD_MAGIC),
            ImageHeader.VERSION_WORD: (Const(ImageHeader.VERSION, 32), ErrorCode.BAD_VERSION),
            ImageHeader.CONFIG_HASH_WORD: (Const(c.hash & 0xFFFFFFFF, 32), ErrorCode.BAD_CONFIG),
            ImageHeader.CONFIG_HASH_WORD + 1: (Const(c.hash >> 32, 32), ErrorCode.BAD_CONFIG),
            ImageHeader.MODEL_HASH_WORD: (self.model_hash[:32], ErrorCode.BAD_MODEL),
            ImageHeader.MODEL_HASH_WORD + 1: (self.model_hash[32:], ErrorCode.BAD_MODEL),
        }

        with m.FSM() as fsm:
            m.d.comb += self.busy.eq(~fsm.ongoing("WAIT"))
            with m.State("WAIT"):
                with m.If(self.start):
                    m.d.sync += [left.eq(0), index.eq(0), verdict.eq(ErrorCode.NONE)]
                    m.next = "ASK_HEADER"
            with m.State("ASK_HEADER"):
                m.d.comb += [
                    command.a.eq(self.image_base),
                    command.b.eq(-(-ImageHeader.BYTES // g.beat_bytes)),
                    self.load.valid.eq(1),
                ]
                with m.If(self.load.ready):
                    m.next = "CHECK_HEADER"
            with m.State("CHECK_HEADER"):
                m.d.comb += [reading.eq(1), take.eq(have)]
                with m.If(have):
                    m.d.sync += index.eq(index + 1)
                    with m.Switch(index):
                        for number, (value, code) in expected.items():
                            with m.Case(number):
                                # The first mismatch names the cause: a stranger's file is reported as that,
                                # not as a wrong version.
                                with m.If((word != value) & (verdict == ErrorCode.NONE)):
                                    m.d.sync += verdict.eq(code)
                        with m.Case(ImageHeader.PROGRAM_WORDS_WORD):
                            m.d.sync += self.words.eq(word)
                            with m.If(((word == 0) | (word > c.program_words)) & (verdict == ErrorCode.NONE)):
                                m.d.sync += verdict.eq(ErrorCode.PROGRAM_SIZE)
                        with m.Case(ImageHeader.PROGRAM_OFFSET_WORD):
                            m.d.sync += offset.eq(word)
                    with m.If(index == ImageHeader.BYTES // 4 - 1):
                        m.next = "JUDGE"
            with m.State("JUDGE"):
                # Words that fill up the last beat of a wide memory are dropped.
                m.d.sync += [left.eq(0), count.eq(0), part.eq(0)]
                with m.If(verdict == ErrorCode.NONE):
                    m.next = "ASK_PROGRAM"
                with m.Else():
                    m.d.comb += self.error.eq(verdict)
                    m.next = "WAIT"
            with m.State("ASK_PROGRAM"):
                size = self.words * PROGRAM_BYTES
                m.d.comb += [
                    command.a.eq(self.image_base + offset),
                    command.b.eq((size + g.beat_bytes - 1) >> (g.beat_bytes.bit_length() - 1)),
                    self.load.valid.eq(1),
                ]
                with m.If(self.load.ready):
                    m.next = "FILL"
            with m.State("FILL"):
                m.d.comb += [reading.eq(1), take.eq(have)]
                with m.If(have):
                    m.d.sync += [instruction.eq(self.write_data), part.eq(part + 1)]
                    m.d.comb += self.write_data.eq((instruction >> 32) | (word << (8 * PROGRAM_BYTES - 32)))
                    with m.If(part == PROGRAM_BYTES // 4 - 1):
                        m.d.comb += [self.write_en.eq(1), self.write_addr.eq(count)]
                        m.d.sync += count.eq(count + 1)
                        with m.If(count == self.words - 1):
                            m.next = "FINISH"
            with m.State("FINISH"):
                m.d.comb += self.done.eq(1)
                m.d.sync += left.eq(0)
                m.next = "WAIT"
        return m
