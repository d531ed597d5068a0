"""Dynamic resource scheduling: replay decisions, mapping of lanes to cores, dispatch."""

from .dispatcher import Dispatcher
from .gate import Gate, GateTrace
from .model import DrsModel
from .policy import Definition, GateKind
from .scheduler import Scheduler
from .window import WindowSignature

__all__ = [
    "Definition",
    "Dispatcher",
    "DrsModel",
    "Gate",
    "GateKind",
    "GateTrace",
    "Scheduler",
    "WindowSignature",
]
