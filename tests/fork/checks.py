"""One behaviour check per adaptation step, run in a fresh process:  python tests/fork/checks.py STEP MODEL_DIR

Each check raises AssertionError (or the upstream error that the step prevents) when its step is not active. The test suite runs
every check twice: as is, and with HYOCR_DISABLE=STEP, where it must fail.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import ClassVar

os.environ.setdefault("VERL_PLATFORM", "cpu")

CHECKS = {}


def check(step: str):
    def register(function):
        CHECKS[step] = function
        return function

    return register


def sample_image(width: int = 90, height: int = 60, seed: int = 0):
    import numpy as np
    from PIL import Image

    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


def processor_inputs(processor, images, question: str = "Read the text."):
    content = [{"type": "image", "image": image} for image in images] + [{"type": "text", "text": question}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    return processor(text=[text], images=images or None, return_tensors="pt")


def load_model(path):
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(path).eval()


@check("A1")
def stripped_text_is_accepted(model_dir: Path) -> None:
    """The processor takes images with text whose special tokens were decoded away, and gives the same pixels."""
    import torch
    from verl.utils import hf_processor

    processor = hf_processor(str(model_dir))
    images = [sample_image(), sample_image(40, 100, 1)]
    full = processor_inputs(processor, images)
    stripped = processor.tokenizer.decode(full["input_ids"][0], skip_special_tokens=True)
    again = processor(text=[stripped], images=images, return_tensors="pt")
    assert torch.equal(again["pixel_values"], full["pixel_values"])
    try:
        processor(text=[processor.image_token], images=images, return_tensors="pt")
    except ValueError:
        pass
    else:
        raise AssertionError("a real mismatch between images and placeholders must still raise")


@check("A2")
def positions_equal_the_models_own(model_dir: Path) -> None:
    """verl builds (1, 4, L) positions equal to the model's own, on the PIL backend."""
    import torch
    from transformers.models.hunyuan_vl.modeling_hunyuan_vl import HunYuanVLModel
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    from verl.utils import hf_processor

    processor = hf_processor(str(model_dir))
    assert type(processor.image_processor).__name__ == "HunYuanVLImageProcessorPil"
    inputs = processor_inputs(processor, [sample_image(), sample_image(40, 100, 1)])

    class Worker:
        pass

    worker = Worker()
    worker.processor = processor
    positions = AgentLoopWorker._compute_position_ids(
        worker, inputs["input_ids"], inputs["attention_mask"], dict(inputs), {}
    )
    native, _ = HunYuanVLModel.get_rope_index(
        load_model(model_dir).model,
        inputs["input_ids"],
        mm_token_type_ids=inputs["mm_token_type_ids"],
        image_grid_thw=inputs["image_grid_thw"],
        attention_mask=inputs["attention_mask"],
    )
    assert positions.shape == (1, 4, inputs["input_ids"].shape[1])
    assert torch.equal(positions, native.transpose(0, 1))
    placeholders = inputs["input_ids"][0] == processor.image_token_id
    assert (positions[0, 3][placeholders] == 1).sum() > 2, "the second image's tokens carry image index 1"


@check("A3.names")
def names_are_the_released_ones(model_dir: Path) -> None:
    """The weight sync's names are exactly those of the checkpoint on disk, and no tensor is copied."""
    from safetensors import safe_open
    from verl.workers.engine.fsdp.transformer_impl import convert_weight_keys

    model = load_model(model_dir)
    state = model.state_dict()
    renamed = convert_weight_keys(state, model)
    with safe_open(str(model_dir / "model.safetensors"), "pt") as file:
        on_disk = set(file.keys())
    assert on_disk <= set(renamed) and set(renamed) - on_disk <= {"lm_head.weight"}
    assert sorted(t.data_ptr() for t in renamed.values()) == sorted(t.data_ptr() for t in state.values())


@check("A3.export")
def engine_keeps_the_flat_config(model_dir: Path) -> None:
    """verl's registry hands out our engine for a language model on this platform."""
    import verl.workers.engine.fsdp.transformer_impl as impl
    from verl.workers.engine.base import EngineRegistry

    for backend in ("fsdp", "fsdp2"):
        assert EngineRegistry.get_engine_cls("language_model", backend).__name__ == "HyocrFSDPEngine"
        registered = EngineRegistry._engines["language_model"][backend]
        assert registered[("cuda", "nvidia")] is impl.HyocrFSDPEngine, "the vendor key wins on GPUs"


