"""Checks a run before anything is started: versions, model, data, reward, judge, numbers, memory, disk, Ray, nodes, network.

    bash train_grpo.sh                                         runs it first; --skip-preflight leaves it out
    MODEL_PATH=… TRAIN_FILES=… python -m utils.preflight       by hand, with the launcher's environment variables
    python -m utils.preflight --path megatron                  for verl/examples/grpo_trainer/run_hy_v3_megatron.sh
    python -m utils.preflight --only data,reward --json -- data.train_batch_size=64

Nothing is started or changed, no GPU is used. What follows -- are hydra overrides; they win over the environment.
docs/preflight.md lists the checks.

Exit code: 0 ready (there may be warnings), 1 some check failed, 2 bad usage.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from utils.preflight import registry, report, versions
from utils.preflight.context import CLUSTER, LOCAL, STAGES, Context
from utils.preflight.results import FAIL, WARN, NotChecked, Result, failed, worst
from utils.preflight.settings import SettingsError, read_settings


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m utils.preflight", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_argument_group("what to check")
    what.add_argument(
        "--path", choices=(registry.FSDP, registry.MEGATRON), default=registry.FSDP, help="training path (fsdp)"
    )
    what.add_argument(
        "--stage",
        choices=(*STAGES, "all"),
        default="all",
        help="local: what needs no Ray; cluster: the Ray cluster and its nodes; all: both (default)",
    )
    what.add_argument("--only", default="", metavar="NAMES", help="these checks or groups, e.g. data,reward.calls")
    what.add_argument("--except", default="", metavar="NAMES", dest="leave_out", help="leave these out")
    what.add_argument("overrides", nargs="*", metavar="key=value", help="after --: hydra overrides of the run")
    how = parser.add_argument_group("how to say it")
    how.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    how.add_argument("--strict", action="store_true", help="exit code 1 for warnings too")
    return parser


def run_checks(context: Context, checks: Sequence[registry.Check]) -> tuple[list[Result], dict[str, str]]:
    """Results of the checks, and why others had nothing to look at. A check that raises is a failed one."""
    results: list[Result] = []
    not_checked: dict[str, str] = {}
    # Takes the longest, in a process of its own: it runs while the others are at work, and is asked last.
    if any(check.name == "versions.plugin" for check in checks) and versions.plugin_problem(context.environ) is None:
        context.plugin_start  # noqa: B018
    for check in sorted(checks, key=lambda check: check.name == "versions.plugin"):
        try:
            if check.stage == registry.NODES and not context.nodes:
                raise NotChecked("this host was looked at before Ray was started")
            results.extend(check.run(context))
        except NotChecked as reason:
            not_checked[check.name] = str(reason)
        except Exception as error:  # one broken check must not hide what the others find
            remedy = f"report this as a fault of the preflight; --except {check.name} goes on without it"
            results.append(failed(check.name, f"the check itself failed: {type(error).__name__}: {error}", remedy))
    order = [check.name for check in registry.CHECKS]
    results.sort(key=lambda result: _place(order, result.check))
    return results, not_checked


def _place(order: list[str], name: str) -> int:
    return order.index(name) if name in order else order.index(name.split(".")[0])


def main(argv: Sequence[str] | None = None) -> int:
    started = time.monotonic()
    parser = build_parser()
    args = parser.parse_args(argv)
    environ = dict(os.environ)
    stages = (LOCAL, CLUSTER) if args.stage == "all" else (args.stage,)
    only, leave_out = (tuple(filter(None, names.split(","))) for names in (args.only, args.leave_out))
    known = {check.name for check in registry.CHECKS}
    known |= {name.split(".")[0] for name in known}
    for name in (*only, *leave_out):
        if name not in known:
            parser.error(
                f"there is no check or group {name!r}; groups: {', '.join(sorted({n.split('.')[0] for n in known}))}"
            )
    for override in args.overrides:
        if "=" not in override and not override.startswith("~"):
            parser.error(f"{override!r} is no hydra override (key=value)")
    try:
        settings = read_settings(environ, args.overrides, args.path)
    except SettingsError as error:
        print(f"preflight: {error}", file=sys.stderr)
        return 2
    context = Context(settings, environ, stages)
    results, not_checked = run_checks(context, registry.selected(args.path, stages, only, leave_out))
    seconds = time.monotonic() - started
    if args.json:
        print(report.as_json(results, not_checked, seconds))
    else:
        report.print_table(results, not_checked, seconds)
    state = worst(results)
    return 1 if state == FAIL or (args.strict and state == WARN) else 0


if __name__ == "__main__":
    sys.exit(main())
