"""The report of a build, for people."""

from __future__ import annotations

from ..catalogue import BoardSpec
from .bitstream import BuildResult, SeedResult

__all__ = ["table_row", "to_markdown"]


def table_row(result: BuildResult) -> str:
    """Return the row of a table of boards: board, configuration, clock, resources."""
    best = result.best
    uses = " | ".join(f"{use['used']:,} ({use['used'] / use['available']:.0%})" for use in best.resources.values())
    clock = min(best.clocks.values(), key=lambda clock: clock["achieved_hz"] / clock["constraint_hz"])
    return (
        f"| {result.board} | {result.configuration} | {clock['constraint_hz'] / 1e6:g} MHz | "
        f"{clock['achieved_hz'] / 1e6:.1f} MHz | {uses} |"
    )


def to_markdown(spec: BoardSpec, result: BuildResult) -> str:
    """Return the report of a build."""
    best, config = result.best, spec.config
    lines = [
        f"# {spec.title}",
        "",
        f"Device {spec.part}, accelerator `{config.name}` ({config.cores} cores of {config.rows} x {config.cols} "
        f"elements, {config.lanes} lanes, vector unit of {config.vector_width}), hardware {result.hardware}.",
        "",
        f"**The clock is {'met' if result.met else 'MISSED'}.** Bitstream of seed {best.seed}.",
        "",
        "| clock | constraint | achieved |",
        "|---|---|---|",
        *(
            f"| {name} | {clock['constraint_hz'] / 1e6:.2f} MHz | {clock['achieved_hz'] / 1e6:.2f} MHz |"
            for name, clock in best.clocks.items()
        ),
        "",
        "| resource | used | available | share |",
        "|---|---|---|---|",
        *(
            f"| {column} | {use['used']:,} | {use['available']:,} | {use['used'] / use['available']:.1%} |"
            for column, use in best.resources.items()
        ),
        "",
        _path(best),
        "",
        "| seed | least ratio of achieved to needed clock | seconds |",
        "|---|---|---|",
        *(f"| {seed.seed} | {seed.slack:.3f} | {seed.seconds:,.0f} |" for seed in result.seeds),
        "",
        f"Synthesis took {result.seconds:,.0f} s.  Tools: "
        + ", ".join(f"{name} {version}" for name, version in result.tools.items())
        + ".",
        "",
    ]
    return "\n".join(lines)


def _path(best: SeedResult) -> str:
    path = best.critical_path
    if not path:
        return "There is no path between registers."
    return (
        f"The longest path goes from `{path['from']}` to `{path['to']}`: {path['delay_ns']} ns through {path['cells']} "
        f"cells, of which {path['logic_ns']} ns are logic and the rest is routing."
    )
