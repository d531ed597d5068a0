"""The ``fastcar`` command: one file a subcommand."""

from .app import main

__all__ = ["main"]
