"""The `crossdraft` command: the group of its subcommands, and how errors look.

Knows which subcommands there are, and that a caller's error is one line (exit 2 where the command
line or a setting is at fault, else 1). Does not know what subcommands do. None of them imports
torch before it runs, so that --help is quick.
"""

from __future__ import annotations

from typing import IO, Any

import click

from cli.demo import demo
from cli.drafter import drafter
from cli.generate import generate
from cli.inspect_pair import inspect_pair
from cli.models import models
from cli.options.text import refuse_unwritable
from cli.verifier import verifier
from common.device import native
from common.errors import ConfigError, CrossdraftError


class OneLine(click.ClickException):
    """An error that is shown in one line, without the usage text."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"crossdraft: {self.message}", err=True, file=file)


class Misused(OneLine):
    """The command line or a setting is at fault."""

    exit_code = 2


class Commands(click.Group):
    """A group whose errors are one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            raise Misused(str(error)) from error
        except CrossdraftError as error:
            raise OneLine(str(error)) from error
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            raise Misused(error.format_message()) from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="crossdraft")
def main() -> None:
    """Speculative decoding as two services.

    A small model (the drafter) proposes tokens, a large one (the verifier) checks them, and the
    text is the large model's own. The two may have different tokenizers.

    \b
    crossdraft demo                      see it work
    crossdraft verifier                  serve the large model, then, in another terminal,
    crossdraft drafter                   serve the small one, and
    crossdraft generate --chat "Hello"   ask it
    """
    refuse_unwritable()
    native.settle()  # torch is loaded later, by the commands that need it


for command in (verifier, drafter, generate, models, inspect_pair, demo):
    main.add_command(command)
