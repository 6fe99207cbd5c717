"""The conversion as a whole: check every line, split by image group, write in an order of its own.

Three passes, none of which holds the data in memory:

1. The workers check the lines. Rows go to a sorter by content key, findings to sorters by file and line.
2. A sorter by image group decides which rows are validation rows.
3. The sorted rows are numbered and written; equal samples are neighbours there.

The order of the output is that of a hash of the content and the seed, so neither the order of the inputs nor the number
of workers can show in it.
"""

import json
import os
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from data.checks import Accepted, CheckOptions, LineChecker, Refused, folder_of
from data.external_sort import ExternalSorter
from data.findings import Findings
from data.progress import Progress
from data.readers import Line, read_lines, stored_size
from data.rejects import Problem
from data.splitting import ImageGroups, choose_validation, seeded, validation_targets
from data.stats import Stats
from data.token_counts import import_image_tokens
from data.worker_pool import map_ordered
from data.writer import AtomicFile, ParquetSink, publish, remove_stale, stage_lines
from reward.ocr_utils import canonical_tasks

_LINES_PER_BATCH = 128
_BYTES_PER_BATCH = 1 << 20
_SORT_MEMORY = 12 << 20
_SPLIT_RECORD = struct.Struct(">16sB16s16s")
_END_OF_ROW = b"\0"


@dataclass(frozen=True)
class PrepareOptions:
    """What to convert and how; see the command line's help for each. Without `output_val` every row is for training."""

    inputs: list[str]
    output_train: str
    output_val: str = ""
    val_ratio: float = 0.02
    seed: int = 0
    on_error: str = "stop"
    duplicates: str = "warn"
    workers: int = 1
    dry_run: bool = False
    max_line_bytes: int = 64 << 20
    max_prompt_length: int | None = None
    quiet: bool = False
    checks: CheckOptions = field(default_factory=CheckOptions)

    def finding_paths(self) -> dict[str, str]:
        """Where rejects, warnings and the report go."""
        train = self.output_train
        return {
            "rejects": f"{train}.rejects.jsonl",
            "warnings": f"{train}.warnings.jsonl",
            "report": f"{train}.report.json",
        }

    def split_paths(self) -> dict[str, str]:
        """Where each split goes, in the order in which they appear: a train file is there last of all."""
        val = {"val": self.output_val} if self.output_val and self.val_ratio > 0 else {}
        return {**val, "train": self.output_train}


@dataclass
class Report:
    """What happened. `failure` says why nothing was written, `written` whether the outputs are in place."""

    lines: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    rows_per_task: Counter[str] = field(default_factory=Counter)
    val_targets: dict[str, int] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)
    warned: Counter[str] = field(default_factory=Counter)
    first_rejects: list[dict[str, Any]] = field(default_factory=list)
    stats: Stats | None = None
    seconds: float = 0.0
    written: bool = False
    failure: str = ""

    def to_json(self) -> dict[str, Any]:
        """The parts that depend on the input only, so that equal runs give equal reports."""
        return {
            "written": self.written,
            "failure": self.failure,
            "lines": self.lines,
            "rows": dict(sorted(self.rows.items())),
            "val_targets": dict(sorted(self.val_targets.items())),
            "rejected": dict(sorted(self.rejected.items())),
            "warned": dict(sorted(self.warned.items())),
            "stats": self.stats.summary() if self.stats else {},
        }


def prepare(options: PrepareOptions) -> Report:
    """Convert. A dry run writes nothing; rejects under `on_error="stop"` leave only the findings written.

    Raises:
        data.readers.InputError: an input cannot be opened.
        OSError: an output cannot be written.
    """
    started = time.monotonic()
    conversion = _Conversion(options)
    try:
        conversion.check()
        conversion.split()
        conversion.write()
        conversion.finish()
    finally:
        conversion.close()
    conversion.report.seconds = time.monotonic() - started
    return conversion.report


