"""Convert raw OCR records (JSON Lines) to the parquet files that training reads.

python data/prepare_data.py --inputs a.jsonl --output_train train.parquet --output_val val.parquet --val_ratio 0.02
"""

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import pyarrow as pa
import pyarrow.parquet as pq

from data.schema import SCHEMA, build_row


def main(argv=None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--inputs", nargs="+", required=True)
    p.add_argument("--output_train", required=True)
    p.add_argument("--output_val")
    p.add_argument("--val_ratio", type=float, default=0.02)
    p.add_argument("--task-type", "--task_type")
    p.add_argument("--data_source", "--data-source")
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args(argv)
    rows = []
    for name in args.inputs:
        base = Path(name).resolve().parent
        with open(name, encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                if not line.strip():
                    continue
                rec = json.loads(line)
                images = rec.get("images") or rec.get("image") or rec.get("img_path")
                images = [images] if isinstance(images, str) else list(images)
                images = [os.path.abspath(base / i) for i in images]
                task = rec.get("task_type") or args.task_type
                if not task or "ref_answer" not in rec or "question" not in rec:
                    print(f"{name}:{number}: ref_answer, question and task_type are required", file=sys.stderr)
                    return 1
                answer = rec["ref_answer"]
                if not isinstance(answer, str):
                    answer = json.dumps(answer, ensure_ascii=False)
                prompt = rec.get("prompt")
                if prompt is None:
                    prompt = "<image>" * len(images) + rec["question"]
                if isinstance(prompt, str):
                    prompt = [{"role": "user", "content": prompt}]
                row_id = hashlib.blake2b(line.encode(), digest_size=16).hexdigest()
                rows.append((row_id, args.data_source or task, prompt, images, answer, task, rec))
    rows.sort(key=lambda r: r[0])
    n_val = max(1, round(len(rows) * args.val_ratio)) if args.output_val else 0
    for path, split, part in (
        (args.output_val, "val", rows[:n_val]),
        (args.output_train, "train", rows[n_val:]),
    ):
        if not path:
            continue
        table = pa.Table.from_pylist(
            [
                build_row(
                    data_source=ds,
                    prompt=prompt,
                    images=images,
                    ground_truth=answer,
                    task_type=task,
                    question=rec["question"],
                    source_lang_text=rec.get("source_lang_text") or "",
                    target_lang=rec.get("target_lang") or "",
                    index=i,
                    split=split,
                    row_id=row_id,
                )
                for i, (row_id, ds, prompt, images, answer, task, rec) in enumerate(part)
            ],
            schema=SCHEMA,
        )
        pq.write_table(table, path + ".tmp")
        os.replace(path + ".tmp", path)
        print(f"{path}: {len(part)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
