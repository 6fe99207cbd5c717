"""Chat prompts: from what records hold to plain-text messages in which every image has one `<image>` slot.

verl splits the content of every message at `<image>`, `<video>` and `<audio>`, so these words are slots wherever they
stand. In a prompt given as text they are read that way; in a question or in a text part they can only be stray.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from data.rejects import Problem, Rejected
from data.schema import Message

IMAGE_TAG = "<image>"
ROLES = ("system", "user", "assistant")
_MEDIA_TAG = re.compile(r"<(image|video|audio)>")
_OTHER_MEDIA_TAG = re.compile(r"<(video|audio)>")
# Tokens that steer HunYuan models; the tokenizer reads them as control tokens inside any text.
_CONTROL_TOKEN = re.compile(r"<(｜hy_[^｜<>]{1,40}｜|hy_place_holder_no_\d{1,4})>")


@dataclass
class Prompt:
    """`messages` with as many `<image>` slots as there are images; `images` as named by the content parts, if they name
    any (None where a part is a bare slot)."""

    messages: list[Message]
    images: list[str | None] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


class PromptReader:
    """Builds prompts. With `escape` a stray tag `<video>` becomes `< video>` (and is reported) instead of an error."""

    def __init__(self, escape: bool = False):
        self._escape = escape

    def from_question(self, question: str, image_count: int, where: str) -> Prompt:
        """One user turn: a slot per image, then the question."""
        prompt = Prompt([])
        text = self._literal(question, where, prompt)
        prompt.messages.append({"role": "user", "content": IMAGE_TAG * image_count + text})
        return prompt

    def from_text(self, text: str, image_count: int, where: str) -> Prompt:
        """One user turn of a text in which `<image>` marks the images; without any mark they go to its front."""
        prompt = Prompt([])
        text = self._slotted(text, where, prompt)
        if IMAGE_TAG not in text:
            text = IMAGE_TAG * image_count + text
        prompt.messages.append({"role": "user", "content": text})
        _check_slots(prompt, image_count, where)
        return prompt

    def from_messages(self, messages: list[Any], image_count: int | None, where: str) -> Prompt:
        """A whole chat. `image_count` None: the content parts name the images themselves."""
        prompt = Prompt([])
        for number, message in enumerate(messages):
            self._add_message(message, f"{where}[{number}]", prompt)
        if not prompt.messages or prompt.messages[-1]["role"] != "user":
            raise Rejected("prompt_last_role", where, "the model answers a user turn, so the chat has to end with one")
        _check_slots(prompt, image_count, where)
        return prompt

    def _add_message(self, message: Any, where: str, prompt: Prompt) -> None:
        if not isinstance(message, dict) or "content" not in message:
            raise Rejected("prompt_message", where, "a message is an object with role and content")
        role = message.get("role")
        if role not in ROLES:
            raise Rejected("prompt_message", f"{where}.role", f"role {role!r} is none of {', '.join(ROLES)}")
        content = message["content"]
        if isinstance(content, str):
            text = self._slotted(content, f"{where}.content", prompt)
        elif isinstance(content, list):
            text = "".join(self._part(part, f"{where}.content[{i}]", prompt) for i, part in enumerate(content))
        else:
            raise Rejected("prompt_message", f"{where}.content", "content is neither text nor a list of parts")
        prompt.messages.append({"role": role, "content": text})

    def _part(self, part: Any, where: str, prompt: Prompt) -> str:
        if isinstance(part, str):
            return self._literal(part, where, prompt)
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "input_text") and isinstance(part.get("text"), str):
            return self._literal(part["text"], where, prompt)
        if kind in ("image", "image_url", "input_image"):
            prompt.images.append(_image_of(part, where))
            return IMAGE_TAG
        raise Rejected(
            "prompt_part", where, f"a part of type {kind!r} is neither text nor an image; only those can be trained on"
        )

    def _literal(self, text: str, where: str, prompt: Prompt) -> str:
        """Text in which no tag can be meant as a slot."""
        return self._tokens(self._tags(text, _MEDIA_TAG, where, prompt), where, prompt)

    def _slotted(self, text: str, where: str, prompt: Prompt) -> str:
        """Text in which `<image>` is a slot."""
        return self._tokens(self._tags(text, _OTHER_MEDIA_TAG, where, prompt), where, prompt)

    def _tags(self, text: str, pattern: re.Pattern[str], where: str, prompt: Prompt) -> str:
        remedy = "; put the slots into prompt, or pass --escape-media-tags to keep it as text"
        return self._apart(text, pattern, where, prompt, "stray_media_tag", "verl reads it as a media slot" + remedy)

    def _tokens(self, text: str, where: str, prompt: Prompt) -> str:
        reason = "the tokenizer reads it as a control token; remove it, or pass --escape-media-tags to keep it as text"
        return self._apart(text, _CONTROL_TOKEN, where, prompt, "control_token", reason)

    def _apart(self, text: str, pattern: re.Pattern[str], where: str, prompt: Prompt, kind: str, reason: str) -> str:
        found = pattern.search(text)
        if found is None:
            return text
        if not self._escape:
            raise Rejected(kind, where, f"{found.group()!r} in text: {reason}")
        prompt.warnings.append(Problem("escaped_tag", where, f"{found.group()!r} became '< {found.group(1)}>'"))
        return pattern.sub(r"< \1>", text)


def _image_of(part: dict[str, Any], where: str) -> str | None:
    for name in ("image_url", "image", "path", "url"):
        value = part.get(name)
        if isinstance(value, dict):
            value = value.get("url")
        if isinstance(value, str) and value:
            return value
        if value is not None:
            raise Rejected("image_type", f"{where}.{name}", "an image is given by its path")
    return None


def _check_slots(prompt: Prompt, image_count: int | None, where: str) -> None:
    if image_count is None and not prompt.images:
        return  # no image at all, which the caller reports as such
    slots = sum(message["content"].count(IMAGE_TAG) for message in prompt.messages)
    expected = len(prompt.images) if image_count is None else image_count
    if slots != expected:
        raise Rejected(
            "placeholder_count",
            where,
            f"{slots} <image> placeholder{'s' * (slots != 1)} for {expected} image{'s' * (expected != 1)}",
        )
