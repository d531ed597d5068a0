"""The table of runs for the terminal."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from .columns import COLUMNS
from .data import ReportData

__all__ = ["run_table"]


def run_table(report: ReportData) -> Table:
    """Return a table with a row a run and the columns of the page, about 100 characters wide.

    Parameters
    ----------
    report
        What to show.

    Returns
    -------
    rich.table.Table
        To print with a rich console.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column(Text("run"), no_wrap=True, overflow="ellipsis", max_width=18)
    for column in COLUMNS:
        # Where the terminal is too narrow, the names give way, not the numbers.
        widest = max(len(text) for run in report.runs for text in column.short_text(report, run).split())
        table.add_column(Text(column.short, justify="right"), justify="right", no_wrap=True, min_width=widest)
    for run in report.runs:
        style = "bold red" if run.mismatches else ""
        # Texts, not strings: a name in brackets is no mark-up.
        table.add_row(Text(run.title), *(Text(column.short_text(report, run)) for column in COLUMNS), style=style)
    return table
