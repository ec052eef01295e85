import pytest

from engine.batching.feed import Feed


def items(feed, number, at_most=100):
    news = feed.after(number, at_most=at_most)
    return news and [(numbered.number, numbered.item) for numbered in news]


def test_each_reader_has_his_own_place():
    feed = Feed()
    assert feed.last == 0 and feed.after(0, at_most=9) == []
    for item in "abc":
        feed.say(item)
    assert items(feed, 0) == [(1, "a"), (2, "b"), (3, "c")]
    assert items(feed, 2) == [(3, "c")]
    assert items(feed, 0, at_most=2) == [(1, "a"), (2, "b")]
    assert items(feed, 3) == []


def test_only_the_last_are_kept_and_a_gap_is_told():
    feed = Feed(keep=3)
    for item in range(10):
        feed.say(item)
    assert items(feed, 7) == [(8, 7), (9, 8), (10, 9)]
    assert feed.after(6, at_most=9) is None
    assert feed.after(0, at_most=9) is None


@pytest.mark.parametrize("number", [-1, 11, 10**12])
def test_a_place_that_never_was_is_a_gap(number):
    feed = Feed()
    for item in range(10):
        feed.say(item)
    assert feed.after(number, at_most=9) is None


def test_who_reads_is_woken_after_the_news_can_be_read():
    feed = Feed()
    seen = []
    feed.on_news(lambda: seen.append(feed.last))
    feed.say("a")
    feed.say("b")
    feed.on_news(None)
    feed.say("c")
    assert seen == [1, 2]
