"""One training worker's passes, without rollout: what packing, shared images (P1) and the fused head (P2) change.

    python benchmarks/gpu_passes.py MODEL [--prompts 8] [--group-size 8] [--page 800x1000] [--response-tokens 512]
        [--token-budget 16384] [--repeat 2] [--no-checkpointing] [--cases plain,shared,fused,both] [--json FILE]

Loads MODEL (``python -m utils.demo.build_model DIR --size released --dtype bfloat16``) into verl's own FSDP2 worker on one
GPU (on a CPU with VERL_PLATFORM=cpu) and runs the log-prob pass and the update on one fixed batch of random pages and
random answers, all cases in this one process:

    padded   one row per sample, padded to the longest; pixel values in every sample
    plain    packed rows; pixel values in every sample, logits of all tokens
    shared   packed; a page's pixels once per prompt, encoded once per micro-batch (P1)
    fused    packed; log-probs of answer tokens only (P2)
    both     packed, P1 and P2: what train_grpo.sh does on GPUs

A case is warmed up once and timed --repeat times; the table has medians. Differences to the first case are over answer
tokens and, for gradients, relative to the norm of the whole gradient.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

CASES = {
    "padded": (False, False, False),
    "plain": (True, False, False),
    "shared": (True, True, False),
    "fused": (True, False, True),
    "both": (True, True, True),
}
"""Case -> (packed, shared images, fused head)."""


def build_worker(model: str, checkpointing: bool):
    """verl's training worker and FSDP2 engine as an actor gets them, on one rank."""
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine_workers import TrainingWorker, TrainingWorkerConfig
    from verl_hyocr.dry_run import compose

    on_cpu = os.environ.get("VERL_PLATFORM") == "cpu"
    actor = "actor_rollout_ref.actor"
    overrides = [
        "algorithm.adv_estimator=grpo",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.model.use_remove_padding=True",
        f"actor_rollout_ref.model.enable_gradient_checkpointing={checkpointing}",
        "actor_rollout_ref.rollout.name=vllm",
        "data.train_batch_size=8",
        "trainer.n_gpus_per_node=1",
        f"{actor}.strategy=fsdp2",
        f"{actor}.use_dynamic_bsz=True",
        f"{actor}.ppo_mini_batch_size=8",
    ]
    if on_cpu:
        overrides += [
            "trainer.device=cpu",
            f"{actor}.use_torch_compile=False",
            f"{actor}.fsdp_config.use_torch_compile=False",
            f"{actor}.fsdp_config.model_dtype=fp32",
            f"+{actor}.fsdp_config.mixed_precision.param_dtype=fp32",
        ]
    config = compose(overrides)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    chosen = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=omega_conf_to_dataclass(config.actor_rollout_ref.model),
            engine_config=chosen.engine,
            optimizer_config=chosen.optim,
            checkpoint_config=chosen.checkpoint,
        )
    )
    worker.reset()
    return worker


def build_rows(model: str, options: argparse.Namespace) -> list[dict]:
    """Samples as the agent loop stores them, pixel values included; a group's share theirs."""
    import torch
    from PIL import Image
    from verl.utils import hf_processor

    processor = hf_processor(model)
    random = np.random.default_rng(0)
    width, height = map(int, options.page.split("x"))
    content = [{"type": "image"}, {"type": "text", "text": "Read this page."}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    rows = []
    for prompt_number in range(options.prompts):
        page = Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))
        inputs = dict(processor(text=[text], images=[page], return_tensors="pt"))
        prompt = inputs.pop("input_ids")[0]
        inputs.pop("attention_mask")
        types = inputs.pop("mm_token_type_ids")[0]
        for _ in range(options.group_size):
            answer = torch.from_numpy(random.integers(10, 100_000, options.response_tokens))
            ids, mine = torch.cat([prompt, answer]), dict(inputs)
            rope, _ = processor.get_rope_index(
                input_ids=ids[None],
                attention_mask=torch.ones_like(ids)[None],
                image_grid_thw=inputs["image_grid_thw"],
                mm_token_type_ids=torch.cat([types, torch.zeros_like(answer)])[None],
            )
            places = torch.cat([torch.arange(len(ids))[None], rope[:, 0]])
            mask = torch.ones_like(answer)
            rows.append(
                {
                    "prompts": prompt,
                    "responses": answer,
                    "input_ids": ids,
                    "position_ids": places,
                    "response_mask": mask,
                    "loss_mask": mask,
                    "multi_modal_inputs": mine,
                    "prompt_number": torch.tensor([prompt_number]),
                }
            )
    # As verl's balancing leaves them: groups apart.
    return [rows[index] for index in random.permutation(len(rows))]


