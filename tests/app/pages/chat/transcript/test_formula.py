"""Formulas as text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.pages.chat.transcript.formula import readable


@pytest.mark.parametrize(
    ("tex", "text"),
    [
        (r"\alpha\beta\Gamma\Omega", "αβΓΩ"),
        ("x_1^2+y_{12}^{-3}", "x₁² + y₁₂⁻³"),
        (r"\frac{a+b}{2}", "(a + b)/2"),
        (r"\frac12", "½"),
        (r"\frac{1}{2}x", "½x"),
        (r"\frac{P(B|A)}{P(B)}", "P(B|A)/P(B)"),
        (r"\sqrt{x+1}", "√(x + 1)"),
        (r"\sqrt[3]{x}", "³√x"),
        (r"e^{i\pi}+1=0", "e^(iπ) + 1 = 0"),
        (r"\sum_{i=1}^{n} x_i", "∑ᵢ₌₁ⁿ xᵢ"),
        (r"a\le b\neq c\approx d", "a ≤ b ≠ c ≈ d"),
        (r"x \in \mathbb{R}^n", "x ∈ ℝⁿ"),
        (r"O(n\log n)", "O(n log n)"),
        (r"\sin(x)", "sin(x)"),
        (r"\text{if } x>0", "if x > 0"),
        (r"\left(\frac{1}{2}\right)^{n}", "(½)ⁿ"),
        (r"\begin{pmatrix}a&b\\c&d\end{pmatrix}", "(a b; c d)"),
        (r"\begin{aligned}a&=b\\&=c\end{aligned}", "a = b\n= c"),
        (r"f=\begin{cases}1 & x>0\\0&\text{else}\end{cases}", "f = { 1, x > 0; 0, else }"),
        (r"90^\circ", "90°"),
        (r"\hat{x}\vec v", "x̂v⃗"),
        (r"f'(x)", "f′(x)"),
        (r"\|v\|", "‖v‖"),
        (r"\{a, b\}", "{a, b}"),
        (r"\unknown{a}", "unknown a"),
        (r"a\,b\;c", "a b c"),
        ("a % b", "a % b"),
        ("}{", ""),
        ("\\", ""),
        (r"\frac{", "/"),
        (r"\end{x}", ""),
        (r"\begin{matrix}", "[]"),
    ],
)
def test_formulas_can_be_read(tex: str, text: str) -> None:
    assert readable(tex) == text


_PARTS = [
    "\\frac",
    "\\sqrt",
    "[",
    "]",
    "{",
    "}",
    "^",
    "_",
    "&",
    "\\\\",
    "\\begin{cases}",
    "\\end{cases}",
    "\\left(",
]
_PARTS += ["\\right.", "\\text", "a", "1", "\\alpha", "\\hat", "'", "~", " "]


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(max_size=100),
        st.lists(
            st.sampled_from(_PARTS),
            max_size=60,
        ).map("".join),
    )
)
def test_whatever_comes_is_text(tex: str) -> None:
    assert isinstance(readable(tex), str)


@pytest.mark.parametrize(
    "part", ["{", "}", r"\frac", "^", "_{", r"\begin{cases}", r"\sqrt[", r"\left", r"\hat{"]
)
def test_deep_formulas_end(part: str) -> None:
    assert isinstance(readable(part * 5000), str)
