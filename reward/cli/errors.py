"""Errors that a command-line tool reports in one line instead of a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any


class UsageError(Exception):
    """The tool cannot run: what is wrong, where, and the remedy. Ends in exit code 2."""


def reports_errors(run: Callable[[Any], int]) -> Callable[[Any], int]:
    """Let a subcommand end with a message on stderr: 2 when it cannot run, 130 when it is interrupted."""

    @wraps(run)
    def guarded(options: Any) -> int:
        try:
            return run(options)
        except UsageError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except BrokenPipeError:
            # The reader (head, less) has seen enough; nothing may be flushed into the closed pipe at exit either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except OSError as error:
            print(f"error: {error.filename or 'input or output'}: {error.strerror or error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("interrupted; what was finished is kept", file=sys.stderr)
            return 130

    return guarded
