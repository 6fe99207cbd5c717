"""The rules of :mod:`utils.preflight.megatron` as checks of the preflight."""

from __future__ import annotations

from utils.preflight import megatron
from utils.preflight.context import Context
from utils.preflight.results import NotChecked, Result, failed, passed


def check(context: Context) -> list[Result]:
    """One result per rule; a rule's name becomes ``megatron.<name>`` with underscores."""
    known = {}
    try:
        known["gpu_gib"] = context.gpu_bytes / 2**30
        known["host_gib"] = min(node["memory"][0] for node in context.nodes if "memory" in node) / 2**30
    except NotChecked:
        pass
    try:
        settings = megatron.settings_from_environment(context.environ, **known)
    except ValueError as error:
        return [failed("megatron.settings", str(error), "correct the variable or the folder that is named")]
    results = []
    for rule in megatron.check_all(settings):
        name = "megatron." + rule.name.replace(" ", "_").replace("-", "_")
        results.append(passed(name, rule.message) if rule.ok else failed(name, rule.message, rule.remedy))
    return results
