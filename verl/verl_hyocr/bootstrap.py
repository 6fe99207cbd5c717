"""Target of the ``verl.plugins`` entry point: acts on import, in every process that imports verl.

verl only *loads* its plugin targets and swallows every ``Exception`` that they raise. A broken adaptation must stop the
process, so what goes wrong here is printed and turned into a ``SystemExit``, which verl lets through.
"""

from __future__ import annotations

import os
import traceback


class BootstrapFailure(SystemExit):
    """The fork could not be set up; importing verl ends the process with this message and exit code 1."""


def _bootstrap() -> None:
    # vLLM 0.25's second model runner captures CUDA graphs with a call that HunYuanVL's forward does not accept; the
    # first runner knows xdrope. Set before vLLM is imported and inherited by the processes that vLLM spawns.
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    # The fork must never upload anything by itself.
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # A dependency of vLLM's server raises the root logger to ERROR on import, which hides verl's and our warnings.
    os.environ.setdefault("SAGEMAKER_CONTAINER_LOG_LEVEL", "WARNING")
    from verl_hyocr import adapt

    adapt.install_all()


try:
    _bootstrap()
except Exception as _error:
    traceback.print_exc()
    raise BootstrapFailure(
        f"verl-hyocr could not adapt verl in this process: {_error!r}. Training on plain verl would be wrong, so it stops "
        "here. Reinstall with install_cu13.sh or install_cpu.sh, or uninstall verl-hyocr to use plain verl."
    ) from _error
