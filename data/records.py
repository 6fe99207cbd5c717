"""Raw records of every accepted layout, brought to one form. Nothing here touches the file system.

Layouts, told by their fields:

- native: `image` / `images` / `img_path`, `ref_answer`, `question`, optional `prompt`
- turns: `img_path_sh` / `img_path_cq`, `conv[0].question`, `conv[0].answer`
- chat: `image_path`, `conversations` of `{"from", "value"}`
- verl: a row that this kit wrote before (`reward_model`, `extra_info`)
"""

import json
from dataclasses import dataclass, field
from typing import Any

from data.prompts import IMAGE_TAG, PromptReader
from data.rejects import Problem, Rejected
from data.schema import Message
from reward.ocr_utils import canonical_tasks, matching_tasks

_IMAGE_FIELDS = ("images", "image", "img_path")
_FROM_USER, _FROM_MODEL = ("human", "user"), ("gpt", "assistant")


class SpelledFloat(float):
    """A number that knows how it was written: a reference of 12.50 must not become 12.5."""

    spelling: str

    def __new__(cls, spelling: str) -> "SpelledFloat":
        number = super().__new__(cls, spelling)
        number.spelling = spelling
        return number


@dataclass
class Record:
    """One sample. `images` are named as in the input; `task` is the canonical name that `task_type` hits."""

    task_type: str
    task: str
    messages: list[Message]
    images: list[str]
    reference: str
    question: str
    source_lang_text: str
    target_lang: str
    data_source: str = ""
    warnings: list[Problem] = field(default_factory=list)
    # Where the input holds the images and the reference, for messages about them.
    image_field: str = "images"
    reference_field: str = "ref_answer"


@dataclass
class _Fields:
    """A record as fields of the native layout, with the name each has in the input."""

    values: dict[str, Any]
    names: dict[str, str]
    image_fields: tuple[str, ...]
    warnings: list[Problem] = field(default_factory=list)
    data_source: str = ""

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def name(self, name: str) -> str:
        return self.names.get(name, name)


@dataclass(frozen=True)
class RecordReader:
    """Turns the object of one line into a `Record`.

    Args:
        task_type: names the task of records that do not; a record that names another task is rejected.
        escape_media_tags: write stray media tags and control tokens apart instead of rejecting the record.
        allow_ambiguous_task: take the first task of a name that hits several, with a warning.
    """

    task_type: str = ""
    escape_media_tags: bool = False
    allow_ambiguous_task: bool = False

    def read(self, raw: dict[str, Any]) -> Record:
        """Raises `Rejected` with the field at fault."""
        fields = _fields_of(raw)
        images, image_field = _images(fields)
        task_type, task = self._task(fields)
        reference = _reference(fields)
        question = _text(fields, "question", required="missing_question")
        prompt = self._prompt(fields, question, images)
        if images is None:
            images, image_field = _named_images(prompt.images, fields.name("prompt")), fields.name("prompt")
        else:
            _check_same_images(prompt.images, images, fields.name("prompt"))
        if not any(message["content"].replace(IMAGE_TAG, "").strip() for message in prompt.messages):
            fields.warnings.append(Problem("empty_instruction", fields.name("prompt"), "the prompt is images only"))
        return Record(
            task_type=task_type,
            task=task,
            messages=prompt.messages,
            images=images,
            reference=reference,
            question=question,
            source_lang_text=_text(fields, "source_lang_text"),
            target_lang=_text(fields, "target_lang"),
            data_source=fields.data_source,
            warnings=fields.warnings + prompt.warnings,
            image_field=image_field,
            reference_field=fields.name("ref_answer"),
        )

    def _task(self, fields: _Fields) -> tuple[str, str]:
        where = fields.name("task_type")
        own = fields.get("task_type")
        if own is not None and not isinstance(own, str):
            raise Rejected("field_type", where, f"a task type is text, not {_type(own)}")
        name = (own or "").strip() or self.task_type
        if not name:
            raise Rejected("missing_task_type", where, "no task type; add the field or pass --task-type")
        tasks = matching_tasks(name)
        if not tasks:
            known = ", ".join(canonical_tasks())
            raise Rejected("unknown_task_type", where, f"{name!r} names none of the tasks {known}")
        if len(tasks) > 1:
            reason = f"{name!r} names {', '.join(tasks)}; it would be scored as {tasks[0]}"
            if not self.allow_ambiguous_task:
                raise Rejected("ambiguous_task_type", where, reason + ". Rename it, or pass --ambiguous-task warn")
            fields.warnings.append(Problem("ambiguous_task_type", where, reason))
        if self.task_type and tasks[0] != matching_tasks(self.task_type)[0]:
            reason = f"the record says {name!r}, --task-type says {self.task_type!r}; drop one of the two"
            raise Rejected("task_type_conflict", where, reason)
        return name, tasks[0]

    def _prompt(self, fields: _Fields, question: str, images: list[str] | None):
        reader = PromptReader(self.escape_media_tags)
        prompt, where = fields.get("prompt"), fields.name("prompt")
        if isinstance(prompt, list):
            return reader.from_messages(prompt, None if images is None else len(images), where)
        if images is None:
            names = " or ".join(fields.image_fields)
            raise Rejected("missing_image", fields.image_fields[0], f"the record names no image ({names})")
        if prompt is None or (isinstance(prompt, str) and not prompt.strip()):
            return reader.from_question(question, len(images), fields.name("question"))
        if not isinstance(prompt, str):
            raise Rejected("field_type", where, f"a prompt is text or a list of messages, not {_type(prompt)}")
        return reader.from_text(prompt, len(images), where)


