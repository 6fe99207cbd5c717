"""Statistics of a prepared set, a task a row, in bounded memory: values are counted, not kept."""

import math
from collections import Counter, defaultdict
from typing import Any

PERCENTILES = (50, 95, 100)


class Distribution:
    """A multiset of integers. Exact percentiles; memory grows with distinct values only."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def __len__(self) -> int:
        return self._counts.total()

    def add(self, value: int) -> None:
        self._counts[value] += 1

    def percentile(self, percent: float) -> int | None:
        """The smallest value that at least `percent` % of all values do not exceed; None of nothing."""
        rank = max(1, math.ceil(self._counts.total() * percent / 100))
        seen = 0
        for value in sorted(self._counts):
            seen += self._counts[value]
            if seen >= rank:
                return value
        return None

    def above(self, limit: int) -> int:
        return sum(count for value, count in self._counts.items() if value > limit)

    def summary(self) -> dict[str, int | None]:
        return {f"p{percent}" if percent < 100 else "max": self.percentile(percent) for percent in PERCENTILES}


class TaskStats:
    """Collects one task's rows."""

    def __init__(self, rule: Any) -> None:
        self._rule = rule
        self.rows: Counter[str] = Counter()
        self.prompt, self.answer = Distribution(), Distribution()
        self.kilopixels, self.image_tokens = Distribution(), Distribution()
        self.scaled: Counter[str] = Counter()
        self.uncounted = 0

    def add(self, split: str, prompt: int, answer: int, image_sizes: list[tuple[int, int]]) -> None:
        self.rows[split] += 1
        self.answer.add(answer)
        if prompt >= 0:
            self.prompt.add(prompt)
        else:
            self.uncounted += 1
        for width, height in image_sizes:
            self.kilopixels.add(width * height // 1000)
            self.image_tokens.add(self._rule.tokens(width, height))
            self.scaled[self._rule.scale(width, height)] += 1

    def summary(self, max_prompt_length: int | None) -> dict[str, Any]:
        images = len(self.kilopixels)
        found: dict[str, Any] = {
            "rows_train": self.rows["train"],
            "rows_val": self.rows["val"],
            "prompt_length": self.prompt.summary(),
            "answer_length": self.answer.summary(),
            "images": images,
            "image_kilopixels": self.kilopixels.summary(),
            "image_tokens": self.image_tokens.summary(),
            "images_shrunk": self.scaled["down"],
            "images_enlarged": self.scaled["up"],
            "prompts_not_counted": self.uncounted,
        }
        if max_prompt_length is not None:
            found["over_max_prompt_length"] = self.prompt.above(max_prompt_length)
        return found


class Stats:
    """Collects all tasks.

    Args:
        rule: the image rule of the model (`verl_hyocr.image_tokens.ImageTokenRule`).
        unit: what lengths are counted in, "tokens" or "characters".
        max_prompt_length: also count the prompts above it (tokens only).
    """

    def __init__(self, rule: Any, unit: str, max_prompt_length: int | None = None):
        self._unit = unit
        self._limit = max_prompt_length
        self._tasks: dict[str, TaskStats] = defaultdict(lambda: TaskStats(rule))

    def add(self, task: str, split: str, prompt: int, answer: int, image_sizes: list[tuple[int, int]]) -> None:
        self._tasks[task].add(split, prompt, answer, image_sizes)

    def summary(self) -> dict[str, Any]:
        tasks = {task: self._tasks[task].summary(self._limit) for task in sorted(self._tasks)}
        return {"length_unit": self._unit, "max_prompt_length": self._limit, "tasks": tasks}

    def table(self) -> str:
        """A table for a person; p50/p95/max in one cell."""
        header = ["task", "train", "val", f"prompt {self._unit}", f"answer {self._unit}"]
        header += ["images", "megapixels", "image tokens", "shrunk", "enlarged"]
        if self._limit is not None:
            header.append(f"prompt > {self._limit}")
        lines = [header]
        for task, found in self.summary()["tasks"].items():
            rows = found["rows_train"] + found["rows_val"]
            line = [task, str(found["rows_train"]), str(found["rows_val"])]
            line += [_cell(found["prompt_length"]), _cell(found["answer_length"]), str(found["images"])]
            line += [_cell(found["image_kilopixels"], 1000), _cell(found["image_tokens"])]
            line += [_share(found["images_shrunk"], found["images"]), _share(found["images_enlarged"], found["images"])]
            if self._limit is not None:
                line.append(_share(found["over_max_prompt_length"], rows - found["prompts_not_counted"]))
            lines.append(line)
        widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
        return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in lines)


def _cell(summary: dict[str, int | None], divisor: int = 1) -> str:
    values = list(summary.values())
    if None in values:
        return "-"
    return "/".join(f"{value / divisor:.1f}" if divisor > 1 else str(value) for value in values)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"
