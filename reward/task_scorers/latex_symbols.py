"""LaTeX command names and what they stand for, as plain tables.

`SYMBOLS` maps a command name (without its backslash) to the text a reader sees: a Unicode symbol, or the letters of a
function name (`\\sin` is "sin"). The names are those of LaTeX, amsmath, amssymb and textcomp, the code points those of
the `unicode-math` package, except where formulas and running text write one sign with two code points: then it is the
one of running text (`\\ast` is `*`, `\\mid` is `|`, `\\cdot` is `·`), and `SAME_SIGN` folds the other one into it. The
remaining tables name the commands that carry layout only.
"""


def _pairs(table: str) -> dict[str, str]:
    """Read `symbol name name …` lines into {name: symbol}."""
    result = {}
    for line in table.strip().splitlines():
        symbol, *names = line.split()
        for name in names:
            result[name] = symbol
    return result


def _names(listing: str) -> frozenset[str]:
    return frozenset(listing.split())


_GREEK = """
α alpha
β beta
γ gamma
δ delta
ϵ epsilon
ε varepsilon
ζ zeta
η eta
θ theta
ϑ vartheta
ι iota
κ kappa
ϰ varkappa
λ lambda
μ mu textmu upmu
ν nu
ξ xi
ο omicron
π pi uppi
ϖ varpi
ρ rho
ϱ varrho
σ sigma
ς varsigma
τ tau
υ upsilon
ϕ phi
φ varphi
χ chi
ψ psi
ω omega
ϝ digamma
Α Alpha
Β Beta
Γ Gamma varGamma
Δ Delta varDelta
Ε Epsilon
Ζ Zeta
Η Eta
Θ Theta varTheta
Ι Iota
Κ Kappa
Λ Lambda varLambda
Μ Mu
Ν Nu
Ξ Xi varXi
Ο Omicron
Π Pi varPi
Ρ Rho
Σ Sigma varSigma
Τ Tau
Υ Upsilon varUpsilon
Φ Phi varPhi
Χ Chi
Ψ Psi varPsi
Ω Omega varOmega textohm ohm
"""

_OPERATORS = """
± pm textpm
∓ mp textmp
× times texttimes
÷ div textdiv
· cdot centerdot textperiodcentered cdotp
* ast
⋆ star
∘ circ
⊕ oplus
⊖ ominus
⊗ otimes
⊘ oslash
⊙ odot
⊚ circledcirc
⊛ circledast
⊝ circleddash
∧ wedge land
∨ vee lor
∩ cap
∪ cup
⊓ sqcap
⊔ sqcup
⊎ uplus
⋒ Cap
⋓ Cup
∖ setminus smallsetminus
≀ wr
⨿ amalg
† dagger dag textdagger
‡ ddagger ddag textdaggerdbl
⋄ diamond
△ bigtriangleup triangle
▵ vartriangle
▽ bigtriangledown
▿ triangledown
◁ triangleleft
▷ triangleright
⋉ ltimes
⋊ rtimes
⋈ bowtie Join
∔ dotplus
⊞ boxplus
⊟ boxminus
⊠ boxtimes
⊡ boxdot
⊼ barwedge
⊻ veebar
⋏ curlywedge
⋎ curlyvee
∑ sum
∏ prod
∐ coprod
∫ int smallint
∬ iint
∭ iiint
⨌ iiiint
∮ oint
∯ oiint
∰ oiiint
⋂ bigcap
⋃ bigcup
⨆ bigsqcup
⋁ bigvee
⋀ bigwedge
⨀ bigodot
⨂ bigotimes
⨁ bigoplus
⨄ biguplus
∂ partial
∇ nabla
¬ neg lnot textlnot
√ surd
"""

