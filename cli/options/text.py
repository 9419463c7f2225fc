"""Text that the command line takes and gives, and what becomes of bytes that are none.

Python hands over undecodable bytes of the command line and the environment as lone surrogates,
which no message can hold. Knows encodings, and which of them are refused. Does not know what a text
is for.
"""

from __future__ import annotations

import codecs
import io
import sys
from typing import Any

import click

from common.errors import ConfigError

_ON_UNWRITABLE = "crossdraft-refuse"  # name of an error handler, as Python's "strict" is one


class Text(click.ParamType):
    """An argument or a variable that must be text."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError as cause:
            byte = ord(text[cause.start]) & 0xFF
            self.fail(f"character {cause.start} is the byte 0x{byte:02x}; it must be UTF-8")
        return text


def standard_input() -> str:
    """All of it, without a byte order mark. Raises ConfigError."""
    if sys.stdin is None:  # as after `<&-`
        raise ConfigError("standard input is closed; it must be UTF-8 text")
    try:
        return click.open_file("-", encoding="utf-8-sig").read()
    except UnicodeDecodeError as cause:
        byte = cause.object[cause.start]
        raise ConfigError(
            f"standard input has the byte 0x{byte:02x} at {cause.start}; it must be UTF-8"
        ) from cause
    except OSError as cause:
        raise ConfigError(f"can't read standard input: {cause.strerror}") from cause


def refuse_unwritable() -> None:
    """From now on, what standard output's encoding can't hold raises ConfigError, whoever writes.

    Here rather than around each write, since rich and click write as well. An error handler that
    the user chose (PYTHONIOENCODING=ascii:replace) stays.
    """
    codecs.register_error(_ON_UNWRITABLE, _refuse)
    if sys.stdout is None:  # as after `>&-`
        sys.stdout = io.StringIO()
    elif isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors=_ON_UNWRITABLE)


def holds_everything(encoding: str | None) -> bool:
    """Whether an encoding has all characters."""
    return (encoding or "").lower().replace("-", "").startswith("utf")


def _refuse(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    character = error.object[error.start]
    raise ConfigError(
        f"standard output's encoding is {error.encoding}, which has no {character!a}; it must be "
        "one that has, as PYTHONIOENCODING=utf-8 makes it"
    ) from None
