"""Variants of a component, made of its source: broken ones, and ones whose inner signals a proof can see."""

import inspect
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

#: Where every ``elaborate`` ends.
_END = "        return m\n"


def variant(
    original: Any,
    change: tuple[str, str] | None = None,
    observe: Callable[..., None] | None = None,
    names: Mapping[str, Any] | None = None,
) -> Any:
    """Return a class or function of the design, changed.

    Parameters
    ----------
    original
        The only one of its module with an ``elaborate``, if it is observed.
    change
        Text that stands in its module once, and what replaces it.
    observe
        Called at the end of ``elaborate`` with its module and its local variables: invariants by which an induction
        closes are about inner signals.
    names
        Replaced globals of its module: variants of what it uses.
    """
    home = sys.modules[original.__module__]
    source = inspect.getsource(home)
    changes = [] if change is None else [change]
    if observe is not None:
        changes.append((_END, "        _observe(m, locals())\n" + _END))
    for old, new in changes:
        assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in {home.__name__}"
        source = source.replace(old, new)
    module = types.ModuleType("variant")
    module.__package__ = home.__package__
    exec(compile(source, home.__file__ + " (variant)", "exec"), module.__dict__)  # noqa: S102
    module.__dict__.update({"_observe": observe} | dict(names or {}))
    return getattr(module, original.__name__)
