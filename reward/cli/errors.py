"""Errors that a command-line tool reports in one line instead of a traceback."""

from __future__ import annotations

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
        except OSError as error:
            print(f"error: {error.filename or 'input or output'}: {error.strerror or error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("interrupted; what was finished is kept", file=sys.stderr)
            return 130

    return guarded
