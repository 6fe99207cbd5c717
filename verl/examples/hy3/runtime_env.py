"""Print a Ray runtime environment as JSON: a YAML file plus the exported variables that NAMES lists.

    NAMES="MODEL_PATH NNODES" python verl/examples/hy3/runtime_env.py verl/examples/hy3/runtime_env.yaml

`working_dir` becomes absolute, from the current folder. Exit code 2 when the file is no such environment.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

NEVER = {"RAY_ADDRESS", "PYTHONPATH"}
"""RAY_ADDRESS means the job server here and the cluster there; PYTHONPATH comes from the file."""


def build(path: str | os.PathLike, environ: Mapping[str, str], folder: str | os.PathLike = ".") -> dict:
    """The environment for ``ray job submit``.

    Args:
        path: YAML file with ``working_dir``, ``excludes``, ``env_vars``.
        environ: variables; those in ``environ["NAMES"]`` that are set go into ``env_vars`` and win over the file.
        folder: what a relative ``working_dir`` starts from.

    Raises:
        ValueError: when the file is not a YAML object with text variables, or its working directory does not exist.
    """
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error
    if not isinstance(found, dict) or not isinstance(found.get("env_vars", {}), dict):
        raise ValueError(f"{path}: must be a YAML object; env_vars, when given, one too")
    variables = dict(found.get("env_vars") or {})
    wrong = [name for name, value in variables.items() if not isinstance(value, str)]
    if wrong:
        raise ValueError(f"{path}: env_vars must be texts; quote {', '.join(map(str, wrong))}")
    for name in environ.get("NAMES", "").split():
        if environ.get(name) and name not in NEVER:
            variables[name] = environ[name]
    working = str(found.get("working_dir", "./"))
    if "://" not in working:
        working = str((Path(folder) / working).resolve())
        if not Path(working).is_dir():
            raise ValueError(f"{path}: working_dir {working} is no folder")
    return {**found, "working_dir": working, "env_vars": variables}


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return 0 if len(sys.argv) == 2 else 2
    try:
        print(json.dumps(build(sys.argv[1], os.environ), indent=1))
    except ValueError as error:
        print(f"runtime_env: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