def share(rows: list[dict], model: str) -> list[dict]:
    """The rows as P1 stores them, their pixel values in this process's store."""
    from verl.utils import hf_processor
    from verl_hyocr import pixels

    affine = pixels.Affine.of(hf_processor(model).image_processor)
    stored, found = {}, []
    for row in rows:
        inputs = dict(row["multi_modal_inputs"])
        key = pixels.key_of(1, str(int(row["prompt_number"])))
        values = inputs.pop("pixel_values")
        if key not in stored:
            stored[key] = pixels.compact(values, affine)
        found.append(row | {"multi_modal_inputs": inputs | {pixels.KEY: pixels.PixelRef(key, affine).packed()}})
    pixels.STORE = pixels.PixelStore(lambda keys: [stored[key] for key in keys])
    return found


def batch(rows: list[dict], packed: bool, fused: bool, budget: int):
    import torch
    from tensordict import NonTensorData
    from verl.utils import tensordict_utils as tu

    data = tu.list_of_dict_to_tensordict([{k: v for k, v in row.items() if k != "prompt_number"} for row in rows])
    for name in ("prompts", "responses", "input_ids", "position_ids", "response_mask", "loss_mask"):
        # As the TransferQueue hands them out: jagged, also when all are equally long.
        data[name] = torch.nested.as_nested_tensor([row[name] for row in rows], layout=torch.jagged)
    tu.maybe_fix_3d_position_ids(data)
    tu.assign_non_tensor(
        data,
        use_remove_padding=packed,
        use_fused_kernels=fused,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=budget,
        calculate_entropy=True,
        compute_loss=False,
        temperature=1.0,
        global_batch_size=len(rows),
        global_token_num=NonTensorData([len(row["input_ids"]) for row in rows]),
    )
    return data


def answer_loss(model_output, data, dp_group=None):
    """A policy-gradient-like loss in which every answer token has a weight of its own, of either sign."""
    import torch
    from verl.workers.utils.padding import no_padding_2_padding

    log_probs = no_padding_2_padding(model_output["log_probs"], data)
    tokens = torch.nested.to_padded_tensor(data["responses"], -1)
    weights = (tokens % 7 / 3 - 1) * (tokens >= 0)
    return -(log_probs * weights).sum() / 100_000, {}


def timed(action, repeat: int):
    import torch

    seconds, result = [], action()
    for _ in range(repeat):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        result = action()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return result, statistics.median(seconds)


def peak_gb() -> float:
    import torch

    if not torch.cuda.is_available():
        return 0.0
    peak = torch.cuda.max_memory_allocated() / 1e9
    torch.cuda.reset_peak_memory_stats()
    return peak


def gradient(worker, data):
    """One flat gradient of the answer loss, on the CPU in fp32."""
    import torch

    with worker.engine.train_mode():
        worker.engine.optimizer_zero_grad()
        worker.engine.forward_backward_batch(data, answer_loss)
        grads = [one.grad for one in worker.engine.module.parameters() if one.grad is not None]
        parts = [getattr(grad, "full_tensor", lambda grad=grad: grad)() for grad in grads]
        flat = torch.cat([part.detach().float().flatten().cpu() for part in parts])
        worker.engine.optimizer_zero_grad()
    return flat


