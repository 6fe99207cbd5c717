"""Compose and check verl's configuration without starting anything.

    python -m verl_hyocr.dry_run [hydra.key=value …]

Prints the resolved configuration as YAML. Exit code 2 when it cannot be composed or would not train correctly.
"""

from __future__ import annotations

import sys
from pathlib import Path


def compose(overrides: list[str]):
    """verl's PPO configuration with ``overrides`` applied, completed and checked as the trainer would do it.

    Raises:
        hydra.errors.HydraException: for unknown keys and the like.
        ValueError, AssertionError: from the checks.
    """
    import verl
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = hydra_compose("ppo_trainer", overrides=overrides)
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    return config


def main(argv: list[str] | None = None) -> int:
    overrides = sys.argv[1:] if argv is None else argv
    if overrides and overrides[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        config = compose(overrides)
    except (HydraException, OmegaConfBaseException, ValueError, AssertionError) as error:
        print(f"dry run: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(OmegaConf.to_yaml(config, resolve=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