class _Conversion:
    def __init__(self, options: PrepareOptions):
        self.options = options
        self.report = Report()
        # A dry run leaves the output folder alone.
        self._folder = None if options.dry_run else os.path.dirname(os.path.abspath(options.output_train))
        if not options.dry_run:
            for path in (*options.split_paths().values(), *options.finding_paths().values()):
                os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
                remove_stale(path)
        self._rows, self._validation = self._sorter(), self._sorter()
        self._rejects = Findings(options.inputs, self._sorter())
        self._warnings = Findings(options.inputs, self._sorter())
        self._groups = ImageGroups()
        self._split_records = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        self._tasks = canonical_tasks()
        self._sinks: dict[str, ParquetSink] = {}
        self._staged: list[AtomicFile] = []

    def check(self) -> None:
        """Pass 1."""
        options = self.options
        sizes = [stored_size(name) for name in options.inputs]
        starts = [sum(sizes[:number]) for number in range(len(sizes))]
        progress = Progress(sum(sizes), options.quiet)
        preload = ["data.checks", "reward_ocr", *(["transformers"] if options.checks.model else [])]
        try:
            for batch, outcomes in map_ordered(
                _BatchChecker, options.checks, self._batches(), options.workers, preload
            ):
                for line, outcome in zip(batch.lines, outcomes):
                    self._take(batch.file, line, outcome)
                rows = self.report.rows_per_task.total()
                progress.update(starts[batch.file] + batch.offset, rows, len(self._rejects))
        finally:
            progress.close()

    def split(self) -> None:
        """Pass 2."""
        if "val" not in self.options.split_paths():
            return
        self.report.val_targets = validation_targets(self.report.rows_per_task, self.options.val_ratio)
        groups = self._sorter()
        self._split_records.seek(0)
        while record := self._split_records.read(_SPLIT_RECORD.size):
            image, task, question, content = _SPLIT_RECORD.unpack(record)
            groups.add(seeded(self._groups.group(image), self.options.seed), bytes([task]) + question + content)
        rows = ((group, self._tasks[payload[0]], payload[1:]) for group, payload in groups)
        for key in choose_validation(rows, self.report.val_targets):
            self._validation.add(key)
        groups.close()

    def write(self) -> None:
        """Pass 3."""
        if not self.options.dry_run and not self._stopped():
            self._sinks = {split: ParquetSink(path) for split, path in self.options.split_paths().items()}
        model = self.options.checks.model
        rules = import_image_tokens().ImageTokenRule
        stats = Stats(
            rules.from_pretrained(model) if model else rules(),
            "tokens" if model else "characters",
            self.options.max_prompt_length,
        )
        neighbours = _Neighbours()
        for row, split in self._placed_rows():
            if not self._keep(row, neighbours):
                continue
            stats.add(row.task, split, row.prompt_length, row.answer_length, row.image_sizes)
            if self._sinks:
                self._sinks[split].add(
                    row.finished(split, self.report.rows[split], neighbours.copies), len(row.content)
                )
            self.report.rows[split] += 1
        self.report.stats = stats

    def finish(self) -> None:
        report, options = self.report, self.options
        report.rejected, report.warned = self._rejects.kinds, self._warnings.kinds
        report.first_rejects = self._rejects.first()
        report.failure = self._failure()
        report.written = not report.failure and not options.dry_run
        if options.dry_run:
            return
        paths = options.finding_paths()
        contents = {
            "rejects": self._rejects.lines(),
            "warnings": self._warnings.lines(),
            "report": iter([json.dumps(report.to_json(), ensure_ascii=False, indent=2).encode() + b"\n"]),
        }
        for name, lines in contents.items():
            self._staged.append(stage_lines(paths[name], lines))
        if report.written:
            self._staged += [sink.finish() for sink in self._sinks.values()]
        # A train file that is in place belongs to what lies beside it: the old one goes first, the new one comes last.
        publish(self._staged, gone=list(options.split_paths().values()) if report.written else [])

    def close(self) -> None:
        for file in (*self._sinks.values(), *self._staged):
            file.discard()
        self._split_records.close()

    def _failure(self) -> str:
        report = self.report
        if self._stopped():
            return f"{len(self._rejects)} of {report.lines} lines were rejected (--on-error skip goes on without them)"
        if not report.rows.total():
            return "no usable row in the inputs"
        if not report.rows["train"]:
            return "no row is left for training"
        if "val" in self.options.split_paths() and not report.rows["val"]:
            return "no row can be a validation row, because one image is in most rows of each task; drop --output_val"
        return ""

    def _stopped(self) -> bool:
        return len(self._rejects) > 0 and self.options.on_error == "stop"

    def _sorter(self) -> ExternalSorter:
        return ExternalSorter(self._folder, _SORT_MEMORY)

    def _batches(self) -> Iterator["_Batch"]:
        for file, name in enumerate(self.options.inputs):
            lines: list[Line] = []
            size = 0
            for line in read_lines(name, self.options.max_line_bytes):
                lines.append(line)
                size += len(line.raw)
                if len(lines) >= _LINES_PER_BATCH or size >= _BYTES_PER_BATCH:
                    yield _Batch(file, folder_of(name), lines, line.offset)
                    lines, size = [], 0
            if lines:
                yield _Batch(file, folder_of(name), lines, lines[-1].offset)

    def _take(self, file: int, line: Line, outcome: Accepted | Refused) -> None:
        self.report.lines += 1
        if isinstance(outcome, Refused):
            self._rejects.add(file, line.number, outcome.problem, line.text())
            return
        for problem in outcome.warnings:
            self._warnings.add(file, line.number, problem)
        self.report.rows_per_task[outcome.task] += 1
        if len(outcome.images) > 1:
            self._groups.join(outcome.images)
        task = self._tasks.index(outcome.task)
        question = seeded(outcome.question_key, self.options.seed)
        self._split_records.write(_SPLIT_RECORD.pack(outcome.images[0], task, question, outcome.content_key))
        measures = outcome.measures
        raw = line.text() if self.options.duplicates == "reject" else ""
        rest = [file, line.number, outcome.task, measures.prompt, measures.answer, measures.image_sizes, raw]
        payload = outcome.row.encode() + _END_OF_ROW + f"{file:08d}{line.number:012d}".encode()
        self._rows.add(question + outcome.content_key, payload + json.dumps(rest).encode())

    def _placed_rows(self) -> Iterator[tuple["_Row", str]]:
        """All rows in output order with their split. The sorted validation keys are among the sorted row keys."""
        validation = iter(self._validation)
        chosen = next(validation, (None, b""))[0]
        for key, payload in self._rows:
            while chosen is not None and chosen < key:
                chosen = next(validation, (None, b""))[0]
            yield _Row.read(key, payload), "val" if key == chosen else "train"

    def _keep(self, row: "_Row", neighbours: "_Neighbours") -> bool:
        """Report a row that repeats or contradicts an earlier one; False when it shall not be written."""
        conflict, original = neighbours.meet(row)
        if conflict is not None:
            reason = f"{self._place(conflict)} has the same images and prompt with another reference"
            self._warnings.add(row.file, row.line, Problem("conflicting_reference", "ref_answer", reason))
        if original is None:
            return True
        problem = Problem("duplicate", "", f"the same sample as {self._place(original)}")
        if self.options.duplicates == "reject":
            self._rejects.add(row.file, row.line, problem, row.raw)
        else:
            self._warnings.add(row.file, row.line, problem)
        return self.options.duplicates == "warn"

    def _place(self, row: "_Row") -> str:
        return f"{self.options.inputs[row.file]}:{row.line}"


