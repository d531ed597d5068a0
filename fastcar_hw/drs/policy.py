"""Names of the replay policies, as the registers encode them (docs/numerics.md, section 11)."""

from amaranth.lib import enum

__all__ = ["Definition", "GateKind"]


class GateKind(enum.Enum, shape=3):
    """Who decides between replay and compute.  Values 4 to 7 are reserved and compute."""

    NEVER = 0  #: always compute
    ALWAYS = 1  #: replay whatever is eligible
    TAS = 2  #: compare the temporal attention score with the threshold of the layer
    FORCED = 3  #: a recorded decision, bit per lane, 1 = compute


class Definition(enum.Enum, shape=1):
    """Which temporal attention score, and how it is compared."""

    PAPER = 0  #: rotated query; replay when score >= threshold
    REFERENCE_CODE = 1  #: raw query; replay when score > threshold
