"""All adaptations that replace something upstream, one concept a module. ``install_all`` arms them."""

from __future__ import annotations

import os

from verl_hyocr.registry import install


def install_all() -> None:
    """Arm every step for this process; steps of the CPU platform only when ``VERL_PLATFORM=cpu``."""
    from verl_hyocr.adapt import (
        board_v0,
        config_guard,
        dropped_samples,
        dummy_vision,
        file_logger,
        flops,
        fused_head,
        hf_export,
        nested_positions,
        node_loss,
        packing,
        placeholder_dedup,
        position_interpolation,
        processor,
        rotary,
        seeded_sampling,
        shared_images,
        weight_names,
        weight_sync,
    )

    modules = [
        processor,
        weight_names,
        weight_sync,
        hf_export,
        rotary,
        position_interpolation,
        # Inside dummy_vision, which must not see the images that this one takes out of the arguments.
        shared_images,
        dummy_vision,
        packing,
        fused_head,
        nested_positions,
        placeholder_dedup,
        flops,
        file_logger,
        dropped_samples,
        board_v0,
        seeded_sampling,
        config_guard,
        node_loss,
    ]
    if os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
        from verl_hyocr.adapt import cpu

        modules.append(cpu)
    for module in modules:
        for step in module.STEPS:
            install(step)
