"""verl's platform interface for a machine without an accelerator. Registers itself as ``cpu`` on import.

Workers still ask Ray for the resource "GPU": it is logical, ``ray start --num-gpus N`` gives N worker slots.
"""

from __future__ import annotations

import types
from contextlib import contextmanager

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _host_memory() -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return memory.available, memory.total


def _resident_bytes(*_args, **_kwargs) -> int:
    return psutil.Process().memory_info().rss


def _nothing(*_args, **_kwargs) -> None:
    return None


class _CpuDeviceModule(types.ModuleType):
    """The part of ``torch.cuda`` that verl calls on its device module; anything else is an AttributeError."""

    Stream = torch.cpu.Stream
    stream = staticmethod(torch.cpu.stream)
    current_stream = staticmethod(torch.cpu.current_stream)
    synchronize = staticmethod(_nothing)
    set_device = staticmethod(_nothing)
    empty_cache = staticmethod(_nothing)
    ipc_collect = staticmethod(_nothing)
    reset_peak_memory_stats = staticmethod(_nothing)
    manual_seed = staticmethod(torch.manual_seed)
    manual_seed_all = staticmethod(torch.manual_seed)
    max_memory_allocated = staticmethod(_resident_bytes)
    max_memory_reserved = staticmethod(_resident_bytes)
    memory_allocated = staticmethod(_resident_bytes)
    memory_reserved = staticmethod(_resident_bytes)

    @staticmethod
    def get_rng_state(device=None):
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state, device=None):
        torch.set_rng_state(state)

    @staticmethod
    def is_available() -> bool:
        return False

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> str:
        return "cpu"

    @staticmethod
    def get_device_name(device=None) -> str:
        return "cpu"

    @staticmethod
    def mem_get_info(device=None) -> tuple[int, int]:
        return _host_memory()


_DEVICE_MODULE = _CpuDeviceModule("verl_hyocr_cpu_device")


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """One process is one device; collectives run on gloo; weights reach vLLM through shared memory."""

    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: _DEVICE_MODULE)

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        # Never auto-detected: a driver without a GPU may still lead a cluster that has them.
        return False

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index) -> None:
        return None

    def synchronize(self, device_index=None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    @contextmanager
    def nvtx_range(self, msg: str):
        yield

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def cudart(self) -> None:
        return None
