"""Can the data be trained on? Columns, rows, task types, and on a sample of rows: images, placeholders, references, lengths."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from utils.preflight.context import Context, readable
from utils.preflight.data_files import DataFile, task_type_of
from utils.preflight.model import round_up
from utils.preflight.results import NotChecked, Result, failed, passed, some, warned

PREPARE = "convert the raw data with data/prepare_data.py"
TOLERATED = 0.1
"""Share of unusable rows in the sample above which a check fails; below it warns: training leaves such rows out."""
OPENED_IMAGES = 48
DECODED_IMAGES = 8
SCORING_S = 4.0
"""References are scored for at most so long."""


def check_schema(context: Context) -> list[Result]:
    check, settings = "data.schema", context.settings
    if not settings.train_files:
        return [failed(check, "TRAIN_FILES is not set", f"set TRAIN_FILES; {PREPARE}")]
    results = []
    for file in context.data:
        try:
            problems = list(_schema_problems(file))
        except (OSError, pa.ArrowException) as error:
            results.append(failed(check, f"{file.path}: {error}", f"give a readable parquet; {PREPARE}"))
            continue
        if problems:
            results.append(failed(check, f"{file.path}: {'; '.join(problems)}", PREPARE))
    if not settings.val_files or set(settings.val_files) & set(settings.train_files):
        found = "the run is validated on its training files: scores will look better than they are"
        results.append(warned(check, found, "set VAL_FILES (data/prepare_data.py --output_val)"))
    return results or [passed(check, f"{len(context.data)} file(s) with the columns that verl reads")]


def _schema_problems(file: DataFile) -> Iterator[str]:
    schema = file.schema
    for name in ("data_source", "prompt", "reward_model"):
        if name not in schema.names:
            yield f"no column {name}"
    if "data_source" in schema.names and not _is_text(schema.field("data_source").type):
        yield f"data_source is {schema.field('data_source').type}, not text"
    if "prompt" in schema.names:
        kind = schema.field("prompt").type
        item = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else None
        if item is None or not pa.types.is_struct(item) or {"role", "content"} - {field.name for field in item}:
            yield f"prompt is {kind}, not a list of messages with role and content"
    if "reward_model" in schema.names:
        kind = schema.field("reward_model").type
        if not pa.types.is_struct(kind) or kind.get_field_index("ground_truth") < 0:
            yield "reward_model has no ground_truth"
    if "extra_info" in schema.names and not pa.types.is_struct(schema.field("extra_info").type):
        yield f"extra_info is {schema.field('extra_info').type}, not a struct"


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def check_rows(context: Context) -> list[Result]:
    check, settings = "data.rows", context.settings
    rows, batch = context.train_rows, settings.train_batch_size
    held_out = [file for file in context.data if file.path in settings.val_files]
    if held_out and sum(readable(lambda file=file: file.rows) for file in held_out) == 0:
        return [failed(check, f"no rows in VAL_FILES={','.join(settings.val_files)}", PREPARE)]
    if rows < batch:
        usable = max(1, rows // settings.mini_batch_size * settings.mini_batch_size or rows)
        found = f"{rows} training rows are fewer than TRAIN_BATCH_SIZE={batch}: not one step can be made"
        also = f" and PPO_MINI_BATCH_SIZE={usable}" if usable < settings.mini_batch_size else ""
        return [failed(check, found, f"set TRAIN_BATCH_SIZE={usable}{also}, or add data")]
    steps = f"{rows // batch} steps an epoch, {context.total_steps} in all"
    return [passed(check, f"{rows:,} training rows, {steps}")]


def check_task_types(context: Context) -> list[Result]:
    """Every task type must name one task of the kit's reward; another reward function has its own names."""
    from reward.ocr_utils import canonical_tasks, classify_task, matching_tasks

    check, types = "data.task_types", task_types(context)
    if not context.settings.uses_kit_reward:
        return [passed(check, f"{some(types, 8)}, left to REWARD_FN_PATH={context.settings.reward_path}")]
    unknown = {name: count for name, count in types.items() if not classify_task(name)}
    if unknown:
        counts = some(f"{name!r} ({count} rows)" for name, count in unknown.items())
        remedy = f"rename them to one of {', '.join(canonical_tasks())} (their rows are dropped in every step)"
        return [failed(check, f"task types that no scorer knows: {counts}", remedy)]
    ambiguous = [f"{name!r} ({', '.join(matching_tasks(name))})" for name in types if len(matching_tasks(name)) > 1]
    if ambiguous:
        remedy = "rename them so that they name one task; the first is taken"
        return [warned(check, f"task types that name several tasks: {some(ambiguous)}", remedy)]
    tasks: Counter[str] = Counter()
    for name, count in types.items():
        tasks[classify_task(name)] += count
    return [passed(check, ", ".join(f"{task} {count}" for task, count in tasks.most_common()))]