def _fields_of(raw: dict[str, Any]) -> _Fields:
    if raw.get("ref_answer") is None:
        if isinstance(raw.get("reward_model"), dict):
            return _verl_fields(raw)
        if raw.get("conv") is not None:
            return _turns_fields(raw)
        if raw.get("conversations") is not None:
            return _chat_fields(raw)
    return _Fields(raw, {}, _IMAGE_FIELDS)


def _turns_fields(raw: dict[str, Any]) -> _Fields:
    turns = raw["conv"]
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], dict):
        raise Rejected("conversation_shape", "conv", "conv is a list that starts with {question, answer}")
    # One image under two mounts: the first that is set counts.
    mount = "img_path_sh" if raw.get("img_path_sh") else "img_path_cq"
    values = {**_shared(raw), mount: raw.get(mount), "ref_answer": turns[0].get("answer")}
    names = {"ref_answer": "conv[0].answer", "question": "conv[0].question", "prompt": "conv[0].question"}
    _put_question(values, turns[0].get("question"))
    return _Fields(values, names, (mount,), _extra_turns(len(turns) - 1, "conv"))


def _chat_fields(raw: dict[str, Any]) -> _Fields:
    turns = raw["conversations"]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise Rejected("conversation_shape", "conversations", "conversations is a list of {from, value}")
    first = 1 if turns and turns[0].get("from") == "system" else 0
    speakers = [turn.get("from") for turn in turns[first : first + 2]]
    if len(speakers) < 2 or speakers[0] not in _FROM_USER or speakers[1] not in _FROM_MODEL:
        reason = "a question (from: human) and its answer (from: gpt) have to come first"
        raise Rejected("conversation_shape", "conversations", reason)
    asked = f"conversations[{first}].value"
    values = {
        **_shared(raw),
        "image_path": raw.get("image_path"),
        "ref_answer": turns[first + 1].get("value"),
    }
    names = {"ref_answer": f"conversations[{first + 1}].value", "question": asked, "prompt": asked}
    _put_question(values, turns[first].get("value"))
    if first:
        question = values.get("prompt", turns[first].get("value"))
        values["prompt"] = _with_system(turns[0].get("value"), question, raw.get("image_path"))
        names["prompt"] = "conversations"
    return _Fields(values, names, ("image_path",), _extra_turns(len(turns) - first - 2, "conversations"))


