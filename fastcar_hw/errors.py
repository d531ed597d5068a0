"""Error codes that the engine reports in its error register."""

from amaranth.lib import enum

__all__ = ["ErrorCode"]


class ErrorCode(enum.Enum, shape=8):
    """Why the engine stopped.  The host finds code, address and program counter in the registers."""

    NONE = 0
    BAD_MAGIC = 1  #: the image does not start with the magic word
    BAD_VERSION = 2  #: image of another format version
    BAD_CONFIG = 3  #: image compiled for other hardware
    BAD_MODEL = 4  #: image of another model than the host expects
    PROGRAM_SIZE = 5  #: the program is empty or does not fit the program memory
    BAD_INSTRUCTION = 6  #: unknown operation code, or the program ran past its end
    TRAP = 7  #: the program stopped itself (token out of the vocabulary)
    STOPPED = 8  #: the host asked for it
    READ_WINDOW = 16  #: read outside its window, or misaligned
    READ_BUS = 17  #: error response to a read
    WRITE_WINDOW = 18  #: write outside its window, or misaligned
    WRITE_BUS = 19  #: error response to a write
