"""Contracts with the pinned upstream: what the fork touches exists, looks as expected, and is ours where it is used."""

from __future__ import annotations

import inspect
import logging
import os
import subprocess
import sys
import textwrap

import pytest


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True, timeout=300
    )


def parameters(function) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "_ray_trace_ctx"]


def test_every_symbol_is_ours_once_its_module_is_imported():
    result = run_python(
        """
        import verl
        from verl_hyocr import activate, registry
        found = registry.problems(import_targets=True)
        assert not found, found
        print(activate.status)
        """
    )
    assert result.returncode == 0, result.stderr[-3000:]
    for name in ("A1", "A2", "A3", "A4", "A5", "D2", "E1", "G"):
        assert f" {name} " in result.stdout, result.stdout


def test_tokenizer_and_model_seams():
    from verl.utils import model
    from verl.utils.tokenizer import tokenizer

    assert parameters(tokenizer.hf_processor) == ["name_or_path", "kwargs"]
    assert parameters(model.convert_weight_keys) == ["state_dict", "model"]


def test_agent_loop_calls_what_the_processor_provides():
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    source = inspect.getsource(AgentLoopWorker._compute_position_ids)
    assert "self.processor.get_rope_index" in source and "text_position_ids, vision_position_ids" in source
    source = inspect.getsource(AgentLoopWorker._compute_multi_modal_inputs)
    assert "skip_special_tokens=True" in source, "A1 exists because special tokens are stripped here"


def test_rollout_seams():
    from verl.workers.rollout import utils
    from verl.workers.rollout.vllm_rollout import vllm_async_server
    from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

    assert parameters(utils.qwen2_5_vl_dedup_image_tokens) == ["prompt_ids", "processor"]
    source = inspect.getsource(vllm_async_server)
    assert "qwen2_5_vl_dedup_image_tokens(" in source
    assert "**engine_kwargs" in source, "engine_kwargs must be able to replace worker_extension_cls"
    assert parameters(vLLMColocateWorkerExtension.update_weights_from_ipc) == [
        "self",
        "peft_config",
        "base_sync_done",
        "use_shm",
    ]
    assert hasattr(vLLMColocateWorkerExtension, "_iter_all_models")
    assert logging.getLogger().level == logging.WARNING, "importing vLLM's server must not hide warnings"


def test_weight_sync_seams():
    from verl.workers.engine_workers import ActorRolloutRefWorker
    from verl.workers.rollout.vllm_rollout import utils
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
    from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

    names = ["self", "weights", "global_steps", "wire_format", "kwargs"]
    assert parameters(ServerAdapter.update_weights) == names
    upstream = inspect.getsource(inspect.unwrap(ServerAdapter.update_weights))
    assert 'kwargs={**kwargs, "use_shm": self.use_shm}' in upstream, "what update_weights gets reaches the vLLM worker"
    assert parameters(vLLMHttpServer.collective_rpc) == ["self", "method", "timeout", "args", "kwargs"]
    extension = utils.vLLMColocateWorkerExtension
    assert parameters(extension._update_weights) == ["self", "weights", "peft_config", "base_sync_done"]
    assert parameters(extension.update_weights_from_ipc) == ["self", "peft_config", "base_sync_done", "use_shm"]
    assert parameters(extension.monkey_patch_model) == ["self", "vocab_size", "banned_token_ids"]
    assert "self._update_weights(" in inspect.getsource(extension.update_weights_from_ipc)
    assert "self.rollout.update_weights(" in inspect.getsource(ActorRolloutRefWorker.update_weights)


def test_the_trainer_syncs_weights_before_it_samples():
    """B4: what makes load_format=dummy right."""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    assert "checkpoint_manager.update_weights" in inspect.getsource(PPOTrainerSync.on_init_end)
    assert "self.on_init_end()" in inspect.getsource(PPOTrainer) and "self._validate()" in inspect.getsource(
        PPOTrainer.fit
    )
    assert "sleep_replicas" in inspect.getsource(PPOTrainerSync.on_sample_end)


def test_one_reader_and_equal_micro_batch_counts_seams():
    from transformers.conversion_mapping import get_model_conversion_mapping

    assert "add_legacy" in parameters(get_model_conversion_mapping)
    from verl.utils import fsdp_utils
    from verl.workers.engine.fsdp import transformer_impl

    build = inspect.getsource(transformer_impl.FSDPEngine._build_module)
    assert "use_meta_tensor=not self.model_config.hf_config.tie_word_embeddings" in build, "why B4 exists"
    for name in ("pretrained_model_name_or_path=", "torch_dtype=", "config=", "trust_remote_code="):
        assert name in build[build.index("auto_class.from_pretrained(") :][:400]
    assert "broadcast_from_rank0=True" in inspect.getsource(fsdp_utils.fsdp2_load_full_state_dict)
    assert "same_micro_num_in_dp=True" in inspect.getsource(
        inspect.unwrap(transformer_impl.FSDPEngine.forward_backward_batch)
    )


