"""Formulas in LaTeX's notation as text that can be read: letters, signs, raised and lowered figures of Unicode.

Not a typesetter: a fraction becomes a/b, a matrix rows in brackets, and a command that is not known its own name.
Whatever comes in, something readable comes out.
"""

from __future__ import annotations

import re

# Deeper groups are shown as they were written.
_MAX_DEPTH = 40
# Of a root, in signs.
_MAX_DEGREE = 12

_TOKEN = re.compile(r"\\[A-Za-z]+\*?|\\.|[{}^_&~]|\s+|[^\\{}^_&~\s]", re.DOTALL)


def _named(pairs: str) -> dict[str, str]:
    """Names and signs in turn."""
    words = pairs.split()
    return dict(zip(words[::2], words[1::2], strict=True))


_GREEK = _named(
    "alpha α beta β gamma γ delta δ epsilon ε zeta ζ eta η theta θ iota ι kappa κ lambda λ mu μ nu ν xi ξ omicron ο "
    "pi π rho ρ sigma σ tau τ upsilon υ phi φ chi χ psi ψ omega ω"
)
_SIGNS = {
    **_GREEK,
    **{name.capitalize(): letter.upper() for name, letter in _GREEK.items()},
    **_named(
        "varepsilon ε vartheta ϑ varpi ϖ varrho ϱ varsigma ς varphi φ times × cdot · div ÷ pm ± mp ∓ ast ∗ star ⋆ "
        "circ ∘ bullet ∙ oplus ⊕ ominus ⊖ otimes ⊗ odot ⊙ leq ≤ le ≤ geq ≥ ge ≥ neq ≠ ne ≠ approx ≈ equiv ≡ sim ∼ "
        "simeq ≃ cong ≅ propto ∝ ll ≪ gg ≫ prec ≺ succ ≻ subset ⊂ supset ⊃ subseteq ⊆ supseteq ⊇ in ∈ notin ∉ ni ∋ "
        "cup ∪ cap ∩ setminus ∖ emptyset ∅ varnothing ∅ forall ∀ exists ∃ nexists ∄ neg ¬ lnot ¬ land ∧ wedge ∧ "
        "lor ∨ vee ∨ to → rightarrow → leftarrow ← gets ← leftrightarrow ↔ Rightarrow ⇒ Leftarrow ⇐ implies ⟹ "
        "iff ⟺ Leftrightarrow ⇔ longrightarrow ⟶ mapsto ↦ uparrow ↑ downarrow ↓ infty ∞ partial ∂ nabla ∇ sum ∑ "
        "prod ∏ coprod ∐ int ∫ iint ∬ iiint ∭ oint ∮ bigcup ⋃ bigcap ⋂ ldots … cdots ⋯ dots … vdots ⋮ ddots ⋱ "
        "prime ′ degree ° angle ∠ perp ⊥ parallel ∥ mid ∣ nmid ∤ Vert ‖ lVert ‖ rVert ‖ vert | lvert | rvert | "
        "langle ⟨ rangle ⟩ lceil ⌈ rceil ⌉ lfloor ⌊ rfloor ⌋ hbar ℏ ell ℓ Re ℜ Im ℑ aleph ℵ wp ℘ top ⊤ bot ⊥ "
        "vdash ⊢ models ⊨ therefore ∴ because ∵ square □ blacksquare ■ triangle △ checkmark ✓ dagger † ddagger ‡ "
        "euro € pounds £ cdotp · colon : lbrace { rbrace } backslash \\ surd √"
    ),
    "quad": "  ",
    "qquad": "    ",
}
_SPACED = set("=≤≥≠≈≡∼≃≅∝≪≫⊂⊃⊆⊇∈∉→←↔⇒⇐⟹⟺⇔⟶↦<>×÷±∓∪∩∧∨⊕⊗+")
_RAISED = dict(
    zip(
        "0123456789+-=()abcdefghijklmnoprstuvwxyzABDEGHIJKLMNOPRTUVW′βγδφχ∗",
        "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᴬᴮᴰᴱᴳᴴᴵᴶᴷᴸᴹᴺᴼᴾᴿᵀᵁⱽᵂ′ᵝᵞᵟᵠᵡ*",
        strict=True,
    )
)
_LOWERED = dict(
    zip("0123456789+-=()aehijklmnoprstuvxβγρφχ", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓᵦᵧᵨᵩᵪ", strict=True)
)
_HALVES = {
    ("1", "2"): "½",
    ("1", "3"): "⅓",
    ("2", "3"): "⅔",
    ("1", "4"): "¼",
    ("3", "4"): "¾",
    ("1", "5"): "⅕",
    ("1", "6"): "⅙",
    ("1", "8"): "⅛",
}
_OVER = {
    "hat": "\u0302",
    "widehat": "\u0302",
    "bar": "\u0304",
    "overline": "\u0305",
    "tilde": "\u0303",
    "widetilde": "\u0303",
    "vec": "\u20d7",
    "dot": "\u0307",
    "ddot": "\u0308",
    "underline": "\u0332",
}
_DOUBLE = dict(zip("CHNPQRZEF1", "ℂℍℕℙℚℝℤ𝔼𝔽𝟙", strict=True))
_SCRIPT = dict(zip("BEFHILMRegoDLNO", "ℬℰℱℋℐℒℳℛℯℊℴ𝒟ℒ𝒩𝒪", strict=True))
# Their argument is shown as it is.
_PLAIN = {
    "text",
    "textrm",
    "mathrm",
    "mathbf",
    "mathit",
    "mathsf",
    "mathtt",
    "operatorname",
    "operatorname*",
    "boxed",
}
_PLAIN |= {
    "boldsymbol",
    "textbf",
    "textit",
    "mbox",
    "bm",
    "mathop",
    "displaystyle",
    "underbrace",
    "overbrace",
}
# Sizes and spacing, which text has no use for.
_DROPPED = {
    "left",
    "right",
    "big",
    "Big",
    "bigg",
    "Bigg",
    "bigl",
    "bigr",
    "Bigl",
    "Bigr",
    "limits",
    "nolimits",
}
_DROPPED |= {"displaystyle", "textstyle", "nonumber", "notag", "hline", "middle"}
# Spacing, and signs that are escaped.
_OTHER = {"\\": "\n", ",": " ", ":": " ", ";": " ", " ": " ", "!": "", "|": "‖"}
_BRACKETS = {
    "pmatrix": "()",
    "bmatrix": "[]",
    "vmatrix": "||",
    "Vmatrix": "‖‖",
    "Bmatrix": "{}",
    "matrix": "[]",
}


def readable(tex: str) -> str:
    """The formula as text; of several lines where it has some."""
    text = _Reader(tex).read()
    lines = (re.sub(r"(?<=\S) {2,3}(?=\S)", " ", line).strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


class _Reader:
    """One pass over a formula's tokens."""

    def __init__(self, tex: str) -> None:
        self._tokens: list[str] = _TOKEN.findall(tex)
        self._at = 0
        self._depth = 0

    def read(self) -> str:
        parts = []
        while self._at < len(self._tokens):
            parts.append(self._until_closed())
            if self._at < len(self._tokens):
                self._at += 1  # a brace that nothing opened
        return "".join(parts)

    def _until_closed(self) -> str:
        """Everything up to the brace, or the end of an environment, that closes this group."""
        parts: list[str] = []
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token == "}" or (token == "\\end" and self._depth):
                break
            parts.append(self._next())
        return "".join(parts)

    def _next(self) -> str:
        token = self._tokens[self._at]
        self._at += 1
        if token == "{":
            return self._group()
        if token in "^_":
            return _placed(self._argument(), raised=token == "^")
        if token == "~" or token.isspace():
            return " "
        if token == "&":
            return " "
        if token == "'":
            return "′"
        if token.startswith("\\") and len(token) > 1:
            return self._command(token[1:])
        if token == "-":
            return "−"
        return f" {token} " if token in _SPACED else token

    def _group(self) -> str:
        """What is within braces; the opening one has been read."""
        if self._depth >= _MAX_DEPTH:
            return "{"
        self._depth += 1
        inner = self._until_closed()
        self._depth -= 1
        if self._at < len(self._tokens) and self._tokens[self._at] == "}":
            self._at += 1
        return inner

    def _argument(self) -> str:
        while self._at < len(self._tokens) and self._tokens[self._at].isspace():
            self._at += 1
        if self._at >= len(self._tokens) or self._tokens[self._at] in ("}", "&"):
            return ""
        if self._depth >= _MAX_DEPTH:
            self._at += 1
            return self._tokens[self._at - 1]
        self._depth += 1
        inner = self._next()
        self._depth -= 1
        return inner.strip()

    def _raw_argument(self) -> str:
        """The letters of an argument as they were written."""
        if self._at >= len(self._tokens) or self._tokens[self._at] != "{":
            return self._argument()
        try:
            end = self._tokens.index("}", self._at)
        except ValueError:
            end = len(self._tokens)
        inner = "".join(self._tokens[self._at + 1 : end])
        self._at = end + 1
        return inner

    def _command(self, name: str) -> str:
        if name in _SIGNS:
            sign = _SIGNS[name]
            return f" {sign} " if sign in _SPACED else sign
        if name in ("frac", "dfrac", "tfrac", "cfrac"):
            return _fraction(self._argument(), self._argument())
        if name in ("binom", "tbinom", "dbinom"):
            return f"C({self._argument()}, {self._argument()})"
        if name == "sqrt":
            return self._root()
        if name in ("mathbb", "mathcal", "mathscr"):
            letters = _DOUBLE if name == "mathbb" else _SCRIPT
            return "".join(letters.get(letter, letter) for letter in self._argument())
        if name in ("text", "textrm", "mbox"):
            return self._raw_argument()
        if name in _DROPPED:
            return self._dropped(name)
        if name in _PLAIN:
            return self._argument()
        if name in _OVER:
            inner = self._argument()
            return "".join(letter + _OVER[name] for letter in inner) if len(inner) <= 2 else inner
        if name == "begin":
            return self._environment()
        if name == "end":
            self._raw_argument()
            return ""
        if name in ("tag", "tag*"):
            return f"  ({self._argument()})"
        if name in ("label", "color"):
            self._raw_argument()
            return ""
        if name.isalpha() and name.islower():
            follows = self._tokens[self._at : self._at + 1]
            return f" {name}" if follows and follows[0] in ("(", "^", "_") else f" {name} "
        return _OTHER.get(name, name)

    def _dropped(self, name: str) -> str:
        if name in ("left", "right", "middle") and self._tokens[self._at : self._at + 1] == ["."]:
            self._at += 1
        return ""

    def _root(self) -> str:
        degree = ""
        near = self._tokens[self._at : self._at + _MAX_DEGREE]
        if near[:1] == ["["] and "]" in near:
            end = near.index("]")
            degree = _placed("".join(near[1:end]), raised=True)
            self._at += end + 1
        return f"{degree}√{_grouped(self._argument())}"

    def _environment(self) -> str:
        """Rows of a matrix in brackets, in one line; those of other environments as lines of their own."""
        name = self._raw_argument().strip("*")
        if self._depth >= _MAX_DEPTH:
            return ""
        if name in ("array", "tabular") and self._tokens[self._at : self._at + 1] == ["{"]:
            self._raw_argument()
        rows: list[list[str]] = [[""]]
        self._depth += 1
        while self._at < len(self._tokens) and self._tokens[self._at] not in ("\\end", "}"):
            token = self._tokens[self._at]
            if token == "\\\\":
                rows.append([""])
                self._at += 1
            elif token == "&":
                rows[-1].append("")
                self._at += 1
            else:
                rows[-1][-1] += self._next()
        self._depth -= 1
        if self._at < len(self._tokens) and self._tokens[self._at] == "\\end":
            self._at += 1
            self._raw_argument()
        cells = [[cell.strip() for cell in row] for row in rows if any(cell.strip() for cell in row)]
        if name in _BRACKETS or name in ("array", "smallmatrix"):
            brackets = _BRACKETS.get(name, "[]")
            return brackets[0] + "; ".join("  ".join(row) for row in cells) + brackets[1]
        if name == "cases":
            return "{ " + "; ".join(", ".join(cell.rstrip(",") for cell in row) for row in cells) + " }"
        return "\n" + "\n".join(" ".join(row) for row in cells) + "\n"


def _fraction(above: str, below: str) -> str:
    return _HALVES.get((above, below)) or f"{_grouped(above)}/{_grouped(below)}"


def _grouped(text: str) -> str:
    """In brackets where it would else be torn apart."""
    is_one = (
        len(text) <= 1 or text.isalnum() or re.fullmatch(r"√\w|[\w√]?\([^()]*\)|[\w.]+[⁰-⁹₀-₉²³¹ⁿ]*", text)
    )
    return text if is_one else f"({text})"


def _placed(text: str, *, raised: bool) -> str:
    """Raised or lowered, where there are such letters for all of it."""
    letters = _RAISED if raised else _LOWERED
    plain = text.replace("−", "-").replace(" ", "")
    if plain and all(letter in letters for letter in plain):
        return "".join(letters[letter] for letter in plain)
    if raised and text in ("∘", "°"):
        return "°"
    mark = "^" if raised else "_"
    return f"{mark}{text}" if len(text) <= 1 else f"{mark}({text})"