@check("A3.merge")
def merge_keeps_the_flat_config(model_dir: Path) -> None:
    """After verl's offline merge the folder has the released, flat config.json."""
    import json
    import shutil
    import tempfile

    from verl.model_merger.base_model_merger import BaseModelMerger, ModelMergerConfig

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source", Path(folder) / "target"
        shutil.copytree(model_dir, source)

        class Merger(BaseModelMerger):
            def merge_and_save(self):
                self.save_hf_model_and_tokenizer(load_model(model_dir).state_dict())

            def cleanup(self):
                return None

        Merger(
            ModelMergerConfig(
                operation="merge",
                backend="fsdp",
                local_dir=str(source),
                target_dir=str(target),
                hf_model_config_path=str(source),
                tie_word_embedding=True,
                trust_remote_code=False,
                is_value_model=False,
            )
        ).merge_and_save()
        assert json.loads((target / "config.json").read_text()) == json.loads((source / "config.json").read_text())


@check("A4.rotary")
def rotary_equals_vllm(model_dir: Path) -> None:
    """Rotated queries and keys equal vLLM's own rotary embedding on random 4-axis positions."""
    import torch
    import transformers.models.hunyuan_vl.modeling_hunyuan_vl as modeling
    from transformers.models.hunyuan_vl import HunYuanVLConfig
    from vllm.config import VllmConfig, set_current_vllm_config

    config = HunYuanVLConfig.from_pretrained(model_dir).text_config
    sections = config.rope_parameters["mrope_section"]
    torch.manual_seed(0)
    length, heads, dim = 23, 4, config.head_dim
    positions = torch.randint(0, 50, (4, length))
    q, k = torch.randn(1, heads, length, dim), torch.randn(1, heads, length, dim)
    cos, sin = modeling.HunYuanVLRotaryEmbedding(config)(q, positions[:, None, :])
    ours = modeling.apply_multimodal_rotary_pos_emb(q, k, cos, sin, sections)

    with set_current_vllm_config(VllmConfig()):
        from vllm.model_executor.layers.rotary_embedding.xdrope import XDRotaryEmbedding

        rope = XDRotaryEmbedding(
            head_size=dim,
            rotary_dim=dim,
            max_position_embeddings=2048,
            base=config.rope_parameters["rope_theta"],
            is_neox_style=True,
            scaling_alpha=config.rope_parameters["alpha"],
            dtype=torch.float32,
            xdrope_section=sections,
        )
    flat = [t[0].transpose(0, 1).reshape(length, heads * dim).clone() for t in (q, k)]
    theirs = rope.forward_native(positions, *flat)
    for mine, other in zip(ours, theirs):
        difference = (mine[0].transpose(0, 1).reshape(length, heads * dim) - other).abs().max().item()
        assert difference < 1e-4, f"rotary differs from vLLM by {difference}"


@check("A4.interpolation")
def interpolation_equals_vllm(model_dir: Path) -> None:
    """The stretched position grid equals the one of vLLM's patch embedding."""
    import torch
    from transformers.models.hunyuan_vl import HunYuanVLConfig
    from transformers.models.hunyuan_vl.modeling_hunyuan_vl import HunYuanVLVisionPatchEmbed

    ours = HunYuanVLVisionPatchEmbed(HunYuanVLConfig.from_pretrained(model_dir).vision_config)
    theirs = vllm_patch_embed(model_dir)
    for name in ("patch_embedding.weight", "patch_embedding.bias", "position_embedding.weight"):
        _parameter(theirs, name).data.copy_(_parameter(ours, name).data)
    grid = [[1, 4, 6]]
    pixels = torch.rand(24, 3 * 16 * 16)
    difference = (ours(pixels, torch.tensor(grid)) - theirs(pixels, grid)).abs().max().item()
    assert difference < 1e-5, f"patch embedding differs from vLLM by {difference}"


def _parameter(module, path: str):
    for part in path.split("."):
        module = getattr(module, part)
    return module


def vllm_patch_embed(model_dir: Path, dtype=None):
    """vLLM's own patch embedding of the checkpoint's dimensions, outside an engine."""
    import socket

    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.transformers_utils.config import get_config

    config = VllmConfig()
    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            init_distributed_environment(1, 0, f"tcp://127.0.0.1:{port}", 0, backend="gloo")
            initialize_model_parallel(1, 1)
        from vllm.model_executor.models.hunyuan_vision import HunYuanVisionPatchEmbed

        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype or torch.float32)
        try:
            return HunYuanVisionPatchEmbed(get_config(str(model_dir), trust_remote_code=False).vision_config)
        finally:
            torch.set_default_dtype(before)