def test_sampling_seams():
    from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
    from verl.workers.config.rollout import RolloutConfig
    from vllm import SamplingParams

    assert SamplingParams(logit_bias={5: -1e9}).logit_bias == {5: -1e9}
    assert SamplingParams.from_optional(logit_bias={5: -1e9}).logit_bias == {5: -100.0}, (
        "why B6 is no request parameter"
    )
    assert parameters(SingleTurnAgentLoop.run)[:2] == ["self", "sampling_params"]
    assert "custom" in RolloutConfig.__dataclass_fields__


def test_engine_seams():
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp import transformer_impl

    assert parameters(EngineRegistry.register) == ["model_type", "backend", "device", "vendor"]
    assert issubclass(transformer_impl.FSDPEngineWithLMHead, transformer_impl.FSDPEngine)
    assert "vendor_key in registry" in inspect.getsource(EngineRegistry.get_engine_cls)
    for name in ("get_per_tensor_param", "get_per_tensor_param_shard"):
        assert "convert_weight_keys(" in inspect.getsource(getattr(transformer_impl.FSDPEngine, name))
    assert parameters(transformer_impl.FSDPEngine.save_checkpoint)[:2] == ["self", "local_path"]


def test_transformers_seams():
    import transformers.models.hunyuan_vl.modeling_hunyuan_vl as modeling
    from transformers.core_model_loading import revert_weight_conversion

    assert parameters(modeling.apply_multimodal_rotary_pos_emb)[:5] == ["q", "k", "cos", "sin", "mrope_section"]
    assert parameters(modeling.HunYuanVLVisionPatchEmbed.interpolate_pos_encoding) == [
        "self",
        "embeddings",
        "height",
        "width",
    ]
    wanted = {"input_ids", "inputs_embeds", "pixel_values", "image_grid_thw", "position_ids", "attention_mask"}
    assert wanted <= set(inspect.signature(modeling.HunYuanVLModel.forward).parameters)
    assert parameters(revert_weight_conversion) == ["model", "state_dict"]


def test_vllm_seams():
    import vllm.model_executor.models.hunyuan_vision as vision
    from vllm.model_executor.layers import utils
    from vllm.v1.sample.sampler import Sampler

    assert "self.patch_pos_embed is None" in inspect.getsource(vision.HunYuanVisionPatchEmbed.forward), (
        "A6 resets this cache"
    )
    assert hasattr(utils, "dispatch_cpu_unquantized_gemm")
    assert parameters(Sampler.compute_logprobs) == ["logits"]


def test_dataset_seams():
    from verl.utils.dataset.rl_dataset import RLHFDataset

    for name in ("_read_files_and_tokenize", "maybe_filter_out_long_prompts", "_build_messages", "__getstate__"):
        assert callable(getattr(RLHFDataset, name)), name
    assert parameters(RLHFDataset.maybe_filter_out_long_prompts) == ["self", "dataframe"]
    assert parameters(RLHFDataset._process_multi_modal_info) == ["messages", "image_patch_size", "config"]


def test_packing_and_flops_seams():
    import transformers.models.hunyuan_vl.modeling_hunyuan_vl as modeling
    from verl.utils import flops_counter
    from verl.workers.engine_workers import TrainingWorker

    assert hasattr(modeling, "get_vision_cu_seqlens") and hasattr(modeling, "ALL_ATTENTION_FUNCTIONS")
    assert isinstance(flops_counter.ESTIMATE_FUNC, dict)
    assert {"train_batch", "infer_batch"} <= set(dir(TrainingWorker))


def test_trainer_seams():
    from verl.trainer.ppo.v1 import trainer_base
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    source = inspect.getsource(trainer_base.PPOTrainer._build_replay_buffer)
    assert "custom_sampler" in source and "sampler_cls(**replay_buffer_kwargs)" in source
    assert {"global_steps", "partition_id", "batch_size"} <= set(inspect.signature(ReplayBuffer.sample).parameters)


