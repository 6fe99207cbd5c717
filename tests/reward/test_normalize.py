"""The parsing normaliser, rule by rule."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward.task_scorers.latex import PARAGRAPH, flatten_latex, math_spans
from reward.task_scorers.latex_symbols import SYMBOLS
from reward.task_scorers.normalize import normalize_cell, normalize_document


def normalized(text: str) -> str:
    """The normalised text with a visible paragraph mark."""
    return normalize_document(text).text.replace(PARAGRAPH, "¶")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("text<|im_end|>", "text"),
        ("text<|endoftext|><｜hy_end▁of▁sentence｜>", "text"),
        ("te<eos>xt</s>", "text"),
        ("|x| < y <| z", "|x|<y<|z"),
        ("&lt;|im_end|&gt;", "<|im_end|>"),
    ],
)
def test_end_of_text_tokens_go(text, expected):
    assert normalized(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a<hy-meta><layout>title</layout><poly>(1,2),(3,4)</poly></hy-meta>b", "ab"),
        ("a<quad>(1,2),(3,4)</quad>b<pFig>x</pFig>c<pSeal id='1'>y</pSeal>d", "abcd"),
        ("a<quad>(1,2)</quad>b<quad>(3,4)</quad>c", "abc"),
        ("a<quad>unclosed", "aunclosed"),
        ("a</quad>b", "ab"),
        ("<pFig><quad>1</quad></pFig>b", "b"),
        ("<hy-meta><quad></hy-meta>b</quad>c", "bc"),
        ("<quadratic>x</quadratic>", "<quadratic>x</quadratic>"),
    ],
)
def test_metadata_spans_go_with_their_content(text, expected):
    assert normalized(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello<br/>everyone", "Helloeveryone"),
        ("a<br>b<BR />c</br>d<br class='x'>e", "abcde"),
        (r"\alpha<br>b", "αb"),
        ("<caption>Table 1</caption> x <figcaption>Fig. 2</figcaption>", "Table1xFig.2"),
        ("<div style='text-align: center;'>Figure 1</div>", "Figure1"),
        ("<html><body>a</body></html>", "a"),
        ("a < b and c > d", "a<bandc>d"),
        ("<b>bold</b>", "<b>bold</b>"),
    ],
)
def test_line_breaks_and_caption_tags_go_other_markup_is_text(text, expected):
    assert normalized(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("（a），ｂ；！？１２％＠～", "(a),b;!?12%@~"),
        ("【a】", "[a]"),
        ("“a” ‘b’ „c‟", '"a"\'b\'"c"'),
        ("一、二。《三》「四」…", "一、二。《三》「四」…"),
        ("cafe\u0301", "caf\u00e9"),
        ("10\u00b5m 30℃ 2\u22c53", "10\u03bcm30°C2·3"),
        ("a\u200bb\ufeffc\u00add", "abcd"),
        ("a\u3000b\u00a0c\td", "abcd"),
    ],
)
def test_characters(text, expected):
    assert normalized(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb", "ab"),
        ("a\r\nb\rc", "abc"),
        ("a\n\nb", "a¶b"),
        ("a\r\n\r\nb", "a¶b"),
        ("a\n \t\n\n\n b", "a¶b"),
        ("\n\na\n\n", "a"),
        ("a\n\n(1,2),(3,4)\n\nb", "a¶b"),
        ("a\n\n<quad>1</quad>\n\nb", "a¶b"),
        ("a\n\n<table></table>\nb", "a¶<table></table>b"),
    ],
)
def test_a_paragraph_break_is_one_separator_a_line_break_nothing(text, expected):
    assert normalized(text) == expected


def test_the_separator_is_private():
    """Fault: a digit stood for a paragraph break, so that a break could be had by writing the digit."""
    assert not PARAGRAPH.isdigit()
    assert not PARAGRAPH.isalnum()
    assert normalize_document(f"a{PARAGRAPH}b").text == "ab"
    assert normalize_document(f"<table><td>a{PARAGRAPH}b</table>").tables[0].rows[0][0].text == "ab"
    for digit in "0123456789":
        assert normalized("a\n\nb") != normalized(f"a{digit}b")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Figure(1,2),(3,4)", "Figure"),
        ("(12,34),(56,78)", ""),
        ("a (12, 34) , (56,78),( 9,10 ) b", "ab"),
        ("a（12，34），（56，78）", "a"),
        ("a(1,2),\n(3,4)", "a"),
        ("point (1,2) is text", "point(1,2)istext"),
        ("(1,2) (3,4)", "(1,2)(3,4)"),
        ("(1.5,2),(3,4)", "(1.5,2),(3,4)"),
        ("f(x,y),(3,4)", "f(x,y),(3,4)"),
        ("$(1,2),(3,4)$", "(1,2),(3,4)"),
        (r"\((1,2),(3,4)\) and (5,6),(7,8)", "(1,2),(3,4)and"),
        (r"\[(1,2),(3,4)\]", "(1,2),(3,4)"),
        ("$$\n(1,2),(3,4)\n$$", "(1,2),(3,4)"),
        (r"\begin{aligned}(1,2),(3,4)\end{aligned}", "(1,2),(3,4)"),
        ("costs $5 (1,2),(3,4)", "costs5"),
        ("costs $5\n\n(1,2),(3,4) and $6", "costs5¶and6"),
        ("<table><tr><td>(2,4),(3,3)</td></tr></table>", "<table><tr><td>(2,4),(3,3)</td></tr></table>"),
    ],
)
def test_bare_coordinates_go_outside_tables_and_formulas_only(text, expected):
    assert normalized(text) == expected


def test_public_case_post_01_a_coordinate_like_cell_in_a_multi_line_table_stays():
    table = "<table>\n<tr>\n<td>\n(2,4),(3,3)\n</td>\n</tr>\n</table>"
    assert normalized(f"{table}\nFigure(1,2),(3,4)") == "<table><tr><td>(2,4),(3,3)</td></tr></table>Figure"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a &amp; b &lt;c&gt; &nbsp;&#x4e2d;&#25991; &hellip;", "a&b<c>中文…"),
        ("&amp;lt;", "&lt;"),
        ("&lt;table&gt;", "<table>"),
        ("&#" + "9" * 5000 + ";", "\ufffd"),
        ("<table><td>a &amp;amp; b &lt;br&gt;</table>", "<table><tr><td>a&amp;b<br></td></tr></table>"),
    ],
)
def test_entities_are_decoded_once(text, expected):
    assert normalized(text) == expected
    assert len(normalize_document(text).tables) == ("<table><td>" in text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\alpha \times \beta \leq \infty", "α×β≤∞"),
        (r"\le \leq \ge \geq \ne \neq \to \rightarrow", "≤≤≥≥≠≠→→"),
        (r"\cdot \ldots \cdots \pm \in \notin \cup \sum \int", "·…⋯±∈∉∪∑∫"),
        (r"\sin x + \lim_{x \to 0}", "sinx+lim_{x→0}"),
        (r"\not= \not\in \not\subset", "≠∉⊄"),
        (r"90^\circ 90^{\circ} 90\degree 90°", "90°90°90°90°"),
        (r"f' f^\prime f^{\prime} f^{\prime\prime} f''", "f'f'f'f''f''"),
        (r"\mathbb{R} \mathbb N \mathcal{L} \mathfrak{g}", "ℝℕℒ𝔤"),
        (r"\% \# \_ \& \$ \{ \} \|", "%#_&${}‖"),
        (r"\unknown{abc}", r"\unknown{abc}"),
        ("\\", "\\"),
    ],
)
def test_latex_symbols_become_unicode(text, expected):
    assert normalized(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\left( x \right) \bigl[ y \Bigr] \middle| z", "(x)[y]|z"),
        (r"\left. x \right| \left\{ y \right.", "x|{y"),
        (r"\displaystyle\sum\limits_{i} a \quad b \qquad c \, d \; e \! f \ g", "∑_iabcdefg"),
        (r"a \hspace{1cm} b \vspace*{2pt} c \label{eq:1} d \hskip 3pt e \nonumber f", "abcdef"),
        (
            r"\mathrm{SEAF} \text{if } \mathbf{v} \operatorname{rank} \operatorname*{argmax} \mbox{ok}",
            "SEAFifvrankargmaxok",
        ),
        (r"\mathrm d x {\rm d}x {\bf abc} \textbf{a{b}c}", "dxdxabcabc"),
        (r"\textcolor{red}{ab} {\color{blue} cd}", "ab{cd}"),
        (r"\text{a \text{b \text{c}}}", "abc"),
        (r"\dfrac{a}{b} \tfrac12 \frac{10}{3}", r"\fracab\frac12\frac{10}3"),
        (r"x^{2} x^2 x_{i} {y} {{z}}", "x^2x^2x_iyz"),
        (r"x^{10} {ab} {}", "x^{10}{ab}{}"),
        (r"\alpha{} \LaTeX{}", r"α\LaTeX"),
        (r"\begin{array}{l@{\quad}cc} a & b \\ c & d \end{array}", "abcd"),
        (r"\begin{array}[t]{c|c}a&b\\[2pt]c&d\\*[-1.5ex]e\end{array}", "abcde"),
        (r"\begin{aligned} a &= b \\ &= c \end{aligned}", "a=b=c"),
        (r"\begin{align*} a &amp;= b \end{align*}", "a=b"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "(1234)"),
        (r"\left(\begin{matrix}1&2\\3&4\end{matrix}\right)", "(1234)"),
        (r"\left\{\begin{array}{l}a\\b\end{array}\right.", "{ab"),
        (r"\begin{cases}a\\b\end{cases}", "{ab"),
        (r"\begin{itemize} a & b \\ c \end{itemize}", r"\begin{itemize}a&b\\c\end{itemize}"),
        (r"\begin{aligned} a \text{ R\&D } b", "aR&Db"),
        ("Q & A", "Q&A"),
    ],
)
def test_latex_layout_goes(text, expected):
    assert normalized(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$a$ $$b$$ \\(c\\) \\[d\\]", "abcd"),
        ("$a$$b$", "ab"),
        ("US$5 and 6$", "US5and6"),
        (r"\$5", "$5"),
        (r"$a~b$ ~5", "ab~5"),
        (r"$$ a \\ b $$", "ab"),
        (r"\\server", r"\\server"),
    ],
)
def test_math_delimiters_go(text, expected):
    assert normalized(text) == expected


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("x^2", "x^{2}"),
        (r"\[\sqrt{12} = \sqrt{2^2 \times 3}\]", r"\sqrt{12}=\sqrt{2^2\times3}"),
        (
            r"\mathrm{SEAF}=\frac{\sum(额定容量\times 可用时间)}{统计期间}",
            r"SEAF = \dfrac{\sum(额定容量 × 可用时间)}{统计期间}",
        ),
        (r"\(a + b = c\)", "$$a+b=c$$"),
        ("I like to eat at a caf\u00e9", "I like to eat at a cafe\u0301"),
        ("Hello<br/>everyone", "Hello\neveryone"),
    ],
    ids=["form-01", "form-02", "form-03", "form-05", "parse-06", "parse-08"],
)
def test_public_cases_that_read_the_same_are_the_same(left, right):
    assert normalized(left) == normalized(right)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '<table border="1"><tr><td colspan="2">a b</td></tr></table>',
            '<table><tr><td colspan="2">ab</td></tr></table>',
        ),
        (
            '<table><tr><td rowspan="3" style="x" colspan=2>a</td></tr></table>',
            '<table><tr><td colspan="2" rowspan="3">a</td></tr></table>',
        ),
        ('<table><tr><td colspan="1" rowspan="">a</td></tr></table>', "<table><tr><td>a</td></tr></table>"),
        ("<table><thead><tr><th>a</th></tr></thead></table>", "<table><tr><td>a</td></tr></table>"),
        ("<table><caption>Table 1</caption><tr><td>a</td></tr></table>", "<table>Table1<tr><td>a</td></tr></table>"),
        ("<table><tr><td><b>a</b><br>$x^{2}$（1）</td></tr></table>", "<table><tr><td>ax^2(1)</td></tr></table>"),
        ("a<table><tr><td>b", "a<table><tr><td>b</td></tr></table>"),
        (
            "<table><tr><td>a<table><tr><td>n</td></tr></table></td></tr></table>x",
            "<table><tr><td>an</td></tr></table>x",
        ),
        ("<table><tr><td>a</td></tr>stray</table>", "stray<table><tr><td>a</td></tr></table>"),
        ("<tablecloth>", "<tablecloth>"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "|a|b||---|---||1|2|"),
    ],
)
def test_tables_in_the_text(text, expected):
    assert normalized(text) == expected


def test_tables_are_cut_out_in_order():
    document = normalize_document("a<table><td>1</table>b<TABLE id='x'><td>2</table><table><td>3")
    assert [table.rows[0][0].text for table in document.tables] == ["1", "2", "3"]


def test_math_spans_need_both_delimiters():
    assert math_spans(r"a $b$ \(c d") == [(2, 5)]
    assert math_spans("$a$$b$") == [(0, 3), (3, 6)]
    assert math_spans(r"\$a\$") == []
    nested = r"\begin{align}\begin{array}{c}x\end{array}\end{align}"
    assert math_spans(nested + "y") == [(0, len(nested))]


def test_symbols_agree_with_pylatexenc():
    latex2text = pytest.importorskip("pylatexenc.latex2text")
    database = latex2text.get_default_latex_context_db()
    theirs = {
        name: macro.simplify_repl
        for category in database.category_list
        for name, macro in database.d[category]["macros"].items()
        if isinstance(macro.simplify_repl, str)
    }
    # unicode-math's choice, or the sign that running text uses.
    ours_on_purpose = set(
        re.findall(
            r"\w+",
            """textmu textohm textperiodcentered ast diamond triangleleft triangleright barwedge bigotimes bigoplus preceq
            succeq hbar eth prime blacksquare bigcirc textcelsius bullet textasciicircum textquoteleft textquoteright
            textquotedblleft textquotedblright liminf limsup""",
        )
    )
    different = {name for name, symbol in SYMBOLS.items() if name in theirs and theirs[name] != symbol}
    assert different == ours_on_purpose


latex_soup = st.lists(
    st.sampled_from(
        ["{", "}", "$", "$$", "\\", "&", "~", "^", "_", "x", "αβ", " ", "\n\n", "(1,2),(3,4)", r"\alpha", r"\text", r"\left.",
         r"\mathbb", r"\not", r"\frac", r"\begin{array}{c}", r"\end{array}", r"\begin{cases}", r"\hspace", r"\rm", r"\(", r"\]",
         "&lt;", "<table>", "</table>", "<td>", "<quad>", "</quad>", "<br>", "（", "\u0301", "\ud800", "′"]
    ),
    max_size=25,
).map("".join)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(latex_soup)
def test_any_text_is_normalised_without_white_space_at_the_ends_or_repeated_separators(text):
    document = normalize_document(text)
    assert document == normalize_document(text)
    assert not document.text.startswith(PARAGRAPH)
    assert not document.text.endswith(PARAGRAPH)
    assert PARAGRAPH * 2 not in document.text
    assert not re.search(r"\s", re.sub(r"<td [^>]*>", "", document.text))


@settings(max_examples=200, deadline=None)
@given(latex_soup)
def test_white_space_at_the_ends_changes_nothing(text):
    assert normalize_document(f" \n\n{text}\n ") == normalize_document(text)


@settings(max_examples=200, deadline=None)
@given(st.text("ab \\{}$&^", max_size=30))
def test_flattening_never_grows_a_text_of_plain_letters(text):
    assert len(flatten_latex(text)) <= len(text)


@pytest.mark.parametrize(
    "text",
    [
        "{" * 30_000 + "x" + "}" * 30_000,
        r"\mathbb{" * 8_000,
        "\u0300\u0323" * 32_000,
        r"\begin{array}{{}" * 4_000,
        "$" * 64_000,
    ],
    ids=["braces", "alphabets", "combining marks", "environments", "dollars"],
)
def test_hostile_text_is_normalised(text):
    assert len(normalize_document(text).text) <= len(text)


def test_a_cell_is_normalised_without_paragraphs_or_coordinates():
    assert normalize_cell("a\n\nb (1,2),(3,4)") == "ab(1,2),(3,4)"
