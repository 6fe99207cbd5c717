"""Target of ``actor_rollout_ref.model.external_lib``: refuses to go on with an incomplete adaptation.

verl imports this in the driver, every FSDP worker, every agent-loop worker and the vLLM server actor, before it loads
the model's tokenizer and processor, and lets its errors propagate.
"""

from __future__ import annotations

from verl_hyocr import __version__, registry, versions


def check() -> str:
    """Verify versions and adaptations in this process.

    Returns:
        The one-line status that start-up logs print.

    Raises:
        registry.AdaptationError: with every problem and the remedy.
    """
    if not registry.steps():
        raise registry.AdaptationError(
            "verl-hyocr is installed but its verl plugin did not run. Unset VERL_USE_EXTERNAL_PLUGINS (or include "
            "'hyocr') and check `python -c 'import verl_hyocr.bootstrap'`."
        )
    found = registry.problems()
    bad_versions = versions.mismatches()
    if other_fork := versions.fork_mismatch():
        bad_versions.append(other_fork)
    if bad_versions and not versions.mismatch_allowed():
        found += [f"{line} (set {versions.ALLOW_ENV}=1 to try anyway)" for line in bad_versions]
    if found:
        raise registry.AdaptationError("verl-hyocr is not active:\n  - " + "\n  - ".join(found))
    off = sorted(registry.disabled_steps())
    suffix = f" (disabled by {registry.DISABLE_ENV}: {' '.join(off)})" if off else ""
    import verl

    return (
        f"verl-hyocr {__version__} on verl {verl.__version__}: {' '.join(registry.active_adaptations())} active{suffix}"
    )


status = check()
print(status, flush=True)
