"""The one Arrow schema of every parquet file this kit writes, and the row builder for it.

Every column is non-null text, list or integer whatever the input held, so files of different tasks concatenate without
a cast: an empty value is `""` or `[]`, never null.
"""

from typing import Any, TypedDict

import pyarrow as pa

MESSAGE = pa.struct([pa.field("role", pa.string(), nullable=False), pa.field("content", pa.string(), nullable=False)])
TEXTS = pa.list_(pa.field("element", pa.string(), nullable=False))

SCHEMA = pa.schema(
    [
        pa.field("data_source", pa.string(), nullable=False),
        pa.field("prompt", pa.list_(pa.field("element", MESSAGE, nullable=False)), nullable=False),
        pa.field("images", TEXTS, nullable=False),
        pa.field(
            "reward_model",
            pa.struct(
                [
                    pa.field("style", pa.string(), nullable=False),
                    pa.field("ground_truth", pa.string(), nullable=False),
                ]
            ),
            nullable=False,
        ),
        pa.field(
            "extra_info",
            pa.struct(
                [
                    pa.field("task_type", pa.string(), nullable=False),
                    pa.field("question", pa.string(), nullable=False),
                    pa.field("img_path", TEXTS, nullable=False),
                    pa.field("source_lang_text", pa.string(), nullable=False),
                    pa.field("target_lang", pa.string(), nullable=False),
                    pa.field("index", pa.int64(), nullable=False),
                    pa.field("split", pa.string(), nullable=False),
                    pa.field("id", pa.string(), nullable=False),
                ]
            ),
            nullable=False,
        ),
    ]
)


class Message(TypedDict):
    """One chat turn; `content` is plain text in which `<image>` marks an image slot."""

    role: str
    content: str


def build_row(
    *,
    data_source: str,
    prompt: list[Message],
    images: list[str],
    ground_truth: str,
    task_type: str,
    question: str,
    source_lang_text: str,
    target_lang: str,
    index: int,
    split: str,
    row_id: str,
) -> dict[str, Any]:
    """Return one row in the layout of `SCHEMA`. `img_path` repeats `images`, which verl pops from rows."""
    return {
        "data_source": data_source,
        "prompt": prompt,
        "images": images,
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": {
            "task_type": task_type,
            "question": question,
            "img_path": images,
            "source_lang_text": source_lang_text,
            "target_lang": target_lang,
            "index": index,
            "split": split,
            "id": row_id,
        },
    }
