"""Entry point: subcommands, and the exit code of each kind of ending."""

from __future__ import annotations

import signal
import sys
import warnings

import typer
from amaranth.hdl import UnusedElaboratable
from rich.console import Console

from fastcar_hw.config import ConfigError
from fastcar_hw.export import ToolError
from fastcar_hw.isa import ProgramError

from ..engines.link import EngineError, RequestError
from ..gates import GateError
from ..image import ImageError
from ..model import ModelError
from ..sampling import SamplingError
from ..train import TrainError
from ..video.clips import ClipError
from ..video.io import VideoError
from ..video.tokenizer import TokenizerError
from . import build, compare, demo, generate, info, quantize, run, simulate, train
from .common import CheckFailed, UsageError

__all__ = ["main"]

#: Bad usage or input: one line, exit code 2.
_BAD_INPUT = (
    ClipError, ConfigError, GateError, ImageError, ModelError, ProgramError, RequestError, SamplingError,
    TokenizerError, ToolError, TrainError, UsageError, VideoError,
)  # fmt: skip

#: Exit code after Ctrl-C.
_INTERRUPTED = 130

app = typer.Typer(
    name="fastcar", add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
    help="FPGA accelerators for auto-regressive video models, with a bit-exact twin.",
)  # fmt: skip
for _command in (demo.demo, generate.generate, info.info, simulate.simulate, compare.compare, train.train,
                 quantize.quantize, build.build, run.run):
    app.command()(_command)


@app.callback()
def _group() -> None:
    """Keep subcommands even while there is only one."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit: 0 success, 1 a check failed, 2 bad usage or input, 130 interrupted."""
    # A job manager's request to end is Ctrl-C by another name: what is half-written goes away.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    sys.exit(run_command(arguments))


def run_command(arguments: list[str] | None = None) -> int:
    """Run the command and return the exit code."""
    try:
        result = app(args=arguments, standalone_mode=False)
    except typer.Exit as ending:
        return ending.exit_code
    except typer.TyperException as error:
        # Without a subcommand the help was shown, and there is no message.
        message = error.format_message()
        return _end(message, 2) if message else 2
    except typer.Abort:
        return _end("interrupted", _INTERRUPTED)
    except _BAD_INPUT as error:
        return _end(str(error), 2)
    except CheckFailed as error:
        return _end(str(error), 1)
    except EngineError as error:
        return _end(f"engine stopped: {error}", 1)
    except KeyboardInterrupt:
        return _end("interrupted", _INTERRUPTED)
    except BrokenPipeError:
        return 1
    except OSError as error:
        # Files that vanish or fill up; everything else that can go wrong with one has its own message.
        return _end(f"{error.filename or 'file'}: {error.strerror or error}", 2)
    # Typer catches Ctrl-C, too, and gives this code.
    if result == _INTERRUPTED:
        return _end("interrupted", _INTERRUPTED)
    return result if isinstance(result, int) else 0


def _end(message: str, code: int) -> int:
    """Print one line on standard error and return the exit code."""
    if code == _INTERRUPTED:
        # A design whose elaboration was cut short is nobody's mistake.
        warnings.simplefilter("ignore", UnusedElaboratable)
    Console(stderr=True, soft_wrap=True).print(f"fastcar: error: {' '.join(message.split())}", markup=False,
                                               highlight=False)  # fmt: skip
    return code
