"""G: complete and check the driver's configuration before Ray starts.

Upstream: ``verl.utils.config.validate_config``, the last thing ``verl.trainer.main_ppo`` does before it starts Ray.
Process: the driver. Goes never: it is where this kit says no.
"""

from __future__ import annotations

import functools
from types import ModuleType

from verl_hyocr.registry import Step, mark

MODULE = "verl.utils.config"


def _apply(module: ModuleType) -> None:
    original = module.validate_config

    @functools.wraps(original)
    def validate_config(config, *args, **kwargs):
        from verl_hyocr import launch_config

        launch_config.prepare(config)
        return original(config, *args, **kwargs)

    module.validate_config = mark(validate_config, "G")


STEPS = [Step("G", MODULE, _apply, ((MODULE, "validate_config"),), "configuration guard")]
