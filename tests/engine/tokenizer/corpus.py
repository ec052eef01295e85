"""Texts that tokenizers get wrong, and a seeded source of more of them."""

from __future__ import annotations

import random

NASTY: tuple[str, ...] = (
    "",
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\n\n\n",
    "\r\n",
    "\r",
    "\r\n\r\n  \r\n",
    "\t\n",
    " \t\n \n\t ",
    "Hello",
    " Hello",
    "  Hello",
    "Hello ",
    "Hello  ",
    "Hello\n",
    "\nHello",
    "Hello world",
    "Hello  world",
    "Hello   world",
    "Hello\tworld",
    "Hello \n world",
    "Hello\n\n\nworld\n",
    "a\u00a0b\u2003c\u3000d\u200be\u2028f\u2029g\u0085h\u1680i",
    " \u00a0 \u3000 ",
    "\u000b\u000c\u001c\u001f\u0001\u007f",
    "null \x00 inside\x00",
    "\x00",
    "I'm, you're, he's, we've, they'll, I'd, don't",
    "I'M YOU'RE HE'S WE'VE THEY'LL I'D DON'T",
    "I'Ll we'Ve 'S 'tis 'Twas ''s '' ' s",
    "it\u2019s don\u2019t rock\u2018n\u2019roll",
    "x'sy 'reading 'veil 'llama 'dont 'most",
    "1 12 123 1234 12345 123456 1234567 12345678",
    "3.14159, -2.5e-10, 1,000,000.00, 0xDEADBEEF, 0b1010, 1_000",
    "\u0661\u0662\u0663 \u0967\u0968\u0969\u096a \uff11\uff12\uff13\uff14",
    "\u2160\u2161\u2162 \u00bd\u00bc \u00b2\u00b3 \u2460\u2461",
    "10km 5\u00b0C a1b2c3 3D 4x4 v2.0.1",
    "camelCase PascalCase snake_case kebab-case SCREAMING_CASE XMLHttpRequest iPhone",
    "HTTPServer2xx\u00c9cole \u00e9COLE \u00c0\u00e9\u00cb",
    "caf\u00e9 cafe\u0301 na\u00efve nai\u0308ve \u00c5 A\u030a",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031e\u0349\u035a\u032f\u031e\u0320\u034dA\u036b\u0357\u0334\u0362\u0335\u031c\u0330\u0354L",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u0661\u0662\u0663",
    "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u202eRTL override\u202c \u200fmark\u200e",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u8fd9\u662f\u4e00\u4e2a\u6d4b\u8bd5\u3002",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3001\u30ab\u30bf\u30ab\u30ca\u3068\u3072\u3089\u304c\u306a\u3002",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4 \u1112\u1161\u11ab",
    "\U00020000\U00020001 \U0002a700 \u9fa6\u9fff",
    "\u039a\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1 \u03ba\u03cc\u03c3\u03bc\u03b5 \u1f18\u03bd \u1fbe\u1ffc",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u041c\u0418\u0420 \u0451\u0401 \u0456\u0407",
    "\u0531\u0532 \u10d0\u10d1\u10d2 \u13a0\u13a1 \u1c90 \U00010400\U00010428 \U0001e900\U0001e922",
    "\U0001d400\U0001d51e\U0001d7d8 \u2102\u210a\u2124\u2126 \u01c5\u01c8 \u02b0\u02b1 \u00aa\u00ba",
    "\U0001f600 \U0001f44d\U0001f3fd \u2764\ufe0f \U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f469\U0001f3fd\u200d\U0001f4bb \U0001f3f3\ufe0f\u200d\U0001f308",
    "1\ufe0f\u20e3 #\ufe0f\u20e3 \u00a9\u00ae\u2122",
    "\u200d\u200d \ufeffbom \ufffd \ufffe \uffff \U0010ffff",
    "\ue000\uf8ff\U000f0000",
    "!@#$%^&*()_+-=[]{}|;':\",./<>?`~",
    "... --- ___ === *** ### !!! ??? <<<>>> ||| &&& ^^^ ~~~ ```",
    " ... --- ?!?! -> => <- == != <= >= && || :: ++ --",
    "$100 \u20ac50 \u00a330 \u00a52000 50% #1 @you C# C++ a+b=c <a|b> x^2 ~5",
    "\u201cquotes\u201d \u2018single\u2019 \u00ab\u00bb \u2014 \u2013 \u2026",
    "\u00bf\u00a1 \u2022 \u2192 \u2211\u222b\u221a",
    "\uff01\uff0f\uff1a\uff5e \u3000\u3001\u3002 \u2018\u2019\u201f",
    "def f(x):\n    if x > 0:\n        return x  # ok\n\n\treturn -x\n",
    'for (int i = 0; i < n; ++i) {\n\t\tstd::cout << a[i] << "\\n";\r\n\t}\r\n',
    '<div class="a">\n  <p>Hi &amp; <s>bye</s></p>\n</div>\n',
    '{"a": [1, 2.5, null], "b": {"c": "\\u00e9\\n"}}',
    "SELECT * FROM t WHERE a='b' -- c\n",
    "https://example.org/a/b?c=d&e=%20#f",
    "a/b//c\\d\\\\e /\n/ ///\r\n//\n",
    "word.\nword!\n\nword?\r\nword/\n",
    "x \n y",
    "x  \n  y",
    "x \n\n y   z    w",
    "trailing spaces   \n   \n",
    "tabs\t\t\tand    spaces \t mixed\t \tend\t",
    "a" * 300,
    "ab" * 200,
    "abc " * 100,
    " " * 100,
    " " * 33 + "x",
    "\n" * 70,
    "\t" * 45 + "x",
    "=" * 129,
    "-" * 63 + "\n",
    "." * 50 + " " + "!" * 50,
    "\u4e00" * 100,
    "\U0001f600" * 30,
    "0" * 50,
    "Donaudampfschifffahrtselektrizit\u00e4tenhauptbetriebswerkbauunterbeamtengesellschaft",
    "pneumonoultramicroscopicsilicovolcanoconiosis",
    "dGhpcyBpcyBiYXNlNjQgZW5jb2RlZCB0ZXh0IHdpdGggbm8gc3BhY2VzIGF0IGFsbA==",
    "\u2581\u2581 \u2581a\u2581b",
    "\u0120\u010a\u0109 \u00c4\u00a0",
    "<0x0A><0x41> <0xFF>",
    "<s> </s> <unk> <pad> <bos> <eos> <mask> [PAD] [INST] [/INST]",
    "</s>",
    "a</s>b </s> c",
    "<|endoftext|>",
    "<|im_start|>system\nYou are<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n",
    "a <|im_end|> b<|im_end|>c <|im_end|>",
    "<|im_end|><|im_end|>  <|im_end|>\n",
    "<|im_end|",
    "<|im_end|>>",
    "<<|im_end|>",
    "<|im_<|im_end|>end|>",
    "<|IM_END|> <| im_end |>",
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    "x<end_of_turn>y <end_of_turn> <start_of_image><end_of_image>",
    "<unused0><unused1> <unused6241><unused9999> <unused",
    "[multimodal] <tool_call>\n{}\n</tool_call> <tool_call>",
    "<repo_name>a<file_sep>b<filename>c<jupyter_start><empty_output>",
    "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>c<|fim_pad|><|repo_name|><|file_sep|>",
    "<|vision_start|><|image_pad|><|vision_end|><|object_ref_start|>",
)

