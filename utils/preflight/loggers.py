"""Does verl know the loggers, and are they installed?"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from utils.preflight.context import Context
from utils.preflight.results import NotChecked, Result, failed, passed, some, warned

MODULES = {
    "wandb": "wandb",
    "mlflow": "mlflow",
    "swanlab": "swanlab",
    "tensorboard": "tensorboard",
    "clearml": "clearml",
    "trackio": "trackio",
}
KEYS = {"wandb": "WANDB_API_KEY", "swanlab": "SWANLAB_API_KEY"}


def supported_backends() -> list[str]:
    """verl's loggers, from its source: importing verl takes seconds. Raises NotChecked when they are not found."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise NotChecked("verl is not installed")
    source = Path(spec.submodule_search_locations[0]) / "utils/tracking.py"
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "supported_backend":
            return list(ast.literal_eval(node.value))
    raise NotChecked(f"{source} lists no loggers")


def check(context: Context) -> list[Result]:
    name, results = "loggers.backends", []
    known = supported_backends()
    for logger in context.settings.loggers:
        module = MODULES.get(logger)
        if logger not in known:
            results.append(failed(name, f"LOGGERS names {logger!r}; verl has {some(known, 12)}", "correct LOGGERS"))
        elif module and importlib.util.find_spec(module) is None:
            remedy = f"pip install {module}, or take {logger} out of LOGGERS"
            results.append(failed(name, f"the logger {logger} is not installed", remedy))
        elif logger in KEYS and not _has_key(context, logger):
            found = f"no {KEYS[logger]} for the logger {logger}: it asks for a login, which a job cannot answer"
            results.append(warned(name, found, f"export {KEYS[logger]}, or take {logger} out of LOGGERS"))
    return results or [passed(name, some(context.settings.loggers, 8))]


def _has_key(context: Context, logger: str) -> bool:
    offline = context.environ.get(f"{logger.upper()}_MODE") in ("offline", "disabled", "local")
    return offline or KEYS[logger] in context.environ or (Path.home() / ".netrc").is_file()
