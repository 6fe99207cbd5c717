"""vLLM with the tiny model inside this process, and verl's own sender of weights in front of it.

For scripts that tests start in a fresh process: vLLM's import changes what transformers loads afterwards.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VERL_RAY_JOB_ID"] = f"test{os.getpid()}"


def start_engine(model_dir: Path, **settings):
    """``vllm.LLM`` on ``model_dir`` with the fork's worker extension, fp32, eager, log-probs as verl asks for them."""
    import verl  # noqa: F401 - its plugins adapt this process
    from vllm import LLM

    return LLM(
        model=str(model_dir),
        worker_extension_cls="verl_hyocr.vllm_ext.HyocrWorkerExtension",
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=8,
        logprobs_mode="processed_logprobs",
        mm_processor_kwargs={"backend": "pil"},
        disable_log_stats=True,
        **settings,
    )


class Server:
    """Stands for the Ray actor of the vLLM server: every ``handle.method.remote()`` is an awaitable."""

    def __init__(self, llm):
        async def clear_kv_cache():
            llm.reset_prefix_cache()
            llm.reset_mm_cache()
            llm.llm_engine.reset_encoder_cache()

        self.clear_kv_cache = SimpleNamespace(remote=clear_kv_cache)


def sender(llm, bucket_mb: int = 64):
    """verl's ``ServerAdapter``, whose calls to the server go to ``llm`` in a thread of this process."""
    from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

    class Adapter(ServerAdapter):
        def __init__(self):
            self.config = SimpleNamespace(
                checkpoint_engine=SimpleNamespace(update_weights_bucket_megabytes=bucket_mb),
                engine_kwargs={"vllm": {"worker_extension_cls": "verl_hyocr.vllm_ext.HyocrWorkerExtension"}},
            )
            self.zmq_handle = f"ipc:///tmp/rl-colocate-zmq-{os.environ['VERL_RAY_JOB_ID']}-replica-0-rank-0.sock"
            self.use_shm, self._has_server, self.server_handle = True, True, Server(llm)
            self.replica_rank = self.rollout_rank = 0

        async def _execute_method(self, method, non_block=False, timeout=None, args=(), kwargs=None):
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(None, lambda: llm.collective_rpc(method, args=args, kwargs=kwargs))
            return future if non_block else await future

    return Adapter()


def send(adapter, weights) -> None:
    """One weight sync of ``(name, tensor)`` pairs; raises what the trainer would see."""
    asyncio.run(adapter.update_weights(iter(list(weights))))


def released_weights(model) -> dict:
    """What the actor sends: a transformers model's state under the released names."""
    from verl.utils.model import convert_weight_keys

    return convert_weight_keys(model.state_dict(), model)