def task_types(context: Context) -> Counter[str]:
    """Rows per task type over all files."""
    found: Counter[str] = Counter()
    for file in context.data:
        found.update(readable(lambda file=file: file.scan.task_types))
    return found


def sample(context: Context) -> list[tuple[str, int, dict[str, Any]]]:
    """(file, row number, row) of the sampled rows of all files."""
    found = []
    for file in context.data:
        found.extend((file.path, number, row) for number, row in readable(lambda file=file: file.sample))
    if not found:
        raise NotChecked("the data has no rows")
    return found


def check_images(context: Context) -> list[Result]:
    """Opens images of the sample, and decodes a few of them."""
    from data.images import ImageInspector, resolve_path
    from data.rejects import Rejected

    check = "data.images"
    opened, decoded = ImageInspector("open", 2 * 89_478_485, by_path=True), ImageInspector("decode", 2 * 89_478_485)
    problems, relative, seen = [], 0, {}
    for file, number, row in sample(context):
        for name in row.get(context.settings.image_key) or []:
            if isinstance(name, str):
                seen.setdefault(name, f"{file} row {number}")
    names = list(seen)[:: max(1, len(seen) // OPENED_IMAGES)][:OPENED_IMAGES]
    for index, name in enumerate(names):
        path = name.removeprefix("file://")
        if not path.startswith("/"):
            relative += 1
        try:
            inspector = decoded if index % max(1, len(names) // DECODED_IMAGES) == 0 else opened
            inspector.inspect(resolve_path(name, "."))
        except Rejected as rejected:
            problems.append(f"{seen[name]}: {rejected.problem.reason}")
    results = []
    if relative:
        found = f"{relative} of {len(names)} sampled image paths are relative: workers look for them in another folder"
        results.append(failed(check, found, f"write absolute paths; {PREPARE} (--image-root)"))
    if problems:
        found = f"{len(problems)} of {len(names)} sampled images cannot be used, e.g. {problems[0]}"
        remedy = "restore the files; data/prepare_data.py --check-images decode lists all of them"
        say = failed if len(problems) > TOLERATED * len(names) else warned
        results.append(say(check, found, remedy))
    return results or [passed(check, f"{len(names)} images of the sample opened" if names else "no images")]


def check_image_count(context: Context) -> list[Result]:
    check, limit = "data.image_count", context.settings.max_images
    counts: Counter[int] = Counter()
    for file in context.data:
        counts.update(readable(lambda file=file: file.scan.rows_by_images))
    most = max(counts, default=0)
    over = sum(rows for count, rows in counts.items() if count > limit)
    if over:
        found = f"{over} row(s) have more than MAX_IMAGES={limit} images (up to {most}): vLLM refuses their prompts"
        return [failed(check, found, f"set MAX_IMAGES={most}, or leave these rows out")]
    return [passed(check, f"at most {most} images a prompt, MAX_IMAGES={limit}")]


def check_placeholders(context: Context) -> list[Result]:
    """Every image of a row needs one ``<image>`` in its messages."""
    from data.prompts import IMAGE_TAG

    check, wrong, rows = "data.placeholders", [], sample(context)
    for file, number, row in rows:
        slots = sum(str(message.get("content")).count(IMAGE_TAG) for message in row.get("prompt") or [])
        images = len(row.get(context.settings.image_key) or [])
        if slots != images:
            wrong.append(f"{file} row {number}: {slots} {IMAGE_TAG} for {images} image(s)")
    if wrong:
        found = f"{len(wrong)} of {len(rows)} sampled prompts do not match their images, e.g. {wrong[0]}"
        return [failed(check, found, PREPARE)]
    return [passed(check, f"{len(rows)} sampled prompts have one {IMAGE_TAG} per image")]


def check_references(context: Context) -> list[Result]:
    """Scores references of the sample against themselves, as ``python -m reward audit`` does with all rows."""
    from reward.cli.audit import audit_row

    check = "data.references"
    if not context.settings.uses_kit_reward:
        raise NotChecked("another reward function reads the references its own way")
    problems, scored, kinds, started = [], 0, Counter(), time.monotonic()
    rows = sample(context)
    for file, number, row in rows:
        if time.monotonic() - started > SCORING_S:
            break
        scored += 1
        findings = [found for found in audit_row(number, _fields(row))[1] if found.problem not in _NAMED_ELSEWHERE]
        kinds.update(found.problem for found in findings)
        problems.extend(f"{file} row {found.row}: {found.problem}: {found.detail[:160]}" for found in findings[:1])
    if problems:
        named = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
        found = f"{len(problems)} of {scored} sampled references ({named}), e.g. {problems[0]}"
        say = failed if len(problems) > TOLERATED * scored else warned
        return [
            say(check, found, f"repair or leave out the rows that python -m reward audit {context.data[0].path} lists")
        ]
    return [passed(check, f"{scored} sampled references score 1 against themselves or have what their judge needs")]


# check_task_types looks at these in all rows.
_NAMED_ELSEWHERE = ("unknown_task", "ambiguous_task")


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the reward function sees it."""
    extra = row.get("extra_info") if isinstance(row.get("extra_info"), dict) else {}
    reward_model = row.get("reward_model") if isinstance(row.get("reward_model"), dict) else {}
    return {**extra, "data_source": row.get("data_source"), "ref_answer": reward_model.get("ground_truth")}


def check_lengths(context: Context) -> list[Result]:
    """Tokens of sampled prompts, images included, and of references."""
    from jinja2 import TemplateError

    check, settings, model = "data.lengths", context.settings, context.model
    prompts, answers = [], []
    for _, _, row in sample(context):
        try:
            tokens = readable(lambda row=row: prompt_tokens(context, row))
        except TemplateError as error:
            raise NotChecked(f"the chat template fails: {error}") from error
        if tokens is not None:
            prompts.append(tokens)
        answers.append(readable(lambda row=row: model.count(str(_fields(row)["ref_answer"] or ""))))
    if not prompts:
        raise NotChecked("no sampled prompt could be counted")
    return [
        _length(check, "prompts", prompts, "MAX_PROMPT_LENGTH", settings.max_prompt_length, "are left out"),
        _length(check, "references", answers, "MAX_RESPONSE_LENGTH", settings.max_response_length, "cannot be reached"),
    ]


def _length(check: str, what: str, lengths: list[int], name: str, limit: int, fate: str) -> Result:
    over, most = sum(length > limit for length in lengths), max(lengths)
    if over <= TOLERATED / 2 * len(lengths):
        return passed(check, f"sampled {what}: up to {most} tokens, {name}={limit}")
    found = f"{over} of {len(lengths)} sampled {what} are longer than {name}={limit} (up to {most}): they {fate}"
    # Short answers to long references are a choice; a run without most of its prompts is none.
    say = failed if what == "prompts" and over > len(lengths) / 2 else warned
    return say(check, found, f"set {name}={round_up(most)}, and MAX_MODEL_LEN and the token budgets with it")


def prompt_tokens(context: Context, row: dict[str, Any]) -> int | None:
    """Tokens of a row's prompt as training counts them; None when an image is no readable file."""
    from verl_hyocr.image_tokens import ImageTokenRule
    from verl_hyocr.prompt_filter import image_size

    from data.token_counts import chat_parts

    rule = ImageTokenRule.from_pretrained(context.model.folder)
    messages = [
        {"role": message["role"], "content": chat_parts(message["content"])} for message in row.get("prompt") or []
    ]
    try:
        images = sum(rule.tokens(*image_size(image)) - 1 for image in row.get(context.settings.image_key) or [])
    except (OSError, ValueError, TypeError):
        return None
    return context.model.count(context.model.render(messages)) + images


def first_row_of_each_type(context: Context) -> dict[str, dict[str, Any]]:
    """Task type -> its first row."""
    found: dict[str, dict[str, Any]] = {}
    for _, _, row in sample(context):
        found.setdefault(task_type_of(row), row)
    return found
