"""How a BPE text is cut into words before merging, by the name in `tokenizer.ggml.pre`.

A name stands for a list of patterns, each applied to the pieces the one before left, and for what the file's own
flags do not tell. Nothing here knows of vocabularies.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from engine.errors import UnsupportedModel

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"


def _words(*, digits: str, letters: str = r"\p{L}", marks: str = "") -> str:
    """The form that Llama 3 and Qwen share: contractions, words with one leading sign, numbers, signs, spaces."""
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}"
        rf"| ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*|{_SPACES}"
    )


def _cased_words(*, digits: str, suffix: str) -> str:
    """The form that GPT-4o and Mistral's tekken share: a word ends where upper case follows lower case."""
    upper = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
    lower = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


@dataclass(frozen=True, kw_only=True)
class PreTokenizer:
    """`whole_words`: a word that is itself a token is taken without merging. `add_bos`: unless the file says."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns
        ]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(steps)


_LLAMA3 = PreTokenizer(patterns=(_words(digits=r"\p{N}{1,3}"),), whole_words=True, add_bos=True)
_QWEN2 = PreTokenizer(patterns=(_words(digits=_DIGIT),))
_QWEN35 = PreTokenizer(patterns=(_words(digits=_DIGIT, letters=r"[\p{L}\p{M}]", marks=r"\p{M}"),))
_PLAIN_GPT2 = PreTokenizer(patterns=(_GPT2,))
_DIGITS_GPT2 = PreTokenizer(patterns=(_DIGIT, _GPT2))
_TEKKEN = PreTokenizer(patterns=(_cased_words(digits=_DIGIT, suffix=""),), whole_words=True, add_bos=True)
_GPT4O = PreTokenizer(patterns=(_cased_words(digits=r"\p{N}{1,3}", suffix=f"{_CONTRACTIONS}?"),))
_DEFAULT = PreTokenizer(patterns=(r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))
_FALCON = PreTokenizer(patterns=(r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]"))

# The cased letters that DeepSeek's first tokenizers list; other scripts fall to the patterns after it.
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"
    "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
_DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_SIGNS = r"!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"

# Written so that a long run of spaces before a word costs no backtracking from each of its places.
_SPACES_AT_END = r"(?<!\s)\s++\z"

_DEEPSEEK_LLM = PreTokenizer(
    patterns=(
        r"[\r\n]",
        rf"\s?[{_DEEPSEEK_LETTERS}]+",
        rf"\s?[{_DEEPSEEK_SIGNS}]+",
        _SPACES_AT_END,
        _DEEPSEEK_CJK,
        r"\p{N}+",
    )
)
_DEEPSEEK_CODER = PreTokenizer(patterns=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, _DIGIT))
_DEEPSEEK3 = PreTokenizer(
    patterns=(
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
    )
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _DEFAULT,
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2", "midm-2.0"), _LLAMA3
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe"), PreTokenizer(patterns=_LLAMA3.patterns)),
    **dict.fromkeys(("glm4", "chatglm-bpe"), PreTokenizer(patterns=_LLAMA3.patterns)),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "megrez", "hunyuan", "stablelm2", "solar-open", "grok-2"), _QWEN2
    ),
    "qwen35": _QWEN35,
    **dict.fromkeys(
        ("gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "exaone4", "trillion"), _PLAIN_GPT2
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
        _DIGITS_GPT2,
    ),
    **dict.fromkeys(("tekken",), _TEKKEN),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), _GPT4O),
    "falcon": _FALCON,
    "deepseek-llm": _DEEPSEEK_LLM,
    "deepseek-coder": _DEEPSEEK_CODER,
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """The rules called `name`; UnsupportedModel for a name that is not known."""
    known = PRE_TOKENIZERS.get(name)
    if known is None:
        raise UnsupportedModel(
            f"the model's tokenizer splits words by the rules of {name!r}; Baton knows: {', '.join(PRE_TOKENIZERS)}"
        )
    return known
