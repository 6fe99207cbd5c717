"""Target of the ``verl.plugins`` entry point: acts on import, in every process that imports verl.

verl only *loads* its plugin targets and swallows what they raise, so this module keeps the error for
:mod:`verl_hyocr.activate` (which verl imports where errors do propagate) and prints it loudly at once.
"""

from __future__ import annotations

import os
import sys
import traceback

error: BaseException | None = None
"""What went wrong while bootstrapping, or None."""


def _bootstrap() -> None:
    # vLLM 0.25's second model runner captures CUDA graphs with a call that HunYuanVL's forward does not accept; the
    # first runner knows xdrope. Set before vLLM is imported and inherited by the processes that vLLM spawns.
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    # The fork must never upload anything by itself.
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    from verl_hyocr import adapt

    adapt.install_all()


try:
    _bootstrap()
except BaseException as _error:
    error = _error
    print("verl-hyocr: BOOTSTRAP FAILED, this process runs plain verl and must not train:", file=sys.stderr, flush=True)
    traceback.print_exc()
    raise
