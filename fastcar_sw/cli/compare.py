"""``fastcar compare``: the RTL and the twin make the same video, and every integer is compared."""

from __future__ import annotations

import dataclasses

from ..compare import Comparator, Comparison
from .common import CheckFailed, Reporter, json_text
from .outputs import Outputs
from .run_options import ENGINES, RunOptions, takes_run_options
from .running import RunResult, run_hardware, run_twin, show_run, write_run
from .tables import plain, result_console

__all__ = ["compare"]


@takes_run_options
def compare(options: RunOptions) -> None:
    """Run an image on simulated hardware and on the twin, and compare every integer.

    Writes tokens.npy and counters.json of the hardware, and comparison.json.  A difference ends with exit code 1.
    """
    request = options.request(tuple(name for name in ENGINES if name != "twin"))
    with Outputs(options.out, options.json_file) as outputs, Reporter() as reporter:
        vcd = None if options.vcd is None else outputs.file(options.vcd)
        comparator = Comparator(run_twin(request, reporter, trace=True))
        run = run_hardware(request, options.engine, reporter, vcd=vcd, sink=comparator.feed)
        comparison = comparator.finish(run)
        found = write_run(outputs, request, RunResult.of_hardware(options.engine, run))
        verdict = _verdict(comparison)
        outputs.text("comparison.json", json_text(verdict))
        outputs.result({**found, "comparison": verdict, "out": options.out})
    console = result_console(options.json_file)
    show_run(console, found)
    if comparison.difference is not None:
        raise CheckFailed(str(comparison.difference))
    console.print(
        f"RTL and twin agree: {plain(comparison.integers)} integers of {plain(comparison.operations)} operations, "
        f"{plain(comparison.decisions)} decisions, {plain(comparison.tokens)} tokens",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip


def _verdict(comparison: Comparison) -> dict[str, object]:
    difference = comparison.difference
    return {
        "operations": comparison.operations,
        "integers": comparison.integers,
        "decisions": comparison.decisions,
        "tokens": comparison.tokens,
        "mismatches": comparison.mismatches,
        "difference": None if difference is None else dataclasses.asdict(difference),
    }
