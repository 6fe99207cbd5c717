"""Greedy answers of a HuggingFace folder, by transformers or by vLLM:  python tests/e2e/greedy.py ENGINE MODEL IMAGE… > JSON

The transformers model runs with the fork's model fixes (as the actor does); vLLM as the rollout does, on the PIL backend.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("VERL_PLATFORM", "cpu")
TOKENS = 12


def main() -> int:
    engine, model_dir, images = sys.argv[1], sys.argv[2], sys.argv[3:]
    import verl  # noqa: F401 - the plugin brings the model fixes
    from PIL import Image
    from verl_hyocr.adapt.processor import load_processor

    processor = load_processor(model_dir)
    tokenizer = processor.tokenizer
    conversation = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Read the text."}]},
    ]
    text = processor.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
    pictures = [Image.open(path).convert("RGB") for path in images]
    if engine == "transformers":
        from transformers import AutoModelForImageTextToText

        model = AutoModelForImageTextToText.from_pretrained(model_dir, dtype="float32").eval()
        answers = []
        for picture in pictures:
            inputs = processor(text=[text], images=[picture], return_tensors="pt")
            output = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
            answers.append(output[0, inputs["input_ids"].shape[1] :].tolist())
    else:
        from vllm import LLM, SamplingParams

        llm = LLM(
            model_dir,
            dtype="float32",
            enforce_eager=True,
            max_model_len=256,
            max_num_seqs=4,
            mm_processor_kwargs={"backend": "pil"},
            limit_mm_per_prompt={"image": 1},
        )
        prompts = [
            {
                "prompt_token_ids": tokenizer(text, add_special_tokens=False)["input_ids"],
                "multi_modal_data": {"image": picture},
            }
            for picture in pictures
        ]
        outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=TOKENS))
        answers = [list(output.outputs[0].token_ids) for output in outputs]
    # Generation ends at the end token; transformers keeps it, and so does vLLM.
    print("ANSWERS " + json.dumps(answers), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
