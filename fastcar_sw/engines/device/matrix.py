"""A matrix board: the products of a model on a board, the rest in the twin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from boards.matrix.registers import MAGIC, MatrixRegister
from fastcar_hw.config import AcceleratorConfig

from ...image import matrix_tiles
from ...quantized import QuantizedLinear, QuantizedModel
from ...twin.linear import Activation
from ..link import EngineError, RequestError
from .link import DeviceLink

__all__ = ["BoardLinear", "MatrixBoard"]

#: Seconds that a product may take: at 12 MHz, the largest one that a memory of 128 KiB holds takes milliseconds.
_PATIENCE = 2


class MatrixBoard:
    """The memory and the matrix engine of a board whose kind is ``matrix``.

    Parameters
    ----------
    link
        The board.

    Attributes
    ----------
    products
        Matrices that were multiplied by a vector.

    Raises
    ------
    EngineError
        When it has no matrix engine.
    """

    def __init__(self, link: DeviceLink) -> None:
        self._link, self._config = link, link.config
        #: Byte address of every matrix that was loaded.
        self._places: dict[QuantizedLinear, int] = {}
        self._written: dict[MatrixRegister, int] = {}
        # The vector is at the beginning of the memory, its result behind it.
        self._result = 0
        self.products = 0
        found = link.read(MatrixRegister.MAGIC)
        if found != MAGIC:
            raise EngineError(f"matrix engine must have the identity {MAGIC:#010x}, not {found:#010x}")

    def load(self, model: QuantizedModel) -> None:
        """Write all matrices of a model.

        Raises
        ------
        ConfigError
            When the shapes do not fit the engine.
        RequestError
            When the matrices, a vector and its result do not fit the memory.
        """
        self._config.check_model(model.config)
        matrices = [matrix for _, matrix in model.matrices()]
        # The vector, its result, then the matrices, each from a beat on.
        self._result = _whole(max(matrix.weight.shape[1] for matrix in matrices), self._config)
        base = address = self._result + _whole(4 * max(matrix.weight.shape[0] for matrix in matrices), self._config)
        tiles = [matrix_tiles(matrix, self._config.cols) for matrix in matrices]
        needed = base + sum(map(len, tiles))
        if needed > self._link.memory_bytes:
            raise RequestError(
                f"the matrices of model {model.config.name!r} take {needed} bytes, but the board has "
                f"{self._link.memory_bytes}"
            )
        self._places = {}
        for matrix, raw in zip(matrices, tiles, strict=True):
            self._places[matrix] = address
            address += len(raw)
        self._link.write_memory(base, b"".join(tiles))

    def linear(self, parts: Sequence[QuantizedLinear], device: torch.device | str = "cpu") -> BoardLinear:
        """Return matrices that share their input, as `Twin` wants them.

        Raises
        ------
        EngineError
            When one of them was not loaded.
        """
        del device
        if any(part not in self._places for part in parts):
            raise EngineError("a matrix must be loaded before it is used")
        return BoardLinear(self, parts)

    def multiply(self, matrix: QuantizedLinear, values: np.ndarray, exponent: int) -> np.ndarray:
        """Multiply a loaded matrix by an int8 vector (K,) of an exponent; return int32 (out,).

        Raises
        ------
        EngineError
            When the board refuses, or does not end.
        """
        (out, width), beat = matrix.weight.shape, self._config.derived.beat_bytes
        self._link.write_memory(0, values.astype(np.int8).tobytes())
        for register, value in (
            (MatrixRegister.SHAPE, width | out // self._config.cols << 16),
            (MatrixRegister.VECTOR, 0),
            (MatrixRegister.MATRIX, self._places[matrix] // beat),
            (MatrixRegister.RESULT, self._result // beat),
        ):
            if self._written.get(register) != value:
                self._link.write(register, value)
                self._written[register] = value
        self._link.write(MatrixRegister.START, matrix.shift & 127 | (exponent & 255) << 8)
        if not self._link.wait(_PATIENCE * self._link.identity.clock_hz):
            raise EngineError(f"the matrix engine did not end a product of {out} x {width}")
        self.products += 1
        return np.frombuffer(self._link.read_memory(self._result, 4 * out), dtype="<i4")


class BoardLinear:
    """Matrices that share their input, multiplied by a board; called as `fastcar_sw.twin.linear.Linear` is.

    Parameters
    ----------
    board, parts
        Where, and what: their output channels are concatenated.
    """

    def __init__(self, board: MatrixBoard, parts: Sequence[QuantizedLinear]) -> None:
        self._board, self._parts = board, tuple(parts)

    def __call__(self, act: Activation) -> Tensor:
        """Return int64 (lanes, out), 32-bit values."""
        rows = [
            np.concatenate([self._board.multiply(part, values, int(exponent)) for part in self._parts])
            for values, exponent in zip(act.values.cpu().numpy(), act.exponent[:, 0], strict=True)
        ]
        return torch.from_numpy(np.stack(rows).astype(np.int64)).to(act.values.device)


def _whole(size: int, config: AcceleratorConfig) -> int:
    """Return the bytes of whole beats."""
    beat = config.derived.beat_bytes
    return -(-size // beat) * beat
