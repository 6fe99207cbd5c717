"""Names of layout blocks: one spelling, one name for each group of synonyms."""

import re

_SEPARATORS = re.compile(r"[\s\-]+")
_SYNONYMS = {
    "chart_title": "figure_title",
    "chart": "figure",
    "para": "paragraph",
    "paragraph_span": "paragraph",
    "title": "section_title",
    "heading": "section_title",
    "page_header": "header",
    "page_footer": "footer",
}


def canonical_category(name: str) -> str:
    """Lower case, blanks and dashes as underscores, synonyms as one name, any ``table_of…`` as ``table_of_contents``.

    >>> canonical_category("Page-Header"), canonical_category("Table of figures"), canonical_category("Heading")
    ('header', 'table_of_contents', 'section_title')
    """
    name = _SEPARATORS.sub("_", name.strip().lower())
    if name.startswith("table_of"):
        return "table_of_contents"
    return _SYNONYMS.get(name, name)
