"""verl adapted for HunyuanOCR-1.5 from outside: no upstream source is copied or edited.

Entry points
------------
``verl.plugins`` -> :mod:`verl_hyocr.bootstrap`     every process that imports verl
``vllm.general_plugins`` -> :mod:`verl_hyocr.vllm_plugin`  every vLLM process
``actor_rollout_ref.model.external_lib`` -> :mod:`verl_hyocr.activate`  the loud check in driver and workers
"""

__version__ = "0.1.0"
