"""Ctrl-C at moments that can take it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["held_interrupts"]


@contextmanager
def held_interrupts() -> Iterator[Callable[[], None]]:
    """Let Ctrl-C wait.

    Yields a function that raises `KeyboardInterrupt` if there was one; so does the end of the context.  Outside of the
    main thread, which is the one that Ctrl-C interrupts, nothing happens.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    waiting: list[int] = []

    def check() -> None:
        if waiting:
            waiting.clear()
            raise KeyboardInterrupt

    old = signal.signal(signal.SIGINT, lambda number, _: waiting.append(number))
    try:
        yield check
    finally:
        # What was installed by something else than Python cannot be put back.
        signal.signal(signal.SIGINT, signal.default_int_handler if old is None else old)
    check()
