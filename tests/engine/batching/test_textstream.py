import random

import pytest

from engine.batching.textstream import TextStream


class Letters:
    """A decoder whose tokens are indices into a list of texts."""

    def __init__(self, texts, rest=""):
        self.texts = texts
        self.rest = rest

    def push(self, token_id):
        return self.texts[token_id]

    def flush(self):
        return self.rest


def run(texts, stops, rest=""):
    stream = TextStream(Letters(texts, rest), stops)
    pieces = []
    for index in range(len(texts)):
        pieces.append(stream.push(index))
        if stream.stop is not None:
            break
    return pieces, stream.finish(), stream.stop


def test_without_stops_text_passes_at_once():
    assert run(["a", "", "b"], [], rest="\ufffd") == (["a", "", "b"], "\ufffd", None)


@pytest.mark.parametrize(
    ("texts", "stops", "pieces", "rest", "stop"),
    [
        (["one\n", "\nUser", ":", " x"], ["\n\nUser:"], ["one", "", ""], "", "\n\nUser:"),
        (["ab", "ab", "c"], ["abc"], ["", "ab", ""], "", "abc"),
        (["aa", "ab"], ["aab"], ["", "a"], "", "aab"),
        (["x<", "y"], ["<end>"], ["x", "<y"], "", None),
        (["x", "<en"], ["<end>"], ["x", ""], "<en", None),
        (["hello STOP and more"], ["STOP"], ["hello "], "", "STOP"),
        (["hello STOP and END"], ["END", "STOP"], ["hello "], "", "STOP"),
        (["ab"], ["a", "ab"], [""], "", "ab"),
        (["é", "èz"], ["èz"], ["é", ""], "", "èz"),
    ],
)
def test_stop_strings_are_found_across_tokens_and_never_sent(texts, stops, pieces, rest, stop):
    assert run(texts, stops) == (pieces, rest, stop)


def test_a_stop_string_can_be_completed_by_the_flush():
    assert run(["ab", "c"], ["c\ufffd"], rest="\ufffdd") == (["ab", ""], "", "c\ufffd")


def test_text_held_back_comes_out_at_the_end():
    assert run(["a<", "|"], ["<|end|>"], rest="!") == (["a", ""], "<|!", None)


def test_any_cut_of_a_text_gives_what_the_whole_gives():
    rng = random.Random(7)
    for _ in range(500):
        text = "".join(rng.choices("ab<", k=rng.randrange(1, 30)))
        stops = ["".join(rng.choices("ab<", k=rng.randrange(2, 5))) for _ in range(rng.randrange(1, 3))]
        cuts = sorted(rng.sample(range(len(text) + 1), rng.randrange(0, min(6, len(text)))))
        texts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        pieces, rest, stop = run(texts, stops)
        answer = "".join(pieces) + rest
        assert not any(one in answer for one in stops)
        if stop is None:
            assert answer == text
        else:
            assert text.startswith(answer + stop)
