# Amaranth has no types; its enumerations are those of Python with a shape.
import enum as _enum
from typing import Any

class Enum(_enum.Enum):  # type: ignore[misc]
    def __init_subclass__(cls, *, shape: Any = ..., view_class: Any = ...) -> None: ...
    @classmethod
    def as_shape(cls) -> Any: ...

class IntEnum(_enum.IntEnum):  # type: ignore[misc]
    def __init_subclass__(cls, *, shape: Any = ..., view_class: Any = ...) -> None: ...

class Flag(_enum.Flag):  # type: ignore[misc]
    def __init_subclass__(cls, *, shape: Any = ..., view_class: Any = ...) -> None: ...

auto = _enum.auto