def _fsdp_rank(rank: int, model_dir: str, port: int) -> None:
    import datetime

    import torch
    import verl  # noqa: F401 - runs the plugin, as in a worker
    from torch.distributed.fsdp import fully_shard

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    model = load_model(model_dir).train()
    for layer in [*model.model.language_model.layers, *model.model.vision_tower.layers]:
        fully_shard(layer)
    fully_shard(model)
    from verl_hyocr.adapt.processor import load_processor

    inputs = processor_inputs(load_processor(model_dir), [sample_image()] if rank == 0 else [])
    inputs.pop("mm_token_type_ids", None)
    length = inputs["input_ids"].shape[1]
    positions = torch.arange(length).expand(4, 1, length)
    loss = model(**inputs, position_ids=positions).logits.float().logsumexp(-1).mean()
    loss.backward()
    gradient = model.model.vision_tower.patch_merger.mlp.weight.grad.full_tensor()
    assert torch.isfinite(gradient).all() and gradient.abs().max() > 0
    torch.distributed.destroy_process_group()


@check("A4.dummy_vision")
def ranks_without_images_do_not_hang(model_dir: Path) -> None:
    """Two FSDP2 ranks (gloo), one with an image, one text-only: forward and backward finish, the tower has gradients."""
    import socket

    import torch.multiprocessing as mp

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.start_processes(_fsdp_rank, args=(str(model_dir), port), nprocs=2, start_method="spawn")


@check("A4.nested")
def equal_lengths_keep_four_axes(model_dir: Path) -> None:
    """Positions of samples of one length survive the trip through a TensorDict as (axes, length) per sample."""
    import pickle

    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu
    from verl.workers.engine.base import maybe_fix_3d_position_ids

    for lengths in ([7, 7, 7], [5, 7, 6]):
        samples = [torch.arange(4 * length).reshape(4, length) for length in lengths]
        nested = torch.nested.as_nested_tensor(samples, layout=torch.jagged)
        data = TensorDict({"position_ids": nested}, batch_size=[len(samples)])
        data = pickle.loads(pickle.dumps(data.consolidate()))
        maybe_fix_3d_position_ids(data)
        positions = data["position_ids"]
        padded = torch.nested.to_padded_tensor(positions, padding=-1, output_size=(len(samples), 4, max(lengths)))
        for row, sample in zip(padded, samples):
            assert torch.equal(row[:, : sample.shape[1]], sample), lengths
    assert tu.maybe_fix_3d_position_ids is maybe_fix_3d_position_ids


@check("A5")
def vllm_gets_one_placeholder_per_image(model_dir: Path) -> None:
    """The server's dedup leaves one placeholder per image and every other token alone."""
    import verl.workers.rollout.vllm_rollout.vllm_async_server as server
    from verl.utils import hf_processor

    processor = hf_processor(str(model_dir))
    ids = processor_inputs(processor, [sample_image(), sample_image(40, 100, 1)])["input_ids"][0].tolist()
    pad = processor.image_token_id
    assert ids.count(pad) > 2
    kept = server.qwen2_5_vl_dedup_image_tokens(ids, processor)
    assert kept.count(pad) == 2
    assert [token for token in kept if token != pad] == [token for token in ids if token != pad]


@check("A6")
def position_cache_follows_the_weights(model_dir: Path) -> None:
    """After a weight update through our worker extension, vLLM's bf16 patch embedding uses the new position table."""
    import torch
    from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
    from verl_hyocr.vllm_ext import HyocrWorkerExtension

    embed = vllm_patch_embed(model_dir, torch.bfloat16)
    pixels, grid = torch.rand(24, 3 * 16 * 16, dtype=torch.bfloat16), [[1, 4, 6]]
    before = embed(pixels, grid)

    def upstream_update(self, **kwargs):
        embed.position_embedding.weight.data += 1.0

    vLLMColocateWorkerExtension.update_weights_from_ipc = upstream_update
    extension = object.__new__(HyocrWorkerExtension)
    extension._iter_all_models = lambda: iter([torch.nn.Sequential(embed)])
    extension.update_weights_from_ipc(peft_config=None)
    shift = (embed(pixels, grid).float() - before.float()).mean().item()
    assert abs(shift - 1.0) < 0.05, f"the new position table shifts the output by 1, not by {shift}"


@check("H1")
def the_driver_watches_the_nodes(model_dir: Path) -> None:
    """What the driver calls right before ``ray.init`` starts the watch, and importing it does not."""
    import threading

    from verl.trainer import main_ppo

    def running() -> bool:
        return any(thread.name == "hyocr-node-watch" for thread in threading.enumerate())

    assert not running()
    main_ppo.get_ppo_ray_runtime_env(None)
    assert running()


