"""Settings: a TOML file, the environment and flags -> one frozen dataclass.

A setting is declared once, as a dataclass field made by `setting`; from it come the flag, the
environment variable, the TOML key, the help text and the range check. Precedence: flag,
environment, file, default. What is misspelt in any of them is refused, with the closest known name.
Knows how settings are read. Does not know which settings there are (verifier/config.py,
drafter/config.py) and what they do.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from common.errors import ConfigError
from common.settings.numbers import Number, Range

# What a TOML file may hold: table name -> the dataclass that the table fills.
Sections = Mapping[str, type]

# Kubernetes puts the addresses of a Service named crossdraft-verifier into the environment under
# the same prefix as our settings.
_KUBERNETES = re.compile(
    r"CROSSDRAFT_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
)
_PREFIX = "CROSSDRAFT_"
_OTHERS = ("CROSSDRAFT_ADDRESS", "CROSSDRAFT_CACHE", "CROSSDRAFT_CONFIG")  # of no section


def setting(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """A dataclass field with what its flag, its help and its check need.

    Annotate it with a Literal for one of a few words, with `| None` where None is a value. A number
    has both a minimum and a maximum.
    """
    limits = None if minimum is None or maximum is None else Range(minimum, maximum)
    metadata = {"help": help, "range": limits}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class _Setting:
    """One setting, as read from its dataclass field."""

    name: str
    default: Any
    kind: type
    optional: bool  # None is a value
    choices: tuple[str, ...]  # empty: any value
    help: str
    range: Range | None  # of a number, always

    @property
    def flag_type(self) -> Any:
        """What click makes of its flag and its variable."""
        if self.choices:
            return click.Choice(self.choices)
        if self.range is None:
            return self.kind
        return Number(self.kind, self.range.minimum, self.range.maximum)

    def check(self, where: str, value: Any) -> None:
        """Refuse a value of the wrong type or outside the range, saying `where` it is."""
        accepted: tuple[type, ...] = (int, float) if self.kind is float else (self.kind,)
        if not isinstance(value, accepted) or (isinstance(value, bool) and self.kind is not bool):
            raise ConfigError(f"{where} is {value!r}; it must be of type {self.kind.__name__}")
        if isinstance(value, str):
            _check_text(where, value)
        limit = f"one of {', '.join(self.choices)}" if self.choices else f"{self.range}"
        if not self._allows(value):
            raise ConfigError(f"{where} is {value!r}; it must be {limit}")

    def _allows(self, value: Any) -> bool:
        in_range = self.range is None or value in self.range
        return in_range and (not self.choices or value in self.choices)


def check(config: Any) -> None:
    """Refuse values of the wrong type or outside their range; for a dataclass's __post_init__."""
    for each in _settings(type(config)):
        value = getattr(config, each.name)
        if value is None and each.optional:
            continue
        each.check(each.name, value)


def options(section: str, sections: Sections) -> Callable[[Any], Any]:
    """Decorate a click command with `--config` and one flag for each setting of `section`."""

    def decorate(command: Any) -> Any:
        for each in reversed(_settings(sections[section])):
            command = _option(section, each)(command)
        return _config_option(section, sections)(command)

    return decorate


def _option(section: str, each: _Setting) -> Any:
    name = each.name.replace("_", "-")
    return click.option(
        f"--{name}/--no-{name}" if each.kind is bool else f"--{name}",
        each.name,
        type=each.flag_type,
        default=each.default,
        envvar=env_name(section, each.name),
        show_envvar=True,
        show_default=each.default is not None,
        help=each.help,
    )


def _config_option(section: str, sections: Sections) -> Any:
    def read(context: click.Context, _: click.Parameter, path: Path | None) -> None:
        refuse_unknown_environment(os.environ, sections)
        if path is not None:
            # click looks here after flags and environment, before defaults.
            context.default_map = read_file(path, sections).get(section, {})

    return click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="CROSSDRAFT_CONFIG",
        show_envvar=True,
        is_eager=True,
        expose_value=False,
        callback=read,
        help="TOML file with the same settings in a table "
        f"[{section}]; it may hold {' and '.join(f'[{name}]' for name in sections)}.",
    )


def env_name(section: str, name: str) -> str:
    """The environment variable of one setting."""
    return f"{_PREFIX}{section}_{name}".upper()


def read_file(path: Path, sections: Sections) -> dict[str, dict[str, Any]]:
    """The tables of a TOML file, every key known and every value one that its setting can have."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as cause:  # ValueError: also an endless number
        raise ConfigError(f"can't read {path}: {cause}") from cause
    for table, values in tables.items():
        if table not in sections or not isinstance(values, dict):
            what = f"[{table}]" if isinstance(values, dict) else f"{table!r} outside of a table"
            raise ConfigError(f"{path}: unknown {what}{_closest(table, sections)}")
        known = {each.name: each for each in _settings(sections[table])}
        for key, value in values.items():
            if key not in known:
                raise ConfigError(f"{path}: unknown key {table}.{key}{_closest(key, known)}")
            known[key].check(f"{path}: {table}.{key}", value)
    return tables


def refuse_unknown_environment(environ: Mapping[str, str], sections: Sections) -> None:
    """A misspelt variable would be a setting that silently doesn't hold."""
    known = {
        section: [env_name(section, each.name) for each in _settings(config)]
        for section, config in sections.items()
    }
    everything = {*_OTHERS, *(name for names in known.values() for name in names)}
    for variable in sorted(environ):
        if not variable.startswith(_PREFIX) or variable in everything:
            continue
        if _KUBERNETES.fullmatch(variable):
            continue
        for section, names in known.items():
            if variable.startswith(env_name(section, "")):
                raise ConfigError(
                    f"unknown environment variable {variable}{_closest(variable, names)}"
                )
        close = difflib.get_close_matches(variable, everything, n=1, cutoff=0.8)
        tables = [f"{env_name(section, '')}…" for section in known]
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join([*_OTHERS, *tables])}"
        raise ConfigError(f"unknown environment variable {variable}; {hint}")


def _settings(config: type) -> list[_Setting]:
    hints = typing.get_type_hints(config)
    found = []
    # What a service alone has before what it shares, as the constructor takes them.
    for field in sorted(dataclasses.fields(config), key=lambda field: field.kw_only is True):
        hint = hints[field.name]
        optional = isinstance(hint, types.UnionType)
        if optional:
            (hint,) = (kind for kind in typing.get_args(hint) if kind is not type(None))
        choices = typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()
        kind = str if choices else hint
        assert (kind in (int, float)) == (field.metadata["range"] is not None), field.name
        found.append(_Setting(field.name, field.default, kind, optional, choices, **field.metadata))
    return found


def _check_text(where: str, value: str) -> None:
    """Bytes of a flag or a variable that are no text come as lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError as cause:
        raise ConfigError(f"{where} is {value!r}; it must be UTF-8") from cause


def _closest(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
