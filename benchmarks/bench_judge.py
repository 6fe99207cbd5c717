"""The judge under load with faults, and the cost of reading replies.

    python benchmarks/bench_judge.py [--judgements 2048] [--in-flight 128] [--slots 48] [--latency 3] [--json]

Three scripted servers run as processes of their own: one healthy, one that answers every third call with a 500 (after its
full service time), and one that is killed with SIGKILL when half of the judgements are done. Printed are the wall time as
a ratio to the ideal, where every judgement went, the client's memory, and how reading a reply scales with its length.

The ideal counts service time only. With L seconds per call, S slots a server and C judgements in flight, the load
spreads evenly over the servers alive, so that before the kill min(C/3, S) calls run on each, of which all, two thirds and
all bring a verdict; after it min(C/2, S) on each of two. Exit code 1: a judgement was lost, counted twice or wrongly
scored, or the ratio is above --max-ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from reward.utils.judge_client import JudgeClient  # noqa: E402
from reward.utils.judge_config import JudgeConfig  # noqa: E402
from reward.utils.judge_metrics import summarise  # noqa: E402
from reward.utils.judge_types import JudgeOutcome, JudgeRequest  # noqa: E402
from reward.utils.routes import parse_server  # noqa: E402
from reward.utils.verdicts import VERDICT_PARSERS, parse_reply  # noqa: E402


class ServerProcess:
    """One scripted server; ``kill()`` is a SIGKILL."""

    def __init__(self, *options: str):
        command = [sys.executable, str(ROOT / "tests" / "judge" / "fault_server.py"), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.address = json.loads(self.process.stdout.readline())["address"]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stats(self) -> dict:
        with urllib.request.urlopen(f"http://{self.address}/stats", timeout=10) as reply:
            return json.load(reply)


async def run_load(args: argparse.Namespace, servers: list[ServerProcess]) -> dict:
    doomed = servers[2]
    specs = [parse_server(server.address, "bench") for server in servers]
    config = JudgeConfig(model="judge-model", deadline_s=args.deadline, server_concurrency=args.slots, cache_size=512)
    client = JudgeClient(config, servers=lambda: specs)
    process = psutil.Process()
    gate = asyncio.Semaphore(args.in_flight)
    finished: Counter[int] = Counter()
    memory_mb = {}

    async def one(number: int) -> JudgeOutcome:
        async with gate:
            outcome = await client.judge(
                JudgeRequest("VQA", f"answer {number} {'x' * args.answer_chars}", "a reference", question="What is it?")
            )
        finished[number] += 1
        done = finished.total()
        if done == args.judgements // 2:
            doomed.kill()
        if done * 4 % args.judgements == 0:
            memory_mb[f"{done * 100 // args.judgements}%"] = round(process.memory_info().rss / 2**20, 1)
        return outcome

    started, started_cpu = time.perf_counter(), time.process_time()
    outcomes = await asyncio.gather(*(one(number) for number in range(args.judgements)))
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - started_cpu
    left = {"in_flight": sum(server.in_flight for server in client.pool.servers), "waiting": client.pool.waiting}
    await client.aclose()
    wrong = sum(o.decision == "scored" and o.reward != float(n % 2) for n, o in enumerate(outcomes))
    replied = sum((Counter(server.stats()["scored"]) for server in servers[:2]), Counter())
    ideal_s = ideal(args.judgements, args.in_flight, args.slots, args.latency)
    return {
        "wall_s": round(wall_s, 2),
        "ideal_s": round(ideal_s, 2),
        "ratio": round(wall_s / ideal_s, 3),
        "decisions": dict(Counter(outcome.decision for outcome in outcomes)),
        "lost": args.judgements - len(finished),
        "counted_twice": sum(count > 1 for count in finished.values()),
        "wrongly_scored": wrong,
        "answered_twice_by_living_servers": sum(count > 1 for count in replied.values()),
        "left_behind": left,
        "client_memory_mb": memory_mb,
        "client_cpu_ms_per_judgement": round(1000 * cpu_s / args.judgements, 2),
        "metrics": {name: round(value, 4) for name, value in summarise(o.analysis for o in outcomes).items() if value},
    }


def ideal(judgements: int, in_flight: int, slots: int, latency_s: float) -> float:
    """Seconds that the service times alone take; see the docstring on top."""
    before = min(in_flight / 3, slots) * (1 + 2 / 3 + 1) / latency_s
    after = min(in_flight / 2, slots) * (1 + 2 / 3) / latency_s
    return judgements / 2 / before + judgements / 2 / after


def parsing_growth(short: int = 16_000, long: int = 64_000) -> dict[str, float]:
    """Time for a long reply over time for a short one, worst of several hostile shapes; linear is about 4."""
    shapes = [
        "{",
        '{"score":',
        "judgement:",
        "score: 1,",
        "<think></think>",
        '"{',
        "\\",
        "-",
        "。总分：",
        "总分：4",
        "a ",
    ]
    growth = {}
    for task in VERDICT_PARSERS:
        growth[task] = round(
            max(_time(task, s * (long // len(s))) / _time(task, s * (short // len(s))) for s in shapes), 2
        )
    return growth


def _time(task: str, reply: str) -> float:
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        parse_reply(task, reply)
        best = min(best, time.perf_counter() - started)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    load = parser.add_argument_group("load")
    load.add_argument("--judgements", type=int, default=2048, help="default: 2048")
    load.add_argument("--in-flight", type=int, default=128, help="default: 128")
    load.add_argument("--answer-chars", type=int, default=500, help="length of an answer (default: 500)")
    load.add_argument("--deadline", type=float, default=180.0, metavar="SECONDS", help="per judgement (default: 180)")
    servers = parser.add_argument_group("servers")
    servers.add_argument("--slots", type=int, default=48, help="calls a server works on at the same time (default: 48)")
    servers.add_argument("--latency", type=float, default=3.0, metavar="SECONDS", help="service time (default: 3)")
    output = parser.add_argument_group("result")
    output.add_argument(
        "--max-ratio", type=float, default=1.5, help="wall time over ideal that still passes (default: 1.5)"
    )
    output.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()

    options = ["--latency", str(args.latency), "--slots", str(args.slots)]
    processes: list[ServerProcess] = []
    try:
        for extra in ([], ["--fail-every", "3"], []):
            processes.append(ServerProcess(*options, *extra))
        result = asyncio.run(run_load(args, processes))
    finally:
        for server in processes:
            server.kill()
    result["reply_parsing_64k_over_16k"] = parsing_growth()
    print(json.dumps(result, indent=None if args.json else 2, ensure_ascii=False))
    clean = not (
        result["lost"] or result["counted_twice"] or result["wrongly_scored"] or any(result["left_behind"].values())
    )
    return 0 if clean and result["ratio"] <= args.max_ratio else 1


if __name__ == "__main__":
    sys.exit(main())
