"""Reward kit for OCR tasks: seven scorers, one dispatcher, one judge client.

Start at :mod:`reward_ocr` (the entry that verl calls), :mod:`reward.ocr_scorer` (dispatch) or
``python -m reward --help``.
"""
