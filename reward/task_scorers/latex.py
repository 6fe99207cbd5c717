"""LaTeX in running text, reduced to what a reader sees: symbols as Unicode, layout and delimiters gone.

`flatten_latex` is one left-to-right pass over the commands of a text, with an explicit stack for braces: its time is
linear in the length of the text and it cannot recurse. It knows no grammar: an unknown command stays as it is written,
and both sides of a comparison go through the same rules.
"""

import re

from reward.task_scorers.latex_symbols import (
    ALIASES,
    ALPHABETS,
    ENVIRONMENTS,
    ENVIRONMENTS_WITH_ARGUMENT,
    FONT_SWITCHES,
    LAYOUT,
    LAYOUT_WITH_ARGUMENT,
    NULL_DELIMITER,
    SYMBOLS,
    TEXT_ENVIRONMENTS,
    TRANSPARENT,
    TRANSPARENT_AFTER_ARGUMENT,
)

# Stands for a paragraph break. A Unicode noncharacter: callers remove it from their input, so it cannot be forged.
PARAGRAPH = "\ufdd0"

_TOKEN = re.compile(r"\\([A-Za-z]+)|\\(.)|([{}&~]|\$\$?)", re.DOTALL)
_NEEDS_WORK = re.compile(r"[\\{}$^]")
# An argument with at most one more level of braces inside, as in \begin{array}{@{}l@{}}. The atomic and possessive
# parts never backtrack, so a text of nothing but opening braces stays linear.
_ARGUMENT = re.compile(r"\s{0,9}\{(?:[^{}]++|\{[^{}]*+\})*+\}")
_ENVIRONMENT = re.compile(r"\s{0,9}\{\s{0,9}([A-Za-z]{1,20}\*?)\s{0,9}\}")
_POSITION = re.compile(r"\s{0,9}\[[tbchHm!]{1,4}\]")
_LENGTH = r"-?[0-9.]{1,10}\s{0,9}(?:pt|em|ex|mm|cm|in|mu|pc)"
_ROW_SKIP = re.compile(r"\*?\s{0,9}\[\s{0,9}" + _LENGTH + r"\s{0,9}\]")
_BARE_LENGTH = re.compile(r"\s{0,9}" + _LENGTH)
_NULL = re.compile(r"\s{0,9}\.")
_MATH_TOKEN = re.compile(
    r"\\(?:begin|end)\s{0,9}\{\s{0,9}([A-Za-z]{1,20}\*?)\s{0,9}\}|\\.|\$\$?|" + PARAGRAPH, re.DOTALL
)
_POWER_SIGNS = re.compile(r"\^(?:(∘)|(′)|\{(′+)\})")
_NEGATION = "\u0338"
# A group of \mathbb and kin is mapped letter by letter only up to this many tokens, so that nesting stays linear.
_MAX_ALPHABET_TOKENS = 64

_ESCAPED = {char: char for char in "{}%#_&$"} | {"|": "‖"}
# Spaces of several widths, discretionary hyphens, italic corrections, and the delimiters of formulas.
_INVISIBLE_ESCAPES = frozenset(",;:!>/-()[]")


def math_spans(text: str) -> list[tuple[int, int]]:
    r"""Return the (start, end) offsets of the formulas in `text`, in order and disjoint.

    A formula is `$…$`, `$$…$$`, `\(…\)`, `\[…\]` or an environment that arranges formulas. A delimiter without a
    partner opens nothing; `$…$` and `\(…\)` do not reach over a paragraph break.

    >>> math_spans(r"a $b$ c \(d\)")
    [(2, 5), (8, 13)]
    """
    spans = []
    start, closer, depth = -1, "", 0
    for match in _MATH_TOKEN.finditer(text):
        token = match.group()
        if start < 0:
            closer, depth = _closer(token, match[1]), 0
            start = match.start() if closer else -1
        elif token == PARAGRAPH:
            if closer in ("$", r"\)"):
                start = -1
        elif closer == r"\end":
            depth += 1 if token.startswith(r"\begin") else -1 if token.startswith(r"\end") else 0
            if depth < 0:
                spans.append((start, match.end()))
                start = -1
        elif token == closer:
            spans.append((start, match.end()))
            start = -1
        elif closer == "$" and token == "$$":  # $a$$b$ is two formulas side by side
            spans.append((start, match.end() - 1))
            start = match.end() - 1
    return spans


def _closer(token: str, environment: str | None) -> str:
    """Return what ends the formula that `token` starts, "" when it starts none."""
    if environment:
        is_formula = environment in ENVIRONMENTS and environment not in TEXT_ENVIRONMENTS
        return r"\end" if is_formula and token.startswith(r"\begin") else ""
    return {"$": "$", "$$": "$$", r"\(": r"\)", r"\[": r"\]"}.get(token, "")


def flatten_latex(text: str) -> str:
    r"""Replace LaTeX commands by what they show, drop layout, math delimiters and all white space.

    Symbols become Unicode (`\alpha` is α, `\not=` is ≠, `^\circ` is °). Commands of layout go; `\text{…}` and kin are
    replaced by their content; environments go with their `&` and `\\`, but pmatrix and kin leave the brackets they
    draw. Braces around a single character go. Every unescaped `$` goes. Paragraph breaks stay.

    >>> flatten_latex(r"\left( x^{2} \right) \leq \mathrm{max}")
    '(x^2)≤max'
    """
    if not _NEEDS_WORK.search(text):
        return "".join(text.split())
    flattened = _Pass(text).run()
    return _POWER_SIGNS.sub(lambda m: "°" if m[1] else "'" * len(m[2] or m[3]), flattened)


