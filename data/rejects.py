"""What can be wrong with an input line: the closed list of reasons."""

from dataclasses import dataclass

# kind -> what it means; the documentation and the tests iterate over this table.
REJECT_KINDS: dict[str, str] = {
    # the file and the line
    "unreadable_input": "the rest of the input file cannot be read (damaged archive, broken parquet page)",
    "line_too_long": "the line is longer than --max-line-mb",
    "invalid_utf8": "the line is not UTF-8 text",
    "invalid_json": "the line is not JSON",
    "not_an_object": "the line is JSON, but not an object",
    "duplicate_key": "an object of the line holds the same key twice, so one value would be lost",
    "invalid_unicode": "a text holds half of a surrogate pair, which no UTF-8 file can store",
    # fields
    "missing_image": "no image field",
    "image_type": "an image field is neither a path nor a list of paths",
    "image_conflict": "two image fields of the record name different images",
    "missing_reference": "no reference answer",
    "missing_question": "no question (it may be empty, but must be there)",
    "missing_task_type": "neither the record nor --task-type names the task",
    "unknown_task_type": "the task type hits none of the known tasks",
    "ambiguous_task_type": "the task type hits several tasks",
    "task_type_conflict": "the record's task differs from --task-type",
    "field_type": "a field is not of the type it must have",
    "conversation_shape": "the turns do not start with a question and its answer",
    # the prompt
    "prompt_message": "a chat message without a usable role or content",
    "prompt_part": "a content part that is neither text nor image",
    "prompt_last_role": "the chat does not end with a user turn",
    "placeholder_count": "the number of <image> placeholders differs from the number of images",
    "stray_media_tag": "<image>, <video> or <audio> inside text, which verl reads as a media slot",
    "control_token": "a control token of the model inside text",
    # images
    "image_path": "the image path is empty or cannot be a path",
    "image_remote": "the image is a URL or embedded data, not a file",
    "image_not_found": "the image file does not exist",
    "image_not_file": "the image path is not a regular file",
    "image_denied": "the image file cannot be opened",
    "image_empty": "the image file has no content",
    "image_unreadable": "the file is no image of a supported format",
    "image_undecodable": "the pixels cannot be decoded (cut off or damaged)",
    "image_too_many_pixels": "the image has more pixels than --max-image-pixels (decompression bomb)",
    "image_aspect_ratio": "one side is over 200 times the other, which the model's processor refuses",
    "image_mode": "16 or 32 bits a pixel, which would be clipped to white when read as RGB",
    "image_resized": "the model's processor would shrink or enlarge the image (--resized-images reject)",
    # the reference
    "reference_empty": "the reference is empty",
    "reference_unusable": "the task's scorer cannot use the reference",
    "reference_self_score": "the reference does not get the full score against itself",
    "scorer_error": "the task's scorer failed on the reference",
    # the set
    "duplicate": "the same sample occurs before (--duplicates reject)",
}

WARNING_KINDS: dict[str, str] = {
    "duplicate": "the same sample occurs before",
    "conflicting_reference": "same images and prompt as another sample, but another reference",
    "ambiguous_task_type": "the task type hits several tasks; scored as the one named",
    "extra_turns": "only the first question and answer of the conversation are used",
    "empty_instruction": "the prompt holds no text besides the images",
    "escaped_tag": "a media tag or control token in text was escaped",
    "image_downscaled": "the model's processor shrinks the image",
    "image_upscaled": "the model's processor enlarges the image",
    "image_orientation": "the EXIF orientation is not upright, and training shows the pixels as stored",
    "image_transparency": "transparent pixels: reading as RGB shows the colour hidden under them",
    "image_frames": "more than one frame or page; only the first is used",
}


@dataclass(frozen=True)
class Problem:
    """A finding on one line. `kind` is a key of `REJECT_KINDS` or `WARNING_KINDS`, `field` a path like `prompt[0]`."""

    kind: str
    field: str
    reason: str


class Rejected(Exception):
    """The line cannot become a row."""

    def __init__(self, kind: str, field: str, reason: str):
        if kind not in REJECT_KINDS:
            raise KeyError(kind)
        super().__init__(reason)
        self.problem = Problem(kind, field, reason)