def rollout_adapter(sent: list, reports: list | None):
    """verl's sender of weights: what it would put on the wire is appended to ``sent``, its server answers ``reports``."""
    from types import SimpleNamespace

    from verl.workers.rollout.vllm_rollout import vllm_rollout

    class Sender:
        def __init__(self, **kwargs):
            pass

        async def async_send_weights(self, weights):
            from verl.workers.rollout.utils import ensure_async_iterator

            sent.extend([entry async for entry in ensure_async_iterator(weights)])

    class Adapter(vllm_rollout.ServerAdapter):
        def __init__(self):
            self.config = SimpleNamespace(
                checkpoint_engine=SimpleNamespace(update_weights_bucket_megabytes=1),
                engine_kwargs={"vllm": {"worker_extension_cls": "verl_hyocr.vllm_ext.HyocrWorkerExtension"}},
            )
            self.zmq_handle, self.use_shm, self._has_server, self.replica_rank, self.rollout_rank = (
                "",
                True,
                False,
                0,
                0,
            )

        async def _execute_method(self, method, **kwargs):
            return reports if method == "weight_sync_report" else None

    vllm_rollout.BucketedWeightSender = Sender
    return Adapter()


@check("B5")
def weight_sync_is_checked(model_dir: Path) -> None:
    """The first sync carries a manifest, a finding of an engine ends a strict run, the second sync is plain."""
    import asyncio

    import torch
    from verl_hyocr import weight_check

    os.environ["WEIGHT_SYNC_STRICT"] = "1"
    sent, weights = [], [("a", torch.arange(3.0))]
    report = {"refused": {}, "unwritten": {}, "different": {}, "lost": [], "corrupted": [], "no_manifest": False}
    report |= {"tensors": 1, "sampled": 0, "unconsumed": ["a"], "where": "replica 0 rank 0"}
    adapter = rollout_adapter(sent, [report])
    try:
        asyncio.run(adapter.update_weights(iter(weights)))
    except weight_check.WeightSyncError as error:
        assert "not consumed by the engine: a [replica 0 rank 0]" in str(error)
    else:
        raise AssertionError("a weight that the engine ignored was not noticed")
    assert [name for name, _ in sent] == ["a", weight_check.MANIFEST]
    sent.clear()
    asyncio.run(adapter.update_weights(iter(weights)))
    assert [name for name, _ in sent] == ["a"]


@check("B5.report")
def reports_reach_the_trainer(model_dir: Path) -> None:
    """verl's vLLM server hands on what its workers report about a weight sync."""
    import asyncio
    from types import SimpleNamespace

    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer

    async def collective_rpc(method, timeout=None, args=(), kwargs=None):
        return [{"where": "here"}, None]

    server = SimpleNamespace(engine=SimpleNamespace(collective_rpc=collective_rpc))
    assert asyncio.run(vLLMHttpServer.collective_rpc(server, "weight_sync_report")) == [{"where": "here"}]
    assert asyncio.run(vLLMHttpServer.collective_rpc(server, "other")) is None


@check("E1")
def metrics_survive_a_resume(model_dir: Path) -> None:
    """A second logger on the same file keeps finished steps and replaces those that are run again."""
    import json
    import tempfile

    from verl.utils.tracking import FileLogger

    with tempfile.TemporaryDirectory() as folder:
        os.environ["VERL_FILE_LOGGER_PATH"] = path = f"{folder}/metrics.jsonl"
        first = FileLogger("p", "e")
        for step in (1, 2, 3):
            first.log({"training/global_step": step, "loss": 1.0}, step)
        first.finish()
        with open(path, "ab") as file:
            file.write(b'{"step": 4, "da')  # killed while writing
        second = FileLogger("p", "e")
        second.log({"val/score": 0.5}, 2)
        second.log({"training/global_step": 3, "loss": 2.0}, 3)
        second.finish()
        records = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2, 2, 3]
    assert records[1]["data"]["loss"] == 1.0 and records[2]["data"] == {"val/score": 0.5}
    assert records[3]["data"]["loss"] == 2.0


class SeedRecorder:
    """An agent loop that keeps the sampling parameters it is run with."""

    seen: ClassVar[list] = []

    def __init__(self, **kwargs):
        pass

    async def run(self, sampling_params, **kwargs):
        self.seen.append((dict(sampling_params), kwargs))