class _Pass:
    """One run over a text. `out` holds the pieces written so far; `length` is their total length."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.out: list[str] = []
        self.length = 0
        # Open groups: (index in `out` of the opening brace, length up to it, kind). A kind is "plain", "transparent"
        # or the name of an alphabet.
        self.groups: list[tuple[int, int, str]] = []
        self.environments = 0
        # What opened the formula we are in: "$", "$$", "(" or "[", "" outside. Decides on ~ and \\ only.
        self.formula = ""
        self.next_group = "plain"
        self.negate = False
        self.after_command = False

    def run(self) -> str:
        text, position = self.text, 0
        while match := _TOKEN.search(text, position):
            if match.start() > position:
                self.plain(text[position : match.start()])
            name, escaped, mark = match.groups()
            position = match.end()
            if name:
                position = self.command(name, position)
            elif escaped:
                position = self.escape(escaped, position)
            else:
                self.mark(mark)
        self.plain(text[position:])
        return "".join(self.out)

    def write(self, piece: str) -> None:
        """Append visible text, applying a pending alphabet or negation to its first character."""
        if not piece:
            return
        if self.next_group in ALPHABETS:
            piece = ALPHABETS[self.next_group].get(piece[0], piece[0]) + piece[1:]
        if self.negate:
            piece = piece[0] + _NEGATION + piece[1:]
        self.next_group, self.negate, self.after_command = "plain", False, False
        self.out.append(piece)
        self.length += len(piece)

    def plain(self, chunk: str) -> None:
        if PARAGRAPH in chunk:
            self.formula = ""
        self.write("".join(chunk.split()))

    def mark(self, mark: str) -> None:
        if mark == "{":
            self.groups.append((len(self.out), self.length, self.next_group))
            kind, self.next_group = self.next_group, "plain"
            self.out.append("{" if kind == "plain" else "")
            self.length += len(self.out[-1])
        elif mark == "}":
            self.close_group()
        elif mark == "$":
            self.formula = "" if self.formula else "$"
        elif mark == "$$":
            if self.formula != "$":  # $a$$b$ is two formulas side by side
                self.formula = "" if self.formula else "$$"
        elif mark == "&":
            if not self.environments:
                self.write("&")
        elif not (self.formula or self.environments):  # "~" is a space in formulas only
            self.write("~")

    def close_group(self) -> None:
        if not self.groups:
            self.write("}")
            return
        index, length_before, kind = self.groups.pop()
        if kind == "plain":
            content_length = self.length - length_before - 1
            if content_length == 1 or (content_length == 0 and self.after_command):
                self.out[index] = ""
                self.length -= 1
            elif self.out[index]:
                self.out.append("}")
                self.length += 1
        elif kind in ALPHABETS and len(self.out) - index <= _MAX_ALPHABET_TOKENS:
            letters = ALPHABETS[kind]
            self.out[index:] = ["".join(letters.get(char, char) for piece in self.out[index:] for char in piece)]
        self.next_group, self.after_command = "plain", False

    def escape(self, char: str, position: int) -> int:
        if char in _ESCAPED:
            self.write(_ESCAPED[char])
        elif char in "([":
            self.formula = char
        elif char in ")]":
            self.formula = ""
        elif char == "\\":
            if not (self.environments or self.formula):
                self.write("\\\\")
            elif skip := _ROW_SKIP.match(self.text, position):
                return skip.end()
        elif char not in _INVISIBLE_ESCAPES and not char.isspace():
            self.write("\\" + char)
        return position

    def command(self, name: str, position: int) -> int:
        """Handle one command; return the position after what it consumed."""
        name = ALIASES.get(name, name)
        if name in SYMBOLS:
            self.write(SYMBOLS[name])
            self.after_command = True
        elif name in TRANSPARENT:
            self.next_group = "transparent"
            if self.text.startswith("*", position) and name == "operatorname":
                position += 1
        elif name in ALPHABETS:
            self.next_group = name
        elif name in LAYOUT:
            if name in NULL_DELIMITER and (null := _NULL.match(self.text, position)):
                position = null.end()
        elif name in LAYOUT_WITH_ARGUMENT or name in TRANSPARENT_AFTER_ARGUMENT:
            position = self.skip_argument(position)
            if name in TRANSPARENT_AFTER_ARGUMENT:
                self.next_group = "transparent"
        elif name in FONT_SWITCHES:
            self.open_up_group()
        elif name == "not":
            self.negate = True
        elif name in ("begin", "end") and (match := _ENVIRONMENT.match(self.text, position)):
            position = self.environment(name, match)
        else:
            self.write("\\" + name)
            self.after_command = True
        return position

    def skip_argument(self, position: int) -> int:
        if self.text.startswith("*", position):
            position += 1
        match = _ARGUMENT.match(self.text, position) or _BARE_LENGTH.match(self.text, position)
        return match.end() if match else position

    def open_up_group(self) -> None:
        """A font switch at the start of a group makes the braces around it invisible."""
        if self.groups:
            index, length_before, kind = self.groups[-1]
            if kind == "plain" and self.out[index] and self.length == length_before + 1:
                self.out[index] = ""
                self.length -= 1
                self.groups[-1] = (index, length_before, "transparent")

    def environment(self, name: str, match: re.Match[str]) -> int:
        environment, position = match[1], match.end()
        if environment not in ENVIRONMENTS:
            self.write("\\" + name)
            return match.start()
        opening, closing = ENVIRONMENTS[environment]
        if name == "end":
            self.environments = max(self.environments - 1, 0)
            self.write(closing)
            return position
        self.environments += 1
        self.write(opening)
        if match := _POSITION.match(self.text, position):
            position = match.end()
        if environment in ENVIRONMENTS_WITH_ARGUMENT and (match := _ARGUMENT.match(self.text, position)):
            position = match.end()
        return position
