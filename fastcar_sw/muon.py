"""Muon: momentum whose update is made orthogonal, for the matrices of hidden layers.

PyTorch has it since 2.9; older versions get the one here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Muon", "make_muon", "orthogonalize"]

#: Quintic iteration that moves all singular values into about 0.7..1.2, and its number of steps.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5


def orthogonalize(matrix: Tensor, eps: float = 1e-7) -> Tensor:
    """Return a matrix with the singular vectors of ``matrix`` and singular values near 1."""
    a, b, c = _COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + eps)
    for _ in range(_STEPS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, made orthogonal.

    Parameters
    ----------
    params
        Matrices (out, in).
    lr
        Learning rate; multiplied with sqrt(max(1, out / in)).
    weight_decay
        Decoupled.
    momentum
        Share of the old momentum.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float = 0.02, weight_decay: float = 0.0, momentum: float = 0.95
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step along the gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state: dict[str, Any] = self.state[p]
                momentum = state.setdefault("momentum", torch.zeros_like(p))
                momentum.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalize(p.grad.lerp(momentum, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)
        return loss


def make_muon(params: Iterable[Tensor], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Return PyTorch's Muon where it exists, else the one of this module; their steps are the same rule."""
    builtin = getattr(torch.optim, "Muon", None)
    if builtin is not None:
        return builtin(params, lr=lr, weight_decay=weight_decay)
    return Muon(params, lr=lr, weight_decay=weight_decay)