@check("E4")
def requests_are_seeded_by_step_and_sample(model_dir: Path) -> None:
    """Every request has a seed of its own, the same in every run, and nothing else changes; without the variable none."""
    import asyncio
    from unittest import mock

    from verl.experimental.agent_loop import agent_loop

    worker = mock.Mock(
        spec=[],
        config=mock.MagicMock(),
        tools=[],
        **dict.fromkeys(("llm_client", "tokenizer", "processor", "hf_model_type", "dataset_cls")),
    )
    worker._agent_loop_postprocess = mock.AsyncMock()
    run = agent_loop.AgentLoopWorker._run_agent_loop

    def seeds(seed: str) -> list:
        os.environ["HYOCR_ROLLOUT_SEED"] = seed
        SeedRecorder.seen.clear()
        for step in (1, 2):
            for session in (0, 1):
                trajectory = {"step": step, "sample_index": 5, "rollout_n": 0, "validate": False}
                asyncio.run(
                    run(
                        worker, {"temperature": 1.0}, trajectory, agent_name="recorder", trace=False, session_id=session
                    )
                )
        assert all(params["temperature"] == 1.0 for params, _ in SeedRecorder.seen)
        assert [kwargs["session_id"] for _, kwargs in SeedRecorder.seen] == [0, 1, 0, 1]
        return [params.get("seed") for params, _ in SeedRecorder.seen]

    with mock.patch.object(agent_loop.hydra.utils, "instantiate", lambda config, **kwargs: SeedRecorder(**kwargs)):
        agent_loop._agent_loop_registry["recorder"] = {}
        first = seeds("1")
        assert len(set(first)) == 4 and None not in first
        assert seeds("1") == first and not set(seeds("2")) & set(first)
        assert seeds("") == [None] * 4


@check("G")
def guard_refuses_liger(model_dir: Path) -> None:
    """A switch that would train silently wrong stops the driver."""
    from verl_hyocr.dry_run import compose

    try:
        compose([*minimal_overrides(model_dir), "actor_rollout_ref.model.use_liger=True"])
    except ValueError as error:
        assert "use_liger" in str(error)
    else:
        raise AssertionError("use_liger=True was accepted")


def minimal_overrides(model_dir: Path) -> list[str]:
    """The fewest hydra overrides with which verl's own checks pass for this model."""
    return [
        "algorithm.adv_estimator=grpo",
        f"actor_rollout_ref.model.path={model_dir}",
        "actor_rollout_ref.model.use_remove_padding=False",
        "actor_rollout_ref.actor.strategy=fsdp2",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        "actor_rollout_ref.rollout.name=vllm",
        "data.train_batch_size=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "trainer.n_gpus_per_node=1",
    ]


@check("D2.platform")
def cpu_platform_exists(model_dir: Path) -> None:
    from verl.plugin.platform import get_platform

    platform = get_platform()
    assert (platform.device_name, platform.communication_backend_name()) == ("cpu", "gloo")
    assert not platform.is_ipc_supported()


@check("D2.gloo")
def process_group_starts_on_gloo(model_dir: Path) -> None:
    """verl's own start of the process group works on the CPU platform."""
    import socket

    import torch
    from verl.utils.distributed import initialize_global_process_group_ray

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1")
    initialize_global_process_group_ray()
    value = torch.ones(1)
    torch.distributed.all_reduce(value)
    assert value.item() == 1.0


@check("D2.offload")
def reference_needs_no_pinned_memory(model_dir: Path) -> None:
    from verl.workers.engine.fsdp import transformer_impl

    assert transformer_impl.CPUOffloadPolicy(pin_memory=True) is None


@check("D2.sampler")
def cpu_logprobs_are_accurate(model_dir: Path) -> None:
    """In a vLLM process, log-probs over a large vocabulary with a peak are right to 2e-6."""
    import torch
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
    from vllm.v1.sample.sampler import Sampler

    logits = torch.randn(16, 120128, generator=torch.Generator().manual_seed(0)) * 1.2
    logits[:, :4] += 14
    exact = (logits.double() - logits.double().logsumexp(-1, keepdim=True))[:, 0]
    _, sampled = TopKTopPSampler("processed_logprobs").forward(logits.clone(), {}, None, None)
    for name, computed in (("sampled", sampled), ("greedy", Sampler.compute_logprobs(logits))):
        error = (computed.double()[:, 0] - exact).abs().max().item()
        assert error < 2e-6, f"{name} log-probs are off by {error}"


@check("D2.engine")
def cpu_engine_keeps_weights_and_positions(model_dir: Path) -> None:
    """In a vLLM process, linear layers keep their parameter and the 4-axis rotary runs natively."""
    import torch
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    from vllm.model_executor.layers import utils
    from vllm.model_executor.layers.rotary_embedding.xdrope import XDRotaryEmbedding

    layer = torch.nn.Linear(64, 64, bias=False)
    utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    assert layer.weight.shape == (64, 64), "the weight is gone: it could not be synced again"
    assert XDRotaryEmbedding.forward_cpu is XDRotaryEmbedding.forward_native


@check("D2.vllm")
def vllm_is_found_as_a_distribution(model_dir: Path) -> None:
    import importlib.metadata

    import verl.third_party.vllm as third_party

    assert importlib.metadata.version("vllm").startswith("0.25.1")
    assert third_party.vllm_version is not None


