"""Converters from public annotation formats to the records that `data/prepare_data.py` reads.

A converter is a module with `records(...)`, a generator of `Converted`, and a `main` built on `run_converter`; see
`icdar.py` for the shortest one.
"""
