"""The ``outrider`` command: collects the commands, turns errors into one line and an exit code.

Exit codes: 0 done, 1 the thing checked does not hold, 2 bad usage. Commands import what they need when they run, so
that ``--help`` is instant.
"""

from __future__ import annotations

import errno
import logging
import os
import sys

import typer

from outrider.cli import audit, bench, chat, demo, doctor, generate, pull, serve

_OUTPUT_ERRORS = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)

app = typer.Typer(
    name="outrider",
    help="Run language models with exact speculative decoding.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich help costs a third of a second
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("serve")(serve.serve)
app.command("pull")(pull.pull)
app.command("doctor")(doctor.doctor)
app.add_typer(audit.app, name="audit")
app.add_typer(bench.app, name="bench")


@app.callback(invoke_without_command=True)
def _options(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Log what the engine does, and show tracebacks."),
) -> None:
    """Run language models with exact speculative decoding."""
    if version:
        from outrider import __version__

        typer.echo(__version__)
        raise typer.Exit
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if verbose:
        os.environ["OUTRIDER_TRACEBACK"] = "1"


def main() -> None:
    """Entry point of the console script."""
    from outrider.errors import OutriderError, UserError

    try:
        try:
            app()
        except SystemExit:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a full disk can still be told
            raise
    except (OutriderError, OSError, UnicodeEncodeError) as error:
        if isinstance(error, BrokenPipeError):
            # Whoever read our output has gone; that is not an error of ours.
            _silence_stdout()
            sys.exit(0)
        if os.environ.get("OUTRIDER_TRACEBACK"):
            raise
        if not isinstance(error, OutriderError):
            _silence_stdout()
        typer.echo(f"outrider: error: {_message(error)}", err=True)
        sys.exit(2 if isinstance(error, UserError | UnicodeEncodeError) else 1)
    except KeyboardInterrupt:
        typer.echo("outrider: interrupted", err=True)
        sys.exit(130)


def _message(error: Exception) -> str:
    """What happened, on one line."""
    if isinstance(error, UnicodeEncodeError):
        text = error.object[error.start : error.end][:20]
        return f"the output can not be written as {error.encoding}, which lacks {text!r}; set PYTHONIOENCODING=utf-8"
    if not isinstance(error, OSError):
        return str(error)
    reason = error.strerror or str(error)
    if error.filename is not None:
        return f"{error.filename}: {reason}"
    return f"the output can not be written: {reason}" if error.errno in _OUTPUT_ERRORS else reason


def _silence_stdout() -> None:
    """Send what stdout still holds nowhere, so that it does not fail again when the process ends."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
