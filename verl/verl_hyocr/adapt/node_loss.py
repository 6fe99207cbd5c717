"""H1: a node that dies ends the run, with the node's name, within a minute.

Upstream: the driver waits for the trainer without a time limit. ``verl.trainer.constants_ppo.get_ppo_ray_runtime_env`` is
the last function that it calls before ``ray.init``. Process: the driver. Goes when upstream ends by itself whatever it is
waiting for.
"""

from __future__ import annotations

import functools
from types import ModuleType

from verl_hyocr import node_watch
from verl_hyocr.registry import Step, mark, resolve

MODULE = "verl.trainer.constants_ppo"
SYMBOL = "get_ppo_ray_runtime_env"


def _apply(module: ModuleType) -> None:
    original = resolve(module, SYMBOL)

    @functools.wraps(original)
    def get_ppo_ray_runtime_env(*args, **kwargs):
        node_watch.start()
        return original(*args, **kwargs)

    module.get_ppo_ray_runtime_env = mark(get_ppo_ray_runtime_env, "H1")


STEPS = [Step("H1", MODULE, _apply, ((MODULE, SYMBOL),), "watch for lost nodes")]
