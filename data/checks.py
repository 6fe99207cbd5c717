"""Everything that is checked on one input line, from its bytes to a finished row. Runs in the worker processes."""

import hashlib
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from data.images import ImageInfo, ImageInspector, resolve_path
from data.readers import Line
from data.records import Record, RecordReader, SpelledFloat
from data.rejects import Problem, Rejected
from data.schema import build_row
from data.token_counts import TokenCounter, import_image_tokens
from reward.ocr_scorer import SCORERS, JudgeScorer
from reward.ocr_utils import extract_answer

_SCORER_LOG = logging.getLogger("reward.ocr_scorer")

Score = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class CheckOptions:
    """How lines are read and checked; see the command line's help for each."""

    task_type: str = ""
    data_source: str = ""
    image_root: str = ""
    escape_media_tags: bool = False
    allow_ambiguous_task: bool = False
    check_images: str = "decode"
    max_image_pixels: int = 89_478_485
    group_by_path: bool = False
    reject_resized: bool = False
    check_references: bool = True
    model: str = ""
    seed: int = 0


@dataclass(frozen=True)
class Measures:
    """Sizes of one row for the statistics: lengths in tokens with a model, else in characters.

    `prompt` is -1 when it cannot be counted (image sizes unknown).
    """

    prompt: int
    answer: int
    image_sizes: list[tuple[int, int]]


@dataclass(frozen=True)
class Accepted:
    """A row, with its place among all rows.

    `question_key` and `content_key` (16 bytes each) order the output and find equal samples; `images` identifies the
    image contents; `row` is JSON of `schema.build_row` without its place.
    """

    question_key: bytes
    content_key: bytes
    images: tuple[bytes, ...]
    task: str
    row: str
    measures: Measures
    warnings: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Refused:
    """No row, and why."""

    problem: Problem


