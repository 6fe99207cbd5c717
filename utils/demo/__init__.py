"""What the embedded demo trains: a random-weight HunYuanVL checkpoint and a rendered OCR dataset."""
