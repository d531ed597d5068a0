"""The columns of the table of runs, for the page and for the terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .bound import bound_of_run
from .data import ReportData, RunData
from .formats import compact, count, decimal, percent, tenths, times

__all__ = ["COLUMNS", "Column"]

#: What a column shows of a run.
Value = Callable[[ReportData, RunData], float | None]


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes
    ----------
    group, title, short
        Heading that neighbours share; heading; heading in the terminal, where every character counts.
    value
        The number.
    write, write_short
        How it is written.
    meaning
        One sentence for those who do not know the word.
    """

    group: str
    title: str
    short: str
    value: Value
    write: Callable[[float | None], str]
    write_short: Callable[[float | None], str]
    meaning: str

    def text(self, report: ReportData, run: RunData) -> str:
        """Return what the page shows."""
        return self.write(self.value(report, run))

    def short_text(self, report: ReportData, run: RunData) -> str:
        """Return what the terminal shows."""
        return self.write_short(self.value(report, run))


def _of_bound(report: ReportData, run: RunData) -> float | None:
    bound = bound_of_run(report, run)
    return None if bound is None else run.speedup / bound


def _short_percent(value: float | None) -> str:
    return percent(value).removesuffix("\N{NO-BREAK SPACE}%")


def _quality(name: str) -> Value:
    return lambda report, run: run.quality.get(name)


COLUMNS: tuple[Column, ...] = (
    Column("Time", "Cycles", "cycles", lambda d, r: r.cycles, count, compact, "Clock cycles of the whole run."),
    Column("Time", "Speed-up", "speed\nup", lambda d, r: r.speedup, times, times,
           "Cycles of the dense run over those of this one."),
    Column("Time", "Of the bound", "%\nbound", _of_bound, percent, _short_percent,
           "Speed-up over the largest one that the run's own decisions allow."),
    Column("Replay ratio", "Eligible", "%rep.\nelig.", lambda d, r: r.replay_ratio_eligible, percent, _short_percent,
           "Replayed MLPs over those that were allowed to be replayed."),
    Column("Replay ratio", "All", "%rep.\nall", lambda d, r: r.replay_ratio_all, percent, _short_percent,
           "Replayed MLPs over all."),
    Column("Utilisation", "Bandwidth", "%\nbus", lambda d, r: r.bandwidth_utilisation, percent, _short_percent,
           "Beats read over cycles."),
    Column("Utilisation", "MACs", "%\nMACs", lambda d, r: r.mac_utilisation, percent, _short_percent,
           "Multiply-accumulates over processing elements times cycles."),
    Column("Utilisation", "DRS cycles", "DRS\ncycles", lambda d, r: r.drs_cycles, count, compact,
           "Cycles in which the scheduler worked, hidden behind other work or not."),
    Column("Compared with the twin", "Operations", "opera-\ntions", lambda d, r: r.operations_compared, count, compact,
           "Operations whose results were compared."),
    Column("Compared with the twin", "Integers", "inte-\ngers", lambda d, r: r.integers_compared, count, compact,
           "Single integers that were compared."),
    Column("Compared with the twin", "Tokens", "to-\nkens", lambda d, r: r.tokens_compared, count, compact,
           "Tokens that were compared."),
    Column("Compared with the twin", "Mismatches", "mis-\nmatch", lambda d, r: r.mismatches, count, compact,
           "Differences that were found."),
    Column("Quality", "Cross-entropy", "cross\nentr.", _quality("cross_entropy"), decimal, decimal,
           "Nats a token; lower is better."),
    Column("Quality", "Accuracy", "%\nacc.", _quality("accuracy"), percent, _short_percent,
           "Share of the tokens that are right."),
    Column("Quality", "PSNR, dB", "PSNR\ndB", _quality("psnr"), tenths, tenths,
           "Nearness of the pictures; higher is better."),
)  # fmt: skip