# Code points worth meeting often, beside any other.
_FAVOURITES = (
    " \n\t\r'.,!?-_/\\<>|[](){}0123456789abcxyzABCXYZ"
    "\u00e9\u00df\u4e00\u3042\uac00\u0301\u200d\ufe0f\u00a0\u2581"
)
_WORDS = (
    *("the", "Hello", "'s", "'LL", "don't", "return", "<|im_end|>", "<end_of_turn>", "</s>", "<s>"),
    *(
        "\U0001f600",
        "  ",
        "\n\n",
        " 12345",
        " \u00c9cole",
        "user@example.org",
        "\u3053\u3093\u306b\u3061\u306f",
    ),
)

# Blocks whose letters and numbers have been settled since long before Unicode 14: libraries differ in the newest
# code points by which Unicode they were built for. Planes of private use and unassigned ones are among them.
_BLOCKS = (
    *((0x00, 0x52F), (0x591, 0x6FF), (0x900, 0xBFF), (0xE00, 0xEFF), (0x1000, 0x11FF), (0x1E00, 0x24FF)),
    *((0x2500, 0x2BFF), (0x3000, 0x31FF), (0x3400, 0x9FFF), (0xA000, 0xA4CF), (0xAC00, 0xD7A3)),
    *((0xE000, 0xFFFF), (0x10000, 0x100FA), (0x10400, 0x104FB), (0x12000, 0x12399), (0x1D000, 0x1D7FF)),
    *((0x1F000, 0x1FBFF), (0x20000, 0x2A6DF), (0x40000, 0x4FFFF), (0xE0000, 0x10FFFF)),
)


def random_texts(seed: int, count: int) -> list[str]:
    """Texts of up to about 60 parts: words, favourites, and code points from all over Unicode but surrogates."""
    rng = random.Random(seed)
    return [_random_text(rng) for _ in range(count)]


def _random_text(rng: random.Random) -> str:
    parts = []
    for _ in range(rng.randint(1, 60)):
        kind = rng.random()
        if kind < 0.45:
            parts.append(rng.choice(_FAVOURITES) * rng.choice((1, 1, 1, 2, 3, 9)))
        elif kind < 0.7:
            parts.append(rng.choice(_WORDS))
        else:
            parts.append(chr(rng.randint(*rng.choice(_BLOCKS))))
    return "".join(parts)
