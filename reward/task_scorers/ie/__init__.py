"""Information extraction: field by field comparison of JSON objects."""
