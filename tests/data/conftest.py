"""A HunYuanVL processor folder (tokenizer, chat template, image settings; no weights) for tests that count tokens."""

import json

import pytest

MIN_PIXELS, MAX_PIXELS = 32 * 32, 256 * 256


@pytest.fixture(scope="session")
def processor_folder(tmp_path_factory):
    from transformers.models.hunyuan_vl import HunYuanVLProcessor
    from transformers.models.hunyuan_vl.image_processing_pil_hunyuan_vl import HunYuanVLImageProcessorPil

    from utils.demo.build_model import CHAT_TEMPLATE, build_tokenizer, flat_config

    folder = tmp_path_factory.mktemp("processor")
    size = {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS}
    processor = HunYuanVLProcessor(
        image_processor=HunYuanVLImageProcessorPil(size=size),
        tokenizer=build_tokenizer(),
        chat_template=CHAT_TEMPLATE,
    )
    processor.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(flat_config("tiny", "float32")))
    return folder


@pytest.fixture(scope="session")
def processor(processor_folder):
    from transformers.models.hunyuan_vl import HunYuanVLProcessor
    from transformers.models.hunyuan_vl.image_processing_pil_hunyuan_vl import HunYuanVLImageProcessorPil

    return HunYuanVLProcessor.from_pretrained(
        processor_folder, image_processor=HunYuanVLImageProcessorPil.from_pretrained(processor_folder)
    )
