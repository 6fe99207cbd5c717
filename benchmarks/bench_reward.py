"""How fast the rule scorers are, on answers of realistic size, through ``compute_score``.

    python benchmarks/bench_reward.py [--samples 100] [--json OUT.json] [--check]

Prints a line per family (median, 95th percentile, worst, samples a second on one core, all in processor time), the rate
of a mixed batch with equal shares, how it scales to two processes, the time to import ``reward_ocr``, and the time from
a new process to the first score of every family with an empty compiler cache. ``--check`` ends in exit code 1 when a
bar is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.reward_corpus import Sample, rule_corpus  # noqa: E402
from reward.cli.summary import text_table  # noqa: E402

SAMPLES_PER_S_MIN = 300.0
SPEEDUP_MIN = 1.8
IMPORT_S_MAX = 1.0
FIRST_CALLS_S_MAX = 5.0
_SEED = 20


def measure_families(samples: Sequence[Sample]) -> dict[str, dict[str, float]]:
    """Milliseconds of processor time per call by family, in this process: what a busy machine changes least."""
    times: dict[str, list[float]] = {}
    sizes: dict[str, list[int]] = {}
    for sample in samples:
        start = time.process_time()
        _score(sample)
        times.setdefault(sample.family, []).append((time.process_time() - start) * 1000)
        sizes.setdefault(sample.family, []).append(len(sample.ref_answer))
    return {
        family: {
            "samples": len(values),
            "mean_characters": statistics.fmean(sizes[family]),
            "median_ms": statistics.median(values),
            "p95_ms": statistics.quantiles(values, n=20)[-1],
            "worst_ms": max(values),
            "samples_per_s": 1000 / statistics.fmean(values),
        }
        for family, values in times.items()
    }


def measure_scaling(samples: Sequence[Sample], repeats: int) -> dict[str, float]:
    """The same batch, ``repeats`` times over, in one process and in each of two at the same time.

    ``speedup`` is by the clock and needs two free cores. ``speedup_by_processor_time`` is what two free cores would give:
    twice the processor time of one process alone over that of a process beside another.
    """
    batch = list(samples) * repeats
    alone, alone_cpu = _batch_in_processes([batch])
    both, both_cpu = _batch_in_processes([batch, batch])
    return {
        "samples": len(batch),
        "one_process_per_s": len(batch) / alone,
        "two_processes_per_s": 2 * len(batch) / both,
        "speedup": 2 * alone / both,
        "speedup_by_processor_time": 2 * alone_cpu / both_cpu,
    }


def _batch_in_processes(batches: Sequence[Sequence[Sample]]) -> tuple[float, float]:
    """Seconds by the clock for all batches at once, and mean seconds of processor time of a batch."""
    context = multiprocessing.get_context("spawn")
    ready, used = context.Barrier(len(batches) + 1), context.SimpleQueue()
    workers = [context.Process(target=_batch_worker, args=(batch, ready, used)) for batch in batches]
    for worker in workers:
        worker.start()
    ready.wait()
    start = time.perf_counter()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise RuntimeError(f"a benchmark process ended with exit code {worker.exitcode}")
    return time.perf_counter() - start, statistics.fmean(used.get() for _ in workers)


def _batch_worker(batch: Sequence[Sample], ready: Any, used: Any) -> None:
    _warm_up(batch)
    ready.wait()
    start = time.process_time()
    for sample in batch:
        _score(sample)
    used.put(time.process_time() - start)


def measure_start() -> dict[str, float]:
    """Seconds to import the entry, and from a new process to the first score of every family with a cold cache."""
    imports = [_in_new_process("import reward_ocr", {}) for _ in range(3)]
    plain = [_in_new_process("pass", {}) for _ in range(3)]
    with tempfile.TemporaryDirectory() as cache:
        fresh = {"NUMBA_CACHE_DIR": cache}
        return {
            "import_s": min(imports) - min(plain),
            "cold_first_calls_s": _in_new_process("from benchmarks import bench_reward as b; b.first_calls()", fresh),
            "warm_first_calls_s": _in_new_process("from benchmarks import bench_reward as b; b.first_calls()", fresh),
        }


def first_calls() -> None:
    """Score one sample of every family."""
    for sample in rule_corpus(_SEED, 1):
        _score(sample)


def _in_new_process(code: str, environment: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **environment}, check=True)
    return time.perf_counter() - start


def _score(sample: Sample) -> None:
    from reward_ocr import compute_score

    result = compute_score("bench", sample.response, sample.ref_answer, {"task_type": sample.task_type})
    if result["decision"] != "scored":
        raise RuntimeError(f"{sample.family}: {result['decision']}: {result['analysis']}")


def _warm_up(samples: Sequence[Sample]) -> None:
    seen: dict[str, int] = {}
    for sample in samples:
        seen[sample.family] = seen.get(sample.family, 0) + 1
        if seen[sample.family] <= 2:
            _score(sample)


def machine() -> str:
    """Processor, cores and Python of this run."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return f"{len(os.sched_getaffinity(0))} cores of {model}, Python {platform.python_version()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100, metavar="N", help="samples per family (default: 100)")
    parser.add_argument("--json", type=Path, metavar="OUT.json", help="write all figures")
    parser.add_argument("--check", action="store_true", help="exit code 1 when a bar is missed")
    options = parser.parse_args()

    load = os.getloadavg()[0]
    samples = list(rule_corpus(_SEED, options.samples))
    random.Random(_SEED).shuffle(samples)
    start = measure_start()
    _warm_up(samples)
    gc.collect()
    families = measure_families(samples)
    rate = len(samples) / sum(entry["samples"] / entry["samples_per_s"] for entry in families.values())
    scaling = measure_scaling(samples, repeats=max(1, round(rate * 10 / len(samples))))
    report = {
        "machine": machine(),
        "load": load,
        "families": families,
        "mixed_samples_per_s": rate,
        "scaling": scaling,
        "start": start,
    }

    print(f"{report['machine']}, load {report['load']:.1f}")
    header = ["family", "characters", "median ms", "p95 ms", "worst ms", "samples/s"]
    rows = [
        [
            family,
            f"{entry['mean_characters']:.0f}",
            *(f"{entry[key]:.2f}" for key in ("median_ms", "p95_ms", "worst_ms")),
            f"{entry['samples_per_s']:.0f}",
        ]
        for family, entry in sorted(families.items())
    ]
    print(text_table(header, rows))
    print(f"mixed, equal shares: {rate:.0f} samples/s on one core")
    print(
        f"{scaling['samples']} samples a process: {scaling['one_process_per_s']:.0f} samples/s in one process, "
        f"{scaling['two_processes_per_s']:.0f} in two: {scaling['speedup']:.2f} times by the clock, "
        f"{scaling['speedup_by_processor_time']:.2f} times by processor time"
    )
    print(
        f"import of reward_ocr {start['import_s']:.2f} s; new process to one score of every family: "
        f"{start['cold_first_calls_s']:.2f} s with an empty compiler cache, {start['warm_first_calls_s']:.2f} s with a warm one"
    )
    if options.json:
        temporary = options.json.with_name(options.json.name + ".tmp")
        temporary.write_text(json.dumps(report, indent=2), encoding="utf-8")
        temporary.replace(options.json)
    missed = _missed(report)
    for message in missed:
        print(f"missed: {message}")
    return 1 if options.check and missed else 0


def _missed(report: dict[str, Any]) -> list[str]:
    scaling, start = report["scaling"], report["start"]
    checks = (
        ("mixed samples/s", report["mixed_samples_per_s"] >= SAMPLES_PER_S_MIN, SAMPLES_PER_S_MIN),
        ("speed-up of two processes", scaling["speedup_by_processor_time"] >= SPEEDUP_MIN, SPEEDUP_MIN),
        ("seconds to import", start["import_s"] <= IMPORT_S_MAX, IMPORT_S_MAX),
        ("seconds to the first scores", start["cold_first_calls_s"] <= FIRST_CALLS_S_MAX, FIRST_CALLS_S_MAX),
    )
    return [f"{name}: the bar is {bar:g}" for name, fine, bar in checks if not fine]


if __name__ == "__main__":
    sys.exit(main())