def test_checkpoint_seams():
    """What safe_trainer redirects and relies on (E2, E4)."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    from verl.trainer.ppo.v1 import trainer_base
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    trainer = trainer_base.PPOTrainer
    save = inspect.getsource(trainer._save_checkpoint)
    for name in ("trainer.default_local_dir", "max_actor_ckpt_to_keep", "train_dataloader.state_dict()", "data.pt"):
        assert name in save, name
    assert save.index("save_checkpoint(") < save.index("latest_checkpointed_iteration")
    load = inspect.getsource(trainer._load_checkpoint)
    assert 'resume_mode == "resume_path"' in load and "data.pt" in load
    fit = inspect.getsource(trainer.fit)
    order = ["on_step_begin()", "self.step(", "_save_checkpoint()", "on_step_end()", "_validate()"]
    assert sorted(order, key=fit.rindex) == order
    assert "uid" in inspect.getsource(trainer._fetch_one_gen_batch)
    assert parameters(ReplayBuffer._wait_for_next_poll) == ["self", "partition_id", "last_debug_time"]
    assert parameters(ReplayBuffer._select_prompt_uids) == ["self", "partition_id", "sampleable_keys", "batch_size"]
    names = ["self", "sampling_params", "trajectory", "agent_name", "trace", "kwargs"]
    assert parameters(AgentLoopWorker._run_agent_loop) == names


def test_main_seams():
    """What verl_hyocr.main puts itself between, and what Ray must tell about actors."""
    from ray._private.state import GlobalState
    from ray.core.generated import common_pb2
    from ray.experimental import internal_kv
    from verl.trainer import main_ppo

    source = inspect.getsource(main_ppo.run_ppo)
    assert source.index("ray.init(") < source.index("task_runner_class.remote()")
    assert "ray.get(runner.run.remote(config))" in source and "task_runner_class.options(" in source
    assert parameters(GlobalState.actor_table) == ["self", "actor_id", "job_id", "actor_state_name"]
    assert common_pb2.ActorDiedErrorContext.Reason.Value("WORKER_DIED") > 0
    assert callable(internal_kv._internal_kv_put) and callable(internal_kv._internal_kv_get)


def test_driver_seams():
    from verl.trainer import main_ppo
    from verl.utils import tracking

    source = inspect.getsource(main_ppo)
    assert source.index("validate_config(") < source.index("run_ppo(config, task_runner_class=TaskRunnerV1)")
    assert "ray_init.get" in source or 'ray_init_kwargs.get("runtime_env"' in source
    assert parameters(tracking.FileLogger.log) == ["self", "data", "step"]


def test_upstream_swallows_plugin_exceptions_but_not_ours(tmp_path):
    """An exception in the bootstrap must end any process that imports verl, with the reason and a non-zero exit."""
    (tmp_path / "wrapt.py").write_text("raise RuntimeError('this wrapt is broken')")
    result = run_python("import verl; print('TRAINING ON PLAIN VERL')", PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    assert "TRAINING" not in result.stdout
    assert "this wrapt is broken" in result.stderr and "verl-hyocr could not adapt verl" in result.stderr


def test_broken_plugin_stops_the_trainer(tmp_path, tiny_model):
    """The same through verl's own entry point: no Ray, no training, exit code 1."""
    (tmp_path / "wrapt.py").write_text("raise RuntimeError('this wrapt is broken')")
    env = {**os.environ, "VERL_PLATFORM": "cpu", "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-m", "verl.trainer.main_ppo", f"actor_rollout_ref.model.path={tiny_model}"],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 1 and "verl-hyocr could not adapt verl" in result.stderr


def test_step_that_cannot_be_applied_stops_the_import(tmp_path):
    """An upstream module without the symbol raises at import, in the process that needs it."""
    result = run_python(
        """
        import verl
        from verl_hyocr import registry
        step = registry.Step("X1", "verl.utils.fs", lambda module: module.no_such_symbol, (), "test")
        registry.install(step)
        import importlib, sys
        sys.modules.pop("verl.utils.fs", None)
        importlib.import_module("verl.utils.fs")
        """
    )
    assert result.returncode == 1 and "no_such_symbol" in result.stderr


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"VERL_USE_EXTERNAL_PLUGINS": "none"}, "its verl plugin did not run"),
        ({"HYOCR_FAKE_VERSION": "1"}, "tested with"),
    ],
)
def test_activation_refuses(environment, reason):
    result = run_python(
        """
        import os, verl
        from verl_hyocr import versions
        if os.environ.get("HYOCR_FAKE_VERSION"):
            versions.PINS["verl"] = "9.9.9"
        import verl_hyocr.activate
        """,
        **environment,
    )
    assert result.returncode != 0 and reason in result.stderr, result.stderr[-2000:]


def test_symbol_replaced_by_somebody_else_is_noticed():
    result = run_python(
        """
        import verl
        import verl.workers.rollout.utils as utils
        utils.qwen2_5_vl_dedup_image_tokens = lambda prompt_ids, processor: prompt_ids
        import verl_hyocr.activate
        """
    )
    assert result.returncode != 0 and "A5" in result.stderr and "is not adapted" in result.stderr
