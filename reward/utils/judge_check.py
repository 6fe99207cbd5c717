"""Check every configured judge server: does it answer, what does it serve, and does it judge known answers right?

    python -m reward judge-check [--routes FILE] [--model NAME] [--timeout SECONDS] [--json]
    python -m reward.utils.judge_check ...                       (the same)

Each server gets three judgements with known verdicts through the client that training uses. Exit code 0: every server
answered and judged as expected; 1: some server did not; 2: the settings or the routes file are wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward.utils.judge_config import JudgeConfig, JudgeConfigError
from reward.utils.judge_types import JudgeOutcome, JudgeRequest

if TYPE_CHECKING:
    from reward.utils.routes import ServerSpec


@dataclass(frozen=True)
class KnownJudgement:
    """A judgement whose reward must lie in [low, high]."""

    label: str
    request: JudgeRequest
    low: float
    high: float


KNOWN = (
    KnownJudgement(
        "VQA, right",
        JudgeRequest("VQA", "The total is 12.50 euros.", "12.50 EUR", question="What is the total on the receipt?"),
        1.0,
        1.0,
    ),
    KnownJudgement(
        "VQA, wrong",
        JudgeRequest("VQA", "The total is 21.50 euros.", "12.50 EUR", question="What is the total on the receipt?"),
        0.0,
        0.0,
    ),
    KnownJudgement(
        "Translation, good",
        JudgeRequest(
            "Translation",
            "The shop is closed on Sundays.",
            "The store is closed on Sundays.",
            source_lang_text="本店周日休息。",
            target_lang="English",
        ),
        0.8,
        1.0,
    ),
)


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the ``judge-check`` command to a program's sub-commands; ``args.run`` is then :func:`run`."""
    parser = subparsers.add_parser(
        "judge-check", help="ping every judge server and judge three known answers on it", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    _add_arguments(parser)
    parser.set_defaults(run=run)
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m reward.utils.judge_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_arguments(parser)
    return run(parser.parse_args(argv))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to check")
    what.add_argument("--routes", metavar="FILE", help="routes file (default: JUDGE_ROUTES_FILE, else the kit's)")
    what.add_argument("--model", metavar="NAME", help="entry of the routes file (default: RM_SYSTEM_JUDGE_MODEL_NAME)")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--timeout", type=_positive, default=60.0, metavar="SECONDS", help="most one judgement may take (default: 60)"
    )
    how.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def _positive(text: str) -> float:
    value = float(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value


def run(args: argparse.Namespace) -> int:
    """Check the servers and print what was found; returns the exit code."""
    from reward.utils.routes import usable_servers

    try:
        config = JudgeConfig.from_env()
        config = dataclasses.replace(
            config,
            model=args.model or config.model,
            routes_file=args.routes or config.routes_file,
            deadline_s=args.timeout,
            try_timeout_s=min(args.timeout, config.try_timeout_s),
            discovery_timeout_s=min(args.timeout, config.discovery_timeout_s),
            cache_size=0,
        )
        specs = usable_servers(config.model, config.routes_file)
    except JudgeConfigError as error:
        print(f"judge-check: {error}", file=sys.stderr)
        return 2
    reports = asyncio.run(_check_all(config, specs))
    if args.json:
        print(json.dumps({"model": config.model, "routes_file": config.routes_file, "servers": reports}, indent=2))
    else:
        print(f"judge model {config.model}, routes {config.routes_file}")
        print(_table(reports))
    return 0 if all(report["ok"] for report in reports) else 1


async def _check_all(config: JudgeConfig, specs: list[ServerSpec]) -> list[dict[str, Any]]:
    return await asyncio.gather(*(_check_server(config, spec) for spec in specs))


async def _check_server(config: JudgeConfig, spec: ServerSpec) -> dict[str, Any]:
    """One server, alone in its own client: what it serves, how fast it says so, and three judgements."""
    from reward.utils.judge_client import CallFailed, JudgeClient

    servers = [spec]
    client = JudgeClient(config, servers=lambda: servers)
    report: dict[str, Any] = {
        "server": spec.name,
        "url": spec.base_url,
        "serves": None,
        "ping_s": None,
        "judgements": [],
    }
    try:
        started = time.monotonic()
        try:
            report["serves"] = await client.discover(spec.name)
            report["ping_s"] = round(time.monotonic() - started, 3)
        except CallFailed as failure:
            report["error"] = str(failure)
        else:
            outcomes = await asyncio.gather(*(client.judge(known.request) for known in KNOWN))
            report["judgements"] = [_judgement(known, outcome) for known, outcome in zip(KNOWN, outcomes, strict=True)]
    finally:
        await client.aclose()
    report["ok"] = len(report["judgements"]) == len(KNOWN) and all(item["ok"] for item in report["judgements"])
    return report


def _judgement(known: KnownJudgement, outcome: JudgeOutcome) -> dict[str, Any]:
    analysis = json.loads(outcome.analysis)
    item = {
        "judgement": known.label,
        "decision": outcome.decision,
        "verdict": analysis["verdict"],
        "reward": outcome.reward,
        "expected": [known.low, known.high],
        "latency_s": round(analysis["judge"]["latency_s"], 3),
        "ok": outcome.decision == "scored" and known.low <= outcome.reward <= known.high,
    }
    if error := analysis["judge"].get("error"):
        item["error"] = error
    return item


def _table(reports: list[dict[str, Any]]) -> str:
    rows = [("server", "check", "result", "seconds", "")]
    for report in reports:
        if "error" in report:
            rows.append((report["server"], "ping", "FAILED", "", report["error"]))
            continue
        rows.append((report["server"], "ping", "ok", f"{report['ping_s']:.2f}", f"serves {report['serves']}"))
        for item in report["judgements"]:
            rows.append((report["server"], item["judgement"], *_cells(item)))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[4]]).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _cells(item: dict[str, Any]) -> tuple[str, str, str]:
    seconds = f"{item['latency_s']:.2f}"
    if item["decision"] != "scored":
        return "FAILED", seconds, f"{item['decision']}: {item.get('error', '')}"
    if not item["ok"]:
        low, high = item["expected"]
        return "WRONG", seconds, f"verdict {item['verdict']:g}, reward {item['reward']:g}; expected {low:g} to {high:g}"
    return "ok", seconds, f"verdict {item['verdict']:g}"


if __name__ == "__main__":
    sys.exit(main())
