"""The one kind of number that a flag, a variable and a file may give: finite, and within a range.

Knows how a number is read and refused, and bounds that many share. Does not know which numbers
there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import click
from click.core import ParameterSource

MAX_COUNT = 2**31 - 1  # what a 32-bit field holds
MIN_S = 0.001
MAX_S = 2_000_000  # 23 days: in milliseconds, which gRPC takes many in, it still fits 31 bits
# Of what both services have; far above what a machine holds, so that a slip is refused by name.
MAX_SESSIONS = 65_536
MAX_ROWS = 2**20  # of one forward pass
MAX_MIB = 2**24
MAX_PAGE_SIZE = 4096
MAX_THREADS = 1024


@dataclass(frozen=True)
class Range:
    """Both ends are within it."""

    minimum: float
    maximum: float

    def __contains__(self, value: float) -> bool:
        return self.minimum <= value <= self.maximum  # never NaN

    def __str__(self) -> str:
        return f"from {self.minimum} to {self.maximum}"


class Number(click.FloatRange):
    """A flag's number, in a range; click's own ranges let NaN pass, and have no end."""

    def __init__(self, kind: type, minimum: float, maximum: float) -> None:
        """kind: int or float."""
        super().__init__(minimum, maximum)  # for --help, which shows the range
        self.name = "integer" if kind is int else "float"
        self._kind = kind
        self._range = Range(minimum, maximum)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | float:
        try:
            number: int | float = self._kind(value)
        except (ValueError, OverflowError):
            self._refuse(value, param, ctx)
        if number not in self._range:
            self._refuse(value, param, ctx)
        return number

    def _refuse(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> NoReturn:
        kind = "a whole number" if self._kind is int else "a number"
        name = _given_as(param, ctx)
        raise click.UsageError(f"{name} is {value}; it must be {kind} {self._range}", ctx)


def _given_as(param: click.Parameter | None, ctx: click.Context | None) -> str:
    """The flag, or the variable where the value is from there."""
    if param is None:
        return "the value"
    from_environment = ParameterSource.ENVIRONMENT
    if ctx is not None and ctx.get_parameter_source(param.name or "") is from_environment:
        names = [param.envvar] if isinstance(param.envvar, str) else param.envvar or ()
        return next(iter(names), param.opts[0])
    return param.opts[0]