_RELATIONS = """
≤ le leq
≥ ge geq
⩽ leqslant
⩾ geqslant
≦ leqq
≧ geqq
≨ lneqq
≩ gneqq
⪇ lneq
⪈ gneq
≪ ll
≫ gg
⋘ lll
⋙ ggg
< lt textless
> gt textgreater
≠ ne neq
≡ equiv
∼ sim thicksim
≃ simeq
≈ approx thickapprox
≅ cong
≊ approxeq
≍ asymp
≐ doteq
≑ doteqdot Doteq
≒ fallingdotseq
≓ risingdotseq
≜ triangleq
≔ coloneqq
∝ propto varpropto
≺ prec
≻ succ
⪯ preceq
⪰ succeq
≼ preccurlyeq
≽ succcurlyeq
≾ precsim
≿ succsim
≲ lesssim
≳ gtrsim
⪅ lessapprox
⪆ gtrapprox
≶ lessgtr
≷ gtrless
⋚ lesseqgtr
⋛ gtreqless
≮ nless
≯ ngtr
≰ nleq
≱ ngeq
⊀ nprec
⊁ nsucc
≁ nsim
≇ ncong
⊂ subset
⊃ supset
⊆ subseteq
⊇ supseteq
⫅ subseteqq
⫆ supseteqq
⊊ subsetneq varsubsetneq
⊋ supsetneq varsupsetneq
⊈ nsubseteq
⊉ nsupseteq
⋐ Subset
⋑ Supset
⊏ sqsubset
⊐ sqsupset
⊑ sqsubseteq
⊒ sqsupseteq
∈ in isin
∉ notin
∋ ni owns
⊢ vdash
⊣ dashv
⊨ models vDash
⊩ Vdash
⊪ Vvdash
⊬ nvdash
⊭ nvDash
⊥ perp
∥ parallel
∦ nparallel
| mid shortmid
∤ nmid
⌢ frown smallfrown
⌣ smile smallsmile
≬ between
⋔ pitchfork
⊲ vartriangleleft lhd
⊳ vartriangleright rhd
⊴ trianglelefteq unlhd
⊵ trianglerighteq unrhd
∵ because
: colon
∴ therefore
∽ backsim
≏ bumpeq
≎ Bumpeq
≗ circeq
≖ eqcirc
⋖ lessdot
⋗ gtrdot
⋦ lnsim
⋧ gnsim
⋪ ntriangleleft
⋫ ntriangleright
⋬ ntrianglelefteq
⋭ ntrianglerighteq
"""

_ARROWS = """
← leftarrow gets
→ rightarrow to
↔ leftrightarrow
↑ uparrow
↓ downarrow
↕ updownarrow
⇐ Leftarrow
⇒ Rightarrow
⇔ Leftrightarrow
⇑ Uparrow
⇓ Downarrow
⇕ Updownarrow
⟵ longleftarrow
⟶ longrightarrow
⟷ longleftrightarrow
⟸ Longleftarrow impliedby
⟹ Longrightarrow implies
⟺ Longleftrightarrow iff
↦ mapsto
⟼ longmapsto
↩ hookleftarrow
↪ hookrightarrow
↗ nearrow
↘ searrow
↙ swarrow
↖ nwarrow
↼ leftharpoonup
↽ leftharpoondown
⇀ rightharpoonup
⇁ rightharpoondown
↾ upharpoonright restriction
↿ upharpoonleft
⇃ downharpoonleft
⇂ downharpoonright
⇌ rightleftharpoons
⇋ leftrightharpoons
⇄ rightleftarrows
⇆ leftrightarrows
⇇ leftleftarrows
⇉ rightrightarrows
⇈ upuparrows
⇊ downdownarrows
⇝ leadsto rightsquigarrow
↭ leftrightsquigarrow
↠ twoheadrightarrow
↞ twoheadleftarrow
↣ rightarrowtail
↢ leftarrowtail
↺ circlearrowleft
↻ circlearrowright
↶ curvearrowleft
↷ curvearrowright
↚ nleftarrow
↛ nrightarrow
↮ nleftrightarrow
⇍ nLeftarrow
⇏ nRightarrow
⇎ nLeftrightarrow
⇚ Lleftarrow
⇛ Rrightarrow
↰ Lsh
↱ Rsh
⊸ multimap
↫ looparrowleft
↬ looparrowright
"""

_DELIMITERS = """
⟨ langle
⟩ rangle
⌊ lfloor
⌋ rfloor
⌈ lceil
⌉ rceil
{ lbrace
} rbrace
[ lbrack
] rbrack
( lparen
) rparen
| vert lvert rvert textbar
‖ Vert lVert rVert
⟦ llbracket
⟧ rrbracket
⌜ ulcorner
⌝ urcorner
⌞ llcorner
⌟ lrcorner
⟮ lgroup
⟯ rgroup
\\ backslash textbackslash
"""