@dataclass(frozen=True)
class _Batch:
    """Consecutive lines of one input; `offset` is the position behind them."""

    file: int
    folder: str
    lines: list[Line]
    offset: int


class _BatchChecker:
    """The workers' function."""

    def __init__(self, options: CheckOptions):
        self._checker = LineChecker(options)

    def __call__(self, batch: _Batch) -> list[Accepted | Refused]:
        return [self._checker.check(line, batch.folder) for line in batch.lines]


@dataclass(frozen=True)
class _Row:
    """A row on its way to the output; `content` is the JSON of `schema.build_row` without its place."""

    key: bytes
    content: bytes
    file: int
    line: int
    task: str
    prompt_length: int
    answer_length: int
    image_sizes: list[tuple[int, int]]
    raw: str

    @classmethod
    def read(cls, key: bytes, payload: bytes) -> "_Row":
        content, rest = payload.split(_END_OF_ROW, 1)
        # The first 20 bytes only make the order of equal rows that of the input.
        return cls(key, content, *json.loads(rest[20:]))

    def question_key(self) -> bytes:
        return self.key[:16]

    def reference(self) -> str:
        return json.loads(self.content)["reward_model"]["ground_truth"]

    def finished(self, split: str, index: int, copies: int) -> dict[str, Any]:
        row = json.loads(self.content)
        identity = self.key[16:].hex() + (f"-{copies}" if copies > 1 else "")
        row["extra_info"] |= {"split": split, "index": index, "id": identity}
        return row


class _Neighbours:
    """Finds equal and contradicting rows, which stand side by side in the output order."""

    def __init__(self) -> None:
        self._question: _Row | None = None
        self._sample: _Row | None = None
        self.copies = 0

    def meet(self, row: _Row) -> tuple[_Row | None, _Row | None]:
        """The earlier row that this one contradicts and the earlier row it repeats; `copies` counts the equal ones."""
        if self._sample is not None and self._sample.key == row.key:
            self.copies += 1
            return None, self._sample
        conflict = None
        if self._question is None or self._question.question_key() != row.question_key():
            self._question = row
        elif self._question.reference() != row.reference():
            conflict = self._question
        self._sample, self.copies = row, 1
        return conflict, None