@check("C1")
def packed_samples_do_not_see_each_other(model_dir: Path) -> None:
    """Logits of a row that holds three samples (two images, none, one) equal those of each sample alone."""
    import torch
    from verl_hyocr.adapt.processor import load_processor

    model, processor = load_model(model_dir), load_processor(str(model_dir))
    samples = []
    for images in ([sample_image(), sample_image(40, 100, 1)], [], [sample_image(64, 64, 2)]):
        inputs = dict(processor_inputs(processor, images, f"Question with {len(images)} images?"))
        types = inputs.pop("mm_token_type_ids")
        grid = inputs.get("image_grid_thw")
        inputs["position_ids"], _ = model.model.get_rope_index(inputs["input_ids"], types, grid)
        inputs.pop("attention_mask")
        samples.append(inputs)
    packed = {
        name: torch.cat([one[name] for one in samples if name in one], dim=dim)
        for name, dim in {"input_ids": 1, "position_ids": 2, "pixel_values": 0, "image_grid_thw": 0}.items()
    }
    with torch.no_grad():
        alone = torch.cat([model(**one, use_cache=False).logits for one in samples], dim=1)
        difference = (model(**packed, use_cache=False).logits - alone).abs().max().item()
    assert difference < 1e-4, f"packing changes logits by {difference}"


@check("B8")
def flops_of_this_model_are_counted(model_dir: Path) -> None:
    """verl's counter gives work for this model type, more with images than without."""
    from transformers import AutoConfig
    from verl.utils.flops_counter import FlopsCounter

    counter = FlopsCounter(AutoConfig.from_pretrained(model_dir))
    text, _ = counter.estimate_flops([100, 200], 1.0, images_seqlens=None)
    with_images, _ = counter.estimate_flops([100, 200], 1.0, images_seqlens=[64])
    assert 0 < text < with_images


@check("B8.images")
def worker_tells_the_counter_about_images(model_dir: Path) -> None:
    """The training worker finds the patches of the batch's images where the trainer did not pass them."""
    import socket
    from types import SimpleNamespace

    import torch
    from tensordict import NonTensorData
    from transformers import AutoConfig
    from verl.utils import tensordict_utils as tu
    from verl.workers.engine_workers import TrainingWorker

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    images = [{"image_grid_thw": torch.tensor([[1, 4, 6], [1, 8, 2]])}, {}]
    data = tu.get_tensordict({"multi_modal_inputs": images}, {"global_token_num": NonTensorData([50, 20])})
    worker = object.__new__(TrainingWorker)
    worker.flops_counter = SimpleNamespace(config=AutoConfig.from_pretrained(model_dir))
    worker.engine = SimpleNamespace(get_data_parallel_group=lambda: None)
    worker.loss_fn = None
    try:
        worker.train_batch(data)
    except AssertionError as error:
        assert "loss function" in str(error), "upstream's own first line was reached"
    assert tu.get(data, "images_seqlens") == [24, 16]


@check("B2.v0")
def v0_trainer_writes_samples(model_dir: Path) -> None:
    """A run of the v0 trainer leaves a file of its step that the UI loads, and upstream's own dump stays off."""
    import tempfile

    import numpy as np
    import torch
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    sys.path.insert(0, str(Path(__file__).parent))
    import rlb_ui

    count, prompt, answer = 2, 4, 3
    ones = torch.ones(count, answer)
    mask = torch.ones(count, prompt + answer, dtype=torch.int64)
    mask[0, 0] = mask[1, -1] = 0
    batch = DataProto.from_dict(
        tensors={
            "prompts": torch.full((count, prompt), 60),
            "responses": torch.full((count, answer), 61),
            "attention_mask": mask,
            "old_log_probs": -ones,
            "ref_log_prob": -1.5 * ones,
            "advantages": ones,
            "token_level_scores": ones / 4,
            "token_level_rewards": ones / 2,
        },
        non_tensors={
            "uid": np.array(["a", "a"], dtype=object),
            "data_source": np.array(["Parsing"] * count, dtype=object),
            "extra_info": np.array([{"img_path": "/img/a.png"}] * count, dtype=object),
            "reward_model": np.array([{"ground_truth": "text"}] * count, dtype=object),
        },
    )

    class Step(Exception):
        pass

    class Executor:
        """What upstream's fit looks at first: the step happens there, and the run ends."""

        @property
        def _shutdown(self):
            folder = trainer.config.trainer.get("rollout_data_dir", None)
            assert folder, "upstream would not call its hook"
            trainer._log_rollout_data(batch, {"acc": [1.0, 0.0]}, {}, folder)
            raise Step

    trainer = object.__new__(RayPPOTrainer)
    trainer.global_steps, trainer.use_reference_policy, trainer._dump_executor = 2, True, Executor()
    trainer.tokenizer = AutoTokenizer.from_pretrained(model_dir)
    trainer._dump_generations = lambda *_, **__: (_ for _ in ()).throw(AssertionError("upstream's dump"))
    trainer.config = OmegaConf.create(
        {
            "trainer": {},
            "data": {"max_response_length": answer},
            "actor_rollout_ref": {"rollout": {"max_model_len": None}},
        }
    )
    with tempfile.TemporaryDirectory() as run_dir:
        os.environ["HYOCR_RUN_DIR"] = run_dir
        try:
            trainer.fit()
        except Step:
            columns = rlb_ui.load(Path(run_dir) / "rl_logging_board")[2]
    assert columns["reward"] == [0.75, 0.5] and columns["token_rewards"] == [[0.5] * 3, [0.5] * 2]
    assert [len(one) for one in columns["response_tokens"]] == [3, 2], "padding is left out"


