"""B4: one process of the job reads the checkpoint; the others get their weights from it.

Symptom without it: every FSDP rank reads the whole checkpoint, twice (actor and reference). Upstream lets ranks other than 0
start from empty weights only when input and output embeddings are not tied, and HunyuanOCR's are. Rank 0 broadcasts its weights
in any case (``fsdp2_load_full_state_dict``), so the other ranks need the modules, tied the same way, but no values.

The rollout engines do not read either: with ``load_format=dummy`` they wait for the first weight sync, which the trainer does
before it samples anything (``A6`` makes that right in bf16, ``B5`` checks that every engine weight was written).
Process: FSDP workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def empty_weights(auto_class: type) -> Iterator[None]:
    """While open, ``auto_class.from_pretrained`` builds the model with uninitialised weights and reads no weight file.

    The values of parameters and buffers must come from elsewhere before they are used.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.initialization import no_init_weights

    original = auto_class.__dict__.get("from_pretrained")

    def from_pretrained(cls, pretrained_model_name_or_path=None, *, config, torch_dtype, trust_remote_code=False):
        with no_init_weights():
            model = cls.from_config(config, dtype=torch_dtype, trust_remote_code=trust_remote_code)
        # Tying is part of the initialisation that was left out.
        model.tie_weights()
        # Reading a checkpoint notes its names on the model. They cannot be found later: FSDP2 gives the model another class.
        model._weight_conversions = get_model_conversion_mapping(model, add_legacy=False)
        return model.eval()

    auto_class.from_pretrained = classmethod(from_pretrained)
    try:
        yield
    finally:
        if original is None:
            del auto_class.from_pretrained
        else:
            auto_class.from_pretrained = original
