"""Judge a finished Hy3 run: actor/rollout gap, gradients, frozen routing bias, and the exported checkpoint.

    python verl/examples/hy3/report_run.py OUTPUT_DIR/PROJECT/EXPERIMENT --start MODEL_PATH [--max-gap 0.015] [--json]

Reads metrics.jsonl and, when there is one, the newest checkpoint's huggingface folder. Exit codes: 0 all well, 1 something is
not, 2 nothing to judge.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

GAP = "training/rollout_probs_diff_mean"


def read_steps(run: Path) -> dict[int, dict]:
    """Step -> metrics of the training steps in ``metrics.jsonl``.

    Raises:
        ValueError: when there are none.
    """
    path = run / "metrics.jsonl"
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); was the run started with the file logger?") from error
    steps = {record["step"]: record["data"] for record in records if "training/global_step" in record["data"]}
    if not steps:
        raise ValueError(f"{path} has no training step")
    return steps


def newest_export(run: Path) -> Path | None:
    """The newest checkpoint's folder with HuggingFace weights, or None."""
    folders = sorted(run.glob("ckpt/global_step_*"), key=lambda folder: int(folder.name.rsplit("_", 1)[1]))
    for folder in reversed(folders):
        for candidate in (folder / "actor/huggingface", folder / "actor"):
            if any(candidate.glob("*.safetensors")):
                return candidate
    return None


def load_weights(folder: Path) -> dict:
    from safetensors.torch import load_file

    return {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}


def compare_weights(start: Path, export: Path) -> dict:
    """What training did to the weights: names that differ, biases that changed, tensors that moved."""
    import torch

    before, after = load_weights(start), load_weights(export)
    biases = [name for name in before if name.endswith("mlp.expert_bias")]
    return {
        "tensors": len(before),
        "missing": sorted(set(before) - set(after)),
        "unknown": sorted(set(after) - set(before)),
        "biases": len(biases),
        "changed_biases": [name for name in biases if name in after and not torch.equal(before[name], after[name])],
        "moved": sum(name in after and not torch.equal(before[name], after[name]) for name in before),
    }


def reload_export(export: Path) -> dict:
    """Load the export in transformers and run it once.

    Returns:
        ``{"loads": True}``, or the error's text under ``"error"``.
    """
    # A config without sizes would mean the released ones: 295B parameters.
    try:
        config = json.loads((export / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return {"loads": False, "error": f"config.json: {error}"}
    if config.get("model_type") != "hy_v3" or not {"hidden_size", "num_hidden_layers", "num_experts"} <= set(config):
        return {"loads": False, "error": "config.json is not Hy3's: model_type or sizes are missing"}
    import torch
    from transformers.models.hy_v3 import HYV3ForCausalLM

    try:
        model = HYV3ForCausalLM.from_pretrained(export, dtype="float32").eval()
        with torch.no_grad():
            finite = bool(torch.isfinite(model(torch.arange(16)[None]).logits).all())
    except Exception as error:  # whatever loading raises is the finding
        return {"loads": False, "error": f"{type(error).__name__}: {error}"}
    return {"loads": finite, "error": "" if finite else "logits are not finite"}


def judge(run: Path, start: Path | None, max_gap: float, reload: bool = True) -> dict:
    """The report; ``failures`` lists what is wrong, empty when all is well.

    Raises:
        ValueError: when the run has no training step.
    """
    steps = read_steps(run)
    gaps = {step: metrics.get(GAP) for step, metrics in steps.items()}
    report = {
        "run": str(run),
        "steps": len(steps),
        "gap_mean": gaps,
        "grad_norm": {step: metrics.get("actor/grad_norm") for step, metrics in steps.items()},
        "score_mean": {step: metrics.get("critic/score/mean") for step, metrics in steps.items()},
        "failures": [],
    }
    fail = report["failures"].append
    if any(gap is None for gap in gaps.values()):
        fail(f"no {GAP} in some steps: is rollout.calculate_log_probs on?")
    worst = max((gap for gap in gaps.values() if gap is not None), default=None)
    if worst is not None and not worst < max_gap:
        fail(f"actor and rollout differ: {GAP} is {worst:.4g}, expected below {max_gap}")
    if not any(norm for norm in report["grad_norm"].values()):
        fail("no step had a gradient")
    export = newest_export(run)
    report["export"] = str(export) if export else None
    if export and start:
        report["weights"] = compare_weights(start, export)
        if report["weights"]["missing"] or report["weights"]["unknown"]:
            fail("the export has other tensors than the start checkpoint")
        if report["weights"]["changed_biases"] or not report["weights"]["biases"]:
            fail(f"routing biases changed: {report['weights']['changed_biases'] or 'none found'}")
        if not report["weights"]["moved"]:
            fail("no weight moved")
    if export and reload:
        report["reload"] = reload_export(export)
        if not report["reload"]["loads"]:
            fail(f"the export does not load: {report['reload']['error']}")
    return report


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="report_run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN_DIR")
    parser.add_argument("--start", type=Path, metavar="MODEL_PATH", help="checkpoint that the run started from")
    parser.add_argument("--max-gap", type=float, default=0.015, help="bound of the mean probability difference (0.015)")
    parser.add_argument("--no-reload", action="store_true", help="do not load the export (a large model)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse_args(argv)
    try:
        report = judge(args.run, args.start, args.max_gap, reload=not args.no_reload)
    except ValueError as error:
        print(f"report_run: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(report))
    else:
        for step in report["gap_mean"]:
            print(
                f"step {step}: gap {report['gap_mean'][step]}, grad norm {report['grad_norm'][step]}, "
                f"score {report['score_mean'][step]}"
            )
        print(f"export: {report['export'] or 'none'}")
        for key in ("weights", "reload"):
            if key in report:
                print(f"{key}: {json.dumps(report[key])}")
        print("\n".join(f"FAIL {line}" for line in report["failures"]) or "all well")
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