@check("P1.rows")
def a_prompt_s_pixels_are_stored_once(model_dir: Path) -> None:
    """Two sessions of a prompt: one processor run, one stored value, keys in the rows; a validation stores nothing."""
    import asyncio
    from types import SimpleNamespace

    import torch
    import transfer_queue.interface
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopWorker
    from verl.utils import hf_processor
    from verl_hyocr import pixels

    processor = hf_processor(str(model_dir))
    full = processor_inputs(processor, [sample_image()])
    ids = full["input_ids"][0]
    worker = object.__new__(AgentLoopWorker)
    worker.processor, worker.tokenizer, worker.mm_processor_kwargs = processor, processor.tokenizer, {}
    worker.reward_loop_worker_handles = None
    runs, stored = [], {}

    async def put(key, value):
        stored[key] = value

    pixels.put = put
    transfer_queue.interface._TQ_CLIENT = object()
    images = [sample_image()]

    async def session(messages, validate):
        loop = SimpleNamespace(processor=processor, dataset_cls=Dataset, data_config=SimpleNamespace(config=None))
        data = await AgentLoopBase.process_multi_modal_info(loop, messages)
        output = SimpleNamespace(
            multi_modal_data=data, mm_processor_kwargs={}, prompt_ids=ids.tolist(), response_ids=[5], reward_score=0.0
        )

        async def run(sampling_params, **kwargs):
            return output

        async def finish(output, validate, **kwargs):
            await worker._compute_score([output], kwargs)
            return worker._compute_multi_modal_inputs(output, torch.cat([ids, torch.tensor([5])]))

        worker._agent_loop_postprocess = finish
        output = await run({})
        from verl_hyocr.adapt import shared_images

        shared_images._validating.set(validate)
        return await finish(output, validate, uid="u" if not validate else "v", global_steps=3)

    class Dataset:
        @classmethod
        async def process_multi_modal_info(cls, messages, image_patch_size, config):
            runs.append(len(messages))
            return images, None, None

    async def main():
        messages = [{"role": "user", "content": "read"}]
        rows = await asyncio.gather(*(session(messages, False) for _ in range(3)))
        return rows, await session([{"role": "user", "content": "other"}], True)

    rows, validation = asyncio.run(main())
    assert runs == [1, 1], "images are read once a prompt"
    (key,) = stored
    for row in rows:
        ref = pixels.PixelRef.unpack(row[pixels.KEY])
        assert "pixel_values" not in row and ref.key == key and pixels.step_of(key) == 3
        assert torch.equal(ref.values(stored[key]), full["pixel_values"])
        assert torch.equal(row["image_grid_thw"], full["image_grid_thw"]) and "images_seqlens" in row
    assert rows[0] is not rows[1], "verl takes entries out of its row"
    assert "pixel_values" not in validation and pixels.KEY not in validation


@check("P1.inputs")
def distinct_images_of_a_micro_batch(model_dir: Path) -> None:
    import torch
    from verl.utils.model import extract_multi_modal_inputs
    from verl_hyocr import pixels
    from verl_hyocr.adapt.shared_images import INDEX

    stored = {"1:a": torch.ones(6, 768), "1:b": torch.zeros(4, 768)}
    pixels.STORE = pixels.PixelStore(lambda keys: [stored[key] for key in keys])
    grids = {"1:a": torch.tensor([[1, 1, 2], [1, 2, 2]]), "1:b": torch.tensor([[1, 2, 2]])}
    rows = [
        {
            pixels.KEY: pixels.PixelRef(key, None).packed(),
            "image_grid_thw": grids[key],
            "images_seqlens": torch.ones(len(grids[key])),
        }
        for key in ("1:a", "1:b", "1:a")
    ]
    found = extract_multi_modal_inputs([rows[0], {}, *rows[1:]])
    assert torch.equal(found["pixel_values"], torch.cat([stored["1:a"], stored["1:b"]]))
    assert found["image_grid_thw"].tolist() == [[1, 1, 2], [1, 2, 2], [1, 2, 2]]
    assert found[INDEX].tolist() == [0, 1, 2, 0, 1] and len(found["images_seqlens"]) == 5
    assert "pixel_values" not in extract_multi_modal_inputs([{}, {}])


