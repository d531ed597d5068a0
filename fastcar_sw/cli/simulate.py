"""``fastcar simulate``: an image makes a video."""

from __future__ import annotations

from .common import Reporter
from .outputs import Outputs
from .run_options import RunOptions, takes_run_options
from .running import RunResult, run_hardware, run_twin, show_run, write_run
from .tables import result_console

__all__ = ["simulate"]


@takes_run_options
def simulate(options: RunOptions) -> None:
    """Run an image on simulated hardware, or on the twin.

    Writes tokens.npy, int64 (lanes, positions), and counters.json.
    """
    request = options.request()
    with Outputs(options.out, options.json_file) as outputs, Reporter() as reporter:
        if options.engine == "twin":
            result = RunResult.of_twin(run_twin(request, reporter))
        else:
            vcd = None if options.vcd is None else outputs.file(options.vcd)
            result = RunResult.of_hardware(options.engine, run_hardware(request, options.engine, reporter, vcd=vcd))
        found = write_run(outputs, request, result)
        outputs.result({**found, "out": options.out})
    console = result_console(options.json_file)
    show_run(console, found)
    console.print(f"Tokens and counters: {options.out}", markup=False, highlight=False, soft_wrap=True)