def _verl_fields(raw: dict[str, Any]) -> _Fields:
    extra = raw.get("extra_info")
    extra = extra if isinstance(extra, dict) else {}
    names = {name: f"extra_info.{name}" for name in ("question", "task_type", "source_lang_text", "target_lang")}
    values = {
        "prompt": raw.get("prompt"),
        "images": raw.get("images"),
        "ref_answer": raw["reward_model"].get("ground_truth"),
        **{name: extra.get(name) for name in names},
    }
    source = raw.get("data_source")
    names["ref_answer"] = "reward_model.ground_truth"
    return _Fields(values, names, ("images",), data_source=source if isinstance(source, str) else "")


def _shared(raw: dict[str, Any]) -> dict[str, Any]:
    return {name: raw.get(name) for name in ("task_type", "source_lang_text", "target_lang")}


def _put_question(values: dict[str, Any], asked: Any) -> None:
    """A turn that marks its images is a prompt; the question is its text without the marks."""
    if isinstance(asked, str) and IMAGE_TAG in asked:
        values["prompt"], values["question"] = asked, asked.replace(IMAGE_TAG, "").strip()
    else:
        values["question"] = asked


def _with_system(system: Any, asked: Any, images: Any) -> Any:
    if isinstance(asked, str) and IMAGE_TAG not in asked:
        count = len(images) if isinstance(images, list) else 1
        asked = IMAGE_TAG * count + asked
    return [{"role": "system", "content": system}, {"role": "user", "content": asked}]


def _extra_turns(count: int, where: str) -> list[Problem]:
    return [Problem("extra_turns", where, f"{count} later turns are not used")] if count > 0 else []


def _images(fields: _Fields) -> tuple[list[str] | None, str]:
    """The images the record names and the field that does; None when it names none."""
    named: list[str] | None = None
    by = fields.image_fields[0]
    for name in fields.image_fields:
        value = fields.get(name)
        if value is None or value == "" or value == []:
            continue
        paths = [value] if isinstance(value, str) else value
        if isinstance(paths, list):
            paths = [_path_of(path) for path in paths]
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise Rejected("image_type", name, f"an image is a path or a list of paths, not {_type(value)}")
        if named is not None and paths != named:
            raise Rejected("image_conflict", name, f"{name} and {by} name different images; keep one of them")
        if named is None:
            named, by = paths, name
    return named, by


def _path_of(entry: Any) -> Any:
    """The path in `{"image": path}` or `{"path": path}`, which other verl data sets use; anything else as it is."""
    if isinstance(entry, dict) and entry.get("bytes") is None:
        for name in ("image", "path"):
            if isinstance(entry.get(name), str):
                return entry[name]
    return entry


def _named_images(images: list[str | None], where: str) -> list[str]:
    named = [image for image in images if image is not None]
    if not images or len(named) != len(images):
        reason = "the record names no image" if not images else "an image part without a path, and no image field"
        raise Rejected("missing_image", where, reason)
    return named


def _check_same_images(in_parts: list[str | None], in_fields: list[str], where: str) -> None:
    for number, image in enumerate(in_parts):
        if image is not None and (number >= len(in_fields) or image != in_fields[number]):
            raise Rejected(
                "image_conflict", where, f"the prompt shows {image!r}, which the image field does not name there"
            )


def _reference(fields: _Fields) -> str:
    value = fields.get("ref_answer")
    if value is None:
        raise Rejected("missing_reference", fields.name("ref_answer"), "no reference answer to score against")
    return value if isinstance(value, str) else _json_text(value)


def _json_text(value: Any) -> str:
    """JSON of an answer that is no text, with every number spelled as in the input."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_json_text(key)}: {_json_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json_text, value)) + "]"
    return value.spelling if isinstance(value, SpelledFloat) else json.dumps(value, ensure_ascii=False)


def _text(fields: _Fields, name: str, required: str = "") -> str:
    value = fields.get(name)
    if value is None:
        if required:
            raise Rejected(required, fields.name(name), f"no {name}; it may be an empty text, but must be there")
        return ""
    if not isinstance(value, str):
        raise Rejected("field_type", fields.name(name), f"{name} is text, not {_type(value)}")
    return value


def _type(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), type(value).__name__)