@check("P1.model")
def shared_images_are_seen_in_all_their_places(model_dir: Path) -> None:
    import torch
    from verl.utils import hf_processor
    from verl_hyocr.adapt.shared_images import INDEX

    processor, model = hf_processor(str(model_dir)), load_model(model_dir)
    one, other = (processor_inputs(processor, [image]) for image in (sample_image(), sample_image(64, 96, 1)))
    wanted = [model(**inputs).logits[0] for inputs in (one, other, one)]
    ids = torch.cat([inputs["input_ids"] for inputs in (one, other, one)], dim=1)
    positions = []
    for inputs in (one, other, one):
        rope, _ = model.model.get_rope_index(
            inputs["input_ids"], inputs["mm_token_type_ids"], inputs["image_grid_thw"], inputs["attention_mask"]
        )
        positions.append(rope)
    found = model(
        input_ids=ids,
        attention_mask=None,
        position_ids=torch.cat(
            [torch.cat([torch.arange(part.shape[-1])[None, None], part[1:]]) for part in positions], -1
        ),
        pixel_values=torch.cat([one["pixel_values"], other["pixel_values"]]),
        image_grid_thw=torch.cat([one["image_grid_thw"], other["image_grid_thw"]]),
        use_cache=False,
        **{INDEX: torch.tensor([0, 1, 0])},
    ).logits[0]
    assert float((found - torch.cat(wanted)).abs().max()) < 1e-4


@check("P1.groups")
def samples_of_a_prompt_share_a_micro_batch(model_dir: Path) -> None:
    import torch
    from verl.utils.seqlen_balancing import rearrange_micro_batches
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict
    from verl_hyocr import pixels

    keys, lengths = ["1:a", "1:b", "1:c"] * 2, [9, 10, 11, 12, 9, 8]
    rows = [
        {"input_ids": torch.arange(length), "multi_modal_inputs": {pixels.KEY: pixels.PixelRef(key, None).packed()}}
        for key, length in zip(keys, lengths, strict=True)
    ]
    batches, parts = rearrange_micro_batches(list_of_dict_to_tensordict(rows), max_token_len=21)
    assert sorted(map(sorted, parts)) == [[0, 3], [1, 4], [2, 5]] and len(batches) == 3
    assert [len(batch["input_ids"].offsets()) - 1 for batch in batches] == [2, 2, 2]
    batches, parts = rearrange_micro_batches(list_of_dict_to_tensordict(rows), max_token_len=12)
    assert sorted(index for part in parts for index in part) == list(range(6)) and len(parts) == 6


@check("P2")
def the_fused_pass_answers_with_log_probs(model_dir: Path) -> None:
    import torch
    from verl.utils import hf_processor
    from verl_hyocr.adapt.fused_head import KEEP

    processor, model = hf_processor(str(model_dir)), load_model(model_dir)
    inputs = dict(processor_inputs(processor, [sample_image()]))
    labels = inputs["input_ids"].roll(-1)
    distribution = torch.distributions.Categorical(logits=model(**inputs).logits / 0.8)
    wanted = distribution.log_prob(labels)
    keep = torch.arange(labels.shape[1])[None] >= labels.shape[1] - 4
    found = model(**inputs, temperature=0.8, shift_labels=labels, return_dict=True, **{KEEP: keep})
    assert float((found.log_probs - wanted)[keep].abs().max()) < 1e-4
    assert float(found.log_probs[~keep].abs().max()) == float(found.entropy[~keep].abs().max()) == 0.0
    assert float((found.entropy - distribution.entropy())[keep].abs().max()) < 1e-3


@check("P2.keep")
def verl_s_fused_forward_stays_away(model_dir: Path) -> None:
    from verl.models.transformers.monkey_patch import patch_forward_with_backends

    model = load_model(model_dir)
    before = type(model).forward
    patch_forward_with_backends(model, use_fused_kernels=True, fused_kernels_backend="torch")
    assert type(model).forward is before


def main() -> int:
    step, model_dir = sys.argv[1], Path(sys.argv[2])
    import verl  # noqa: F401 - runs the plugin first, as in a worker

    CHECKS[step](model_dir)
    print(f"{step}: ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
