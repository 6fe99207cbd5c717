"""The prompt filter of the training dataset: sizes only against decoding, and the second start from the cache.

    python benchmarks/bench_dataset_filter.py            # 20,000 rows over 500 pages of 1000 x 1400 pixels

Upstream's way (decode, resize, process) is timed on `--decoded` rows of the same set in the same run, and both give seconds
a row. Fails (exit 1) when the filter is less than 20 times faster or the cached start takes 5 s or more.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from omegaconf import OmegaConf
from PIL import Image

_ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(_ROOT), str(_ROOT / "verl")]


def make_rows(folder: Path, rows: int, pages: int) -> Path:
    """A parquet of `rows` rows over `pages` JPEG pages."""
    from data.schema import SCHEMA, build_row

    noise = Image.effect_noise((1000, 1400), 40)
    paths = []
    for number in range(pages):
        page = Image.merge("RGB", [noise.point(lambda v, n=number: (v + n) % 256)] * 3)
        paths.append(str(folder / f"{number}.jpg"))
        page.save(paths[-1], quality=85)
    table = [
        build_row(
            data_source="Parsing",
            prompt=[{"role": "user", "content": f"<image>Read page {number}, please."}],
            images=[paths[number % pages]],
            ground_truth="text",
            task_type="Parsing",
            question="Read.",
            source_lang_text="",
            target_lang="",
            index=number,
            split="train",
            row_id=str(number),
        )
        for number in range(rows)
    ]
    pq.write_table(pa.Table.from_pylist(table, schema=SCHEMA), folder / "rows.parquet")
    return folder / "rows.parquet"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--pages", type=int, default=500)
    parser.add_argument("--decoded", type=int, default=100, help="rows to time upstream's way on (100)")
    args = parser.parse_args(argv)

    from transformers.models.hunyuan_vl import HunYuanVLProcessor
    from transformers.models.hunyuan_vl.image_processing_pil_hunyuan_vl import HunYuanVLImageProcessorPil
    from verl_hyocr.dataset import HyocrDataset, images_of

    from utils.demo.build_model import CHAT_TEMPLATE, build_tokenizer

    tokenizer = build_tokenizer()
    processor = HunYuanVLProcessor(HunYuanVLImageProcessorPil(), tokenizer, chat_template=CHAT_TEMPLATE)
    with tempfile.TemporaryDirectory() as temporary:
        source = make_rows(Path(temporary), args.rows, args.pages)
        config = OmegaConf.create(
            {"max_prompt_length": 8192, "enable_dataset_cache": True, "dataset_cache_dir": f"{temporary}/cache"}
        )
        dataset = HyocrDataset([str(source)], tokenizer, config, processor)
        counted = dataset.filter_report.seconds / args.rows
        started = time.monotonic()
        for number in range(args.decoded):
            messages = dataset[number]["raw_prompt"]
            text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            processor(text=[text], images=images_of(messages))
        decoded = (time.monotonic() - started) / args.decoded
        started = time.monotonic()
        again = HyocrDataset([str(source)], tokenizer, config, processor)
        cached = time.monotonic() - started
        same = (
            again.filter_report is None
            and len(again) == len(dataset)
            and again[0]["extra_info"] == dataset[0]["extra_info"]
        )
    print(
        f"{args.rows} rows filtered in {counted * args.rows:.1f} s ({counted * 1e3:.2f} ms a row); decoding takes "
        f"{decoded * 1e3:.1f} ms a row: {decoded / counted:.0f} times as long; second start from the cache {cached:.2f} s"
    )
    return int(decoded / counted < 20 or cached >= 5 or not same)


if __name__ == "__main__":
    sys.exit(main())