def run(options: argparse.Namespace) -> dict:
    import torch
    import verl  # noqa: F401 - runs the plugin first, as in a worker
    from verl_hyocr.adapt.flops import forward_flops, image_patches

    marks = {"start": time.perf_counter()}
    worker = build_worker(options.model, not options.no_checkpointing)
    marks["loaded"] = time.perf_counter()
    plain_rows = build_rows(options.model, options)
    shared_rows = share(plain_rows, options.model)
    lengths = [len(row["input_ids"]) for row in plain_rows]
    config = worker.engine.module.config
    needed = forward_flops(config, lengths, image_patches(row["multi_modal_inputs"] for row in shared_rows))
    answers = torch.cat(
        [
            (torch.arange(len(row["input_ids"])) >= len(row["prompts"]) - 1)
            & (torch.arange(len(row["input_ids"])) < len(row["input_ids"]) - 1)
            for row in plain_rows
        ]
    )
    worker.set_loss_fn(answer_loss)
    found = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "samples": len(lengths),
        "tokens": sum(lengths),
        "answer_tokens": int(answers.sum()),
        "forward_tflop_needed": needed / 1e12,
        "checkpointing": not options.no_checkpointing,
        "load_s": marks["loaded"] - marks["start"],
        "cases": {},
    }
    reference: dict = {}
    for name in options.cases.split(","):
        packed, shared, fused = CASES[name]
        rows = shared_rows if shared else plain_rows
        make = lambda rows=rows, packed=packed, fused=fused: batch(rows, packed, fused, options.token_budget)
        peak_gb()
        output, infer_s = timed(lambda make=make: worker.infer_batch(make()), options.repeat)
        infer_gb = peak_gb()
        log_probs = output["log_probs"].values()[answers].float().cpu()
        flat = gradient(worker, make()) if not options.no_gradients else None
        peak_gb()

        def update(make=make):
            with worker.engine.train_mode(disable_auto_offload=True):
                worker.engine.optimizer_zero_grad()
                worker.engine.forward_backward_batch(make(), answer_loss)

        _, update_s = timed(update, options.repeat)
        case = {
            "log_prob_s": infer_s,
            "update_s": update_s,
            "log_prob_peak_gb": infer_gb,
            "update_peak_gb": peak_gb(),
            "log_prob_tflops": needed / infer_s / 1e12,
            "update_tflops": 3 * needed / update_s / 1e12,
        }
        if not reference:
            reference = {"log_probs": log_probs, "gradient": flat, "name": name}
        case["log_prob_difference_mean"] = float((log_probs - reference["log_probs"]).abs().mean())
        case["log_prob_difference_max"] = float((log_probs - reference["log_probs"]).abs().max())
        if flat is not None:
            case["gradient_difference"] = float((flat - reference["gradient"]).norm() / reference["gradient"].norm())
        found["cases"][name] = case
        print(f"{name}: {json.dumps(case)}", file=sys.stderr, flush=True)
    found["compared_with"] = reference["name"]
    return found


def table(found: dict) -> str:
    first = found["cases"][found["compared_with"]]
    lines = [
        f"{found['device']}, torch {found['torch']}: {found['samples']} samples, {found['tokens']} tokens, "
        f"{found['answer_tokens']} of them answers; forward pass {found['forward_tflop_needed']:.1f} TFLOP",
        f"{'case':8} {'log-probs s':>12} {'x':>6} {'update s':>10} {'x':>6} {'update TFLOP/s':>15} {'peak GB':>8} "
        f"{'|d log-prob|':>13} {'d gradient':>11}",
    ]
    for name, case in found["cases"].items():
        lines.append(
            f"{name:8} {case['log_prob_s']:12.3f} {first['log_prob_s'] / case['log_prob_s']:6.2f} {case['update_s']:10.3f} "
            f"{first['update_s'] / case['update_s']:6.2f} {case['update_tflops']:15.1f} {case['update_peak_gb']:8.1f} "
            f"{case['log_prob_difference_mean']:13.2e} {case.get('gradient_difference', float('nan')):11.2e}"
        )
    return "\n".join(lines)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="checkpoint folder")
    work = parser.add_argument_group("work")
    work.add_argument("--prompts", type=int, default=8)
    work.add_argument("--group-size", type=int, default=8)
    work.add_argument("--page", default="800x1000", metavar="WxH")
    work.add_argument("--response-tokens", type=int, default=512)
    work.add_argument("--token-budget", type=int, default=16384, help="tokens of a micro-batch")
    work.add_argument("--no-checkpointing", action="store_true", help="keep activations for the backward pass")
    measure = parser.add_argument_group("measurement")
    measure.add_argument(
        "--cases", default="plain,shared,fused,both", help=f"of {', '.join(CASES)}; the first is the reference"
    )
    measure.add_argument("--repeat", type=int, default=2)
    measure.add_argument("--no-gradients", action="store_true", help="do not compare gradients")
    measure.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    unknown = [name for name in options.cases.split(",") if name not in CASES]
    if unknown:
        parser.error(f"unknown case {', '.join(unknown)}; choose from {', '.join(CASES)}")
    return options


def main() -> int:
    options = parse()
    found = run(options)
    print(table(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