_LETTERLIKE = """
∞ infty
∅ emptyset varnothing
∀ forall
∃ exists
∄ nexists
∁ complement
ℏ hbar hslash
ı imath i
ȷ jmath j
ℓ ell
℘ wp
ℜ Re
ℑ Im
ℵ aleph
ℶ beth
ℷ gimel
ℸ daleth
℧ mho
ð eth dh
Ⅎ Finv
⅁ Game
′ prime
‵ backprime
∠ angle
∡ measuredangle
∢ sphericalangle
⊤ top
⊥ bot
□ square Box
■ blacksquare
◊ lozenge Diamond
⧫ blacklozenge
★ bigstar
▴ blacktriangle
▾ blacktriangledown
◂ blacktriangleleft
▸ blacktriangleright
○ bigcirc
♠ spadesuit
♡ heartsuit
♢ diamondsuit
♣ clubsuit
♭ flat
♮ natural
♯ sharp
✓ checkmark
✠ maltese
® circledR textregistered
Ⓢ circledS
© copyright textcopyright
™ texttrademark
° degree textdegree
°C celsius textcelsius
¥ yen textyen
£ pounds textsterling
€ euro texteuro
¢ textcent
§ S textsection
¶ P textparagraph
№ textnumero
‰ textperthousand permil perthousand
‱ textpertenthousand
… ldots dots dotsc dotsb dotsm dotsi dotso textellipsis mathellipsis
⋯ cdots
⋮ vdots
⋱ ddots
⋰ iddots adots
• bullet textbullet
– textendash
— textemdash
~ textasciitilde
^ textasciicircum
_ textunderscore
$ textdollar
ß ss
æ ae
Æ AE
œ oe
Œ OE
å aa
Å AA
ø o
Ø O
ł l
Ł L
þ th
Þ TH
Ð DH
' textquotesingle textquoteleft textquoteright
" textquotedbl textquotedblleft textquotedblright
= textequals
« guillemotleft guillemetleft
» guillemotright guillemetright
‹ guilsinglleft
› guilsinglright
¡ textexclamdown
¿ textquestiondown
½ textonehalf
¼ textonequarter
¾ textthreequarters
¹ textonesuperior
² texttwosuperior
³ textthreesuperior
ª textordfeminine
º textordmasculine
※ textreferencemark
"""

_FUNCTION_NAMES = """
arccos arcsin arctan arg cos cosh cot coth csc deg det dim exp gcd hom inf ker lg lim liminf limsup ln log max min
sec sin sinh sup tan tanh sgn bmod mod injlim projlim Pr
"""

SYMBOLS: dict[str, str] = {
    **_pairs(_GREEK),
    **_pairs(_OPERATORS),
    **_pairs(_RELATIONS),
    **_pairs(_ARROWS),
    **_pairs(_DELIMITERS),
    **_pairs(_LETTERLIKE),
    **{name: name for name in _FUNCTION_NAMES.split()},
    "bmod": "mod",
}

# One sign under two code points.
SAME_SIGN: dict[str, str] = {
    "⋅": "·",  # dot operator
    "∗": "*",  # asterisk operator
    "∣": "|",  # divides
    "∙": "•",  # bullet operator
    "⟂": "⊥",  # perpendicular
    "∆": "Δ",  # increment
    "µ": "μ",  # micro sign
    "℃": "°C",
    "℉": "°F",
}

# Other spellings of a command that is kept.
ALIASES: dict[str, str] = {
    "dfrac": "frac",
    "tfrac": "frac",
    "cfrac": "frac",
    "dbinom": "binom",
    "tbinom": "binom",
    "widehat": "hat",
    "widetilde": "tilde",
}

