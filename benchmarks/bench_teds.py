"""Speed of TEDS plus structure-only TEDS against table_recognition_metric, in one process on one core.

    python benchmarks/bench_teds.py                 # prints a table
    python benchmarks/bench_teds.py --json OUT.json # and writes the figures
    python benchmarks/bench_teds.py --check         # exit code 1 when a bar is missed

Both sides get the same HTML strings and do all their work from there. Times are CPU time of one thread, so that neither
the machine nor what else runs on it changes the ratio.
table_recognition_metric takes minutes for large tables: sizes beyond `--baseline-nodes` are timed for ours alone. The
last lines give the first call of a fresh process, imports included, without and with numba's cache.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from reward.task_scorers.table_tree import read_tables  # noqa: E402
from reward.task_scorers.teds import table_similarity  # noqa: E402

SIZES = ((6, 4), (30, 8), (50, 10), (60, 20), (130, 20))
RATIO_BAR = ((30, 8), 50.0)
TIME_BAR = ((60, 20), 0.1)
FIRST_CALL_BAR = 5.0
BARS = {RATIO_BAR[0]: f"≥ {RATIO_BAR[1]:.0f}x", TIME_BAR[0]: f"< {TIME_BAR[1] * 1e3:.0f} ms"}
_FIRST_CALL = """
import sys, time
start = time.perf_counter()
sys.path.insert(0, sys.argv[1])
from reward.task_scorers.parsing import process_parsing_task
process_parsing_task("<table><tr><td>a</td></tr></table>", "<table><tr><td>b</td></tr></table>")
print(time.perf_counter() - start, time.process_time())
"""


def make_pair(rows: int, columns: int, seed: int = 0) -> tuple[str, str]:
    """Return (answer, reference): a table of short numbers, and a copy in which one cell in ten is misread."""
    rng = random.Random(seed)
    cells = [[f"{rng.randint(0, 99999) / 100:.2f}" for _ in range(columns)] for _ in range(rows)]
    misread = [[text[:-1] + "x" if rng.random() < 0.1 else text for text in row] for row in cells]
    return tuple(
        "<html><body><table>"
        + "".join(f"<tr>{''.join(f'<td>{text}</td>' for text in row)}</tr>" for row in table)
        + "</table></body></html>"
        for table in (misread, cells)
    )


def ours(answer: str, reference: str) -> tuple[float, float]:
    return table_similarity(read_tables(answer)[0], read_tables(reference)[0])


def baseline(answer: str, reference: str) -> tuple[float, float]:
    from table_recognition_metric import TEDS

    return TEDS()(answer, reference), TEDS(structure_only=True)(answer, reference)


def timed(function: Callable[[str, str], tuple[float, float]], pair: tuple[str, str], repeats: int):
    """Return the median CPU seconds of a call, and its result."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        result = function(*pair)
        seconds.append(time.process_time() - start)
    return statistics.median(seconds), result


def first_call(cache: str) -> dict[str, float]:
    """Return the wall and CPU seconds of the first scored table of a fresh process."""
    output = subprocess.run(
        [sys.executable, "-c", _FIRST_CALL, str(ROOT)],
        env={**os.environ, "NUMBA_CACHE_DIR": cache},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return {"wall_s": float(output[0]), "cpu_s": float(output[1])}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measuring = parser.add_argument_group("measuring")
    measuring.add_argument("--repeats", type=int, default=9, help="calls per size, the median counts (default 9)")
    measuring.add_argument(
        "--baseline-nodes",
        type=int,
        default=300,
        help="largest table, in nodes, that table_recognition_metric is timed on (default 300: up to 30x8)",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON")
    output.add_argument("--check", action="store_true", help="end in exit code 1 when a bar is missed")
    arguments = parser.parse_args()

    ours(*make_pair(2, 2))
    rows = []
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{'table':>8} {'nodes':>6} {'ours ms':>9} {'baseline ms':>12} {'ratio':>8} {'largest difference':>19}  bar")
    for size in SIZES:
        nodes = 1 + size[0] * (size[1] + 1)
        pair = make_pair(*size)
        seconds, result = timed(ours, pair, arguments.repeats)
        row = {"rows": size[0], "columns": size[1], "nodes": nodes, "ours_s": seconds}
        columns = ["", "", ""]
        if nodes <= arguments.baseline_nodes:
            base_seconds, base_result = timed(baseline, pair, max(1, arguments.repeats // 3))
            difference = max(abs(a - b) for a, b in zip(result, base_result))
            row |= {"baseline_s": base_seconds, "ratio": base_seconds / seconds, "largest_difference": difference}
            columns = [f"{base_seconds * 1e3:.1f}", f"{base_seconds / seconds:.0f}x", f"{difference:.1e}"]
        rows.append(row)
        name = f"{size[0]}x{size[1]}"
        print(
            f"{name:>8} {nodes:>6} {seconds * 1e3:>9.2f} {columns[0]:>12} {columns[1]:>8} {columns[2]:>19}"
            f"  {BARS.get(size, '')}",
            flush=True,
        )
    with tempfile.TemporaryDirectory() as cache:
        starts = {"cold": first_call(cache), "warm": first_call(cache)}
    for name, figures in starts.items():
        print(f"first call, {name} cache: {figures['wall_s']:.2f} s wall, {figures['cpu_s']:.2f} s CPU", flush=True)

    if arguments.json:
        report = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "tables": rows,
            "first_call": starts,
        }
        temporary = arguments.json.with_name(arguments.json.name + ".tmp")
        temporary.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        temporary.replace(arguments.json)
    if not arguments.check:
        return 0
    by_size = {(row["rows"], row["columns"]): row for row in rows}
    missed = []
    if by_size[RATIO_BAR[0]].get("ratio", 0.0) < RATIO_BAR[1]:
        missed.append("ratio to table_recognition_metric")
    if by_size[TIME_BAR[0]]["ours_s"] > TIME_BAR[1]:
        missed.append("time of a 60x20 pair")
    if starts["cold"]["cpu_s"] > FIRST_CALL_BAR:
        missed.append("first call with a cold cache")
    for bar in missed:
        print(f"missed: {bar}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
