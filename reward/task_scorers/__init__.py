"""Rule scorers: pure functions ``process_<task>_task(response, ref_answer) -> dict``, one module or package a task.

Every result has ``analysis`` (str), ``is_valid`` (bool), ``reward`` (float in [0, 1], -1.0 when not valid) and
``decision`` (str: why). Scorers are imported when the first sample of their task arrives, never here.
"""