# Commands that only size, place or space what follows.
LAYOUT: frozenset[str] = _names("""
    left right middle big Big bigg Bigg bigl Bigl biggl Biggl bigm Bigm biggm Biggm bigr Bigr biggr Biggr
    displaystyle textstyle scriptstyle scriptscriptstyle limits nolimits displaylimits
    quad qquad enspace enskip thinspace medspace thickspace negthinspace negmedspace negthickspace space nobreakspace
    hfill vfill hfil vfil hss vss newline linebreak nolinebreak pagebreak newpage clearpage par noindent indent
    smallskip medskip bigskip centering raggedright raggedleft nonumber notag allowbreak nobreak relax null
    hline toprule midrule bottomrule strut mathstrut protect ensuremath
    tiny scriptsize footnotesize small normalsize large Large LARGE huge Huge
    boldmath unboldmath
    """)

# Delimiter commands after which a full stop means "no delimiter".
NULL_DELIMITER: frozenset[str] = frozenset({"left", "right", "middle"})

# Commands dropped together with their argument in braces.
LAYOUT_WITH_ARGUMENT: frozenset[str] = _names(
    "hspace vspace label color cline cmidrule hskip vskip kern mkern mskip vphantom hphantom phantom"
)

# Commands replaced by the content of their braces.
TRANSPARENT: frozenset[str] = _names("""
    text textrm textbf textit textsf texttt textnormal textup textmd textsl textsc mbox hbox emph
    mathrm mathbf mathit mathsf mathtt mathnormal mathup symup symbf symit symrm boldsymbol bm pmb
    operatorname mathop mathbin mathrel mathord mathopen mathclose mathpunct mathinner smash
    """)

# As TRANSPARENT, after an argument that only says how: \textcolor{red}{x}.
TRANSPARENT_AFTER_ARGUMENT: frozenset[str] = frozenset({"textcolor", "fontsize", "scalebox", "raisebox"})

# Font switches inside a group: {\rm d}.
FONT_SWITCHES: frozenset[str] = _names("rm bf it sf tt sl sc em rmfamily bfseries itshape sffamily ttfamily")

# Environments that only arrange their content, with the delimiters they draw around it. cases draws an opening brace.
ENVIRONMENTS: dict[str, tuple[str, str]] = {
    **{
        name: ("", "")
        for name in _names("""
        array tabular tabularx matrix smallmatrix subarray aligned alignedat align align* alignat alignat* gather
        gather* gathered split multline multline* equation equation* eqnarray eqnarray* math displaymath subequations
        flalign flalign* center
        """)
    },
    "pmatrix": ("(", ")"),
    "bmatrix": ("[", "]"),
    "Bmatrix": ("{", "}"),
    "vmatrix": ("|", "|"),
    "Vmatrix": ("‖", "‖"),
    "cases": ("{", ""),
    "dcases": ("{", ""),
    "rcases": ("", "}"),
}

# Environments whose first argument describes columns.
ENVIRONMENTS_WITH_ARGUMENT: frozenset[str] = _names("array tabular subarray alignat alignat* alignedat")

# Environments whose content is text, not mathematics.
TEXT_ENVIRONMENTS: frozenset[str] = frozenset({"tabular", "tabularx", "center"})


def _alphabet(upper: int, lower: int | None, exceptions: str) -> dict[str, str]:
    """Map ASCII letters to a block of mathematical letters; `exceptions` lists letters Unicode encoded earlier."""
    table = {chr(65 + i): chr(upper + i) for i in range(26)}
    if lower is not None:
        table.update({chr(97 + i): chr(lower + i) for i in range(26)})
    table.update(dict(zip(exceptions[::2], exceptions[1::2])))
    return table


_BLACKBOARD = _alphabet(0x1D538, 0x1D552, "CℂHℍNℕPℙQℚRℝZℤ")
_BLACKBOARD.update({chr(48 + i): chr(0x1D7D8 + i) for i in range(10)})
_SCRIPT = _alphabet(0x1D49C, 0x1D4B6, "BℬEℰFℱHℋIℐLℒMℳRℛeℯgℊoℴ")
_FRAKTUR = _alphabet(0x1D504, 0x1D51E, "CℭHℌIℑRℜZℨ")

# Alphabets that change which symbol a letter is: \mathbb{R} is ℝ.
ALPHABETS: dict[str, dict[str, str]] = {
    "mathbb": _BLACKBOARD,
    "Bbb": _BLACKBOARD,
    "mathcal": _SCRIPT,
    "mathscr": _SCRIPT,
    "mathfrak": _FRAKTUR,
}
