"""Data preparation: raw OCR records to the parquet files that training reads. Entry point: `prepare_data.py`."""