@dataclass
class LineChecker:
    """Checks lines. One serves a whole process and keeps the scorer, the tokenizer and what it knows of images."""

    options: CheckOptions
    _score: Score | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        options = self.options
        self._records = RecordReader(options.task_type, options.escape_media_tags, options.allow_ambiguous_task)
        self._images = ImageInspector(options.check_images, options.max_image_pixels, options.group_by_path)
        self._tokens = TokenCounter(options.model) if options.model else None
        rules = import_image_tokens().ImageTokenRule
        self._rule = self._tokens.rule if self._tokens else rules()

    def check(self, line: Line, folder: str) -> Accepted | Refused:
        """The row of a line whose relative image paths start at `folder`, or why there is none."""
        try:
            if line.problem is not None:
                raise Rejected(line.problem.kind, line.problem.field, line.problem.reason)
            return self._row(self._records.read(parse_line(line.raw)), folder)
        except Rejected as rejected:
            return Refused(rejected.problem)

    def _row(self, record: Record, folder: str) -> Accepted:
        _check_unicode(record)
        paths, infos, warnings = [], [], list(record.warnings)
        for number, name in enumerate(record.images):
            where = record.image_field if len(record.images) == 1 else f"{record.image_field}[{number}]"
            path, info = self._image(name, folder, where, warnings)
            paths.append(path)
            infos.append(info)
        self._check_reference(record)
        row = build_row(
            data_source=self.options.data_source or record.data_source or record.task_type,
            prompt=record.messages,
            images=paths,
            ground_truth=record.reference,
            task_type=record.task_type,
            question=record.question,
            source_lang_text=record.source_lang_text,
            target_lang=record.target_lang,
            index=0,
            split="",
            row_id="",
        )
        asked = [record.task, record.messages, [info.identity.hex() for info in infos]]
        rest = [record.task_type, record.reference, record.question, record.source_lang_text, record.target_lang]
        return Accepted(
            question_key=_digest(asked),
            content_key=_digest([asked, rest, row["data_source"]]),
            images=tuple(info.identity for info in infos),
            task=record.task,
            row=json.dumps(row, ensure_ascii=False),
            measures=self._measure(record, infos),
            warnings=tuple(warnings),
        )

    def _image(self, name: str, folder: str, where: str, warnings: list[Problem]) -> tuple[str, ImageInfo]:
        try:
            path = resolve_path(name, self.options.image_root or folder)
            info = self._images.inspect(path)
            warnings.extend(Problem(found.kind, where, found.reason) for found in info.warnings)
            if info.width:
                warnings.extend(self._check_size(path, info, where))
        except Rejected as rejected:
            raise Rejected(rejected.problem.kind, where, rejected.problem.reason) from rejected
        return path, info

    def _check_size(self, path: str, info: ImageInfo, where: str) -> list[Problem]:
        try:
            width, height = self._rule.target_size(info.width, info.height)
        except ValueError as error:
            raise Rejected("image_aspect_ratio", where, f"{path}: {info.width}x{info.height}: {error}") from error
        scale = self._rule.scale(info.width, info.height)
        if not scale:
            return []
        reason = f"{path}: {info.width}x{info.height} becomes {width}x{height} in the model's processor"
        if self.options.reject_resized:
            raise Rejected("image_resized", where, reason)
        return [Problem(f"image_{scale}scaled", where, reason)]

    def _check_reference(self, record: Record) -> None:
        where, scorer = record.reference_field, SCORERS[record.task]
        judged = isinstance(scorer, JudgeScorer)
        if (judged or not scorer.scores_empty_reference) and not extract_answer(record.reference).strip():
            raise Rejected("reference_empty", where, "the reference is empty, so nothing can be scored against it")
        if judged or not self.options.check_references:
            return
        result = self._scored(record)
        decision, analysis = result["decision"], result["analysis"][:300]
        if decision == "scored":
            if result["score"] < 1:
                reason = f"scores {result['score']:.4f} against itself in {record.task}: {analysis}"
                raise Rejected("reference_self_score", where, reason)
            return
        kinds = {"empty_reference": "reference_empty", "bad_reference": "reference_unusable"}
        raise Rejected(kinds.get(decision, "scorer_error"), where, f"{record.task}: {decision}: {analysis}")

    def _scored(self, record: Record) -> dict[str, Any]:
        if self._score is None:
            from reward_ocr import compute_score

            self._score = compute_score
        # What goes wrong becomes a finding with its place; the scorer's own log would say it again without one.
        _SCORER_LOG.disabled = True
        try:
            return self._score(
                data_source=record.task_type,
                solution_str=record.reference,
                ground_truth=record.reference,
                extra_info={"task_type": record.task_type, "question": record.question},
            )
        finally:
            _SCORER_LOG.disabled = False

    def _measure(self, record: Record, infos: list[ImageInfo]) -> Measures:
        sizes = [(info.width, info.height) for info in infos if info.width]
        if self._tokens is None:
            return Measures(sum(len(m["content"]) for m in record.messages), len(record.reference), sizes)
        prompt = self._tokens.prompt(record.messages, sizes) if len(sizes) == len(infos) else -1
        return Measures(prompt, self._tokens.text(record.reference), sizes)


def parse_line(raw: bytes) -> dict[str, Any]:
    """The object of one JSON line. Raises `Rejected` for anything but one object without repeated keys."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = "the file looks like UTF-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in raw[:4] else str(error)
        raise Rejected("invalid_utf8", "", f"{hint}; save it as UTF-8") from error
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant, parse_float=SpelledFloat)
    except RecursionError as error:
        raise Rejected("invalid_json", "", "nested too deeply") from error
    except ValueError as error:
        hint = "; the file looks like one JSON array, write one record a line" if text.strip() in ("[", "]") else ""
        raise Rejected("invalid_json", "", f"{error}{hint}") from error
    if not isinstance(value, dict):
        raise Rejected("not_an_object", "", f"a record is a JSON object, this is {type(value).__name__}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in found if keys.count(key) > 1)
        raise Rejected("duplicate_key", twice, f"the key {twice!r} occurs twice in one object")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _check_unicode(record: Record) -> None:
    texts = {
        record.reference_field: record.reference,
        "question": record.question,
        "task_type": record.task_type,
        "source_lang_text": record.source_lang_text,
        "target_lang": record.target_lang,
        "prompt": "".join(message["content"] for message in record.messages),
        record.image_field: "".join(record.images),
    }
    for where, text in texts.items():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            reason = f"{text[error.start]!r} at character {error.start} is half of a surrogate pair"
            raise Rejected("invalid_unicode", where, reason) from error


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(json.dumps(value, ensure_ascii=False).encode(), digest_size=16).digest()


def folder_of(file: str) -> str:
    """Where relative image paths of an input file start: its folder; the working directory for standard input."""
    return os.getcwd() if file == "-" else os.path.dirname(os.path.abspath(file))
