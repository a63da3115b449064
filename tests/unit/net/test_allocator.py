"""Memory is given back once, when the traffic stands still."""

import platform

import pytest

from penstock.net.allocator import Allocator


class Counting(Allocator):
    """Counts what it would ask of glibc, which cannot be asked what it did."""

    def __init__(self):
        super().__init__()
        self.trims = 0
        self._trim = self._count

    def _count(self, padding):
        self.trims += 1
        return 0


def test_nothing_is_given_back_before_there_was_traffic():
    allocator = Counting()

    allocator.give_back_if_quiet(0)

    assert 0 == allocator.trims


def test_memory_goes_back_once_the_traffic_stands_still_and_only_once():
    allocator = Counting()

    for traffic in (5, 9, 9, 9):
        allocator.give_back_if_quiet(traffic)

    assert 1 == allocator.trims


def test_new_traffic_makes_the_next_silence_count_again():
    allocator = Counting()

    for traffic in (5, 5, 6, 6):
        allocator.give_back_if_quiet(traffic)

    assert 2 == allocator.trims


class Answered(Allocator):
    """Keeps what glibc answers: 1 for a setting that it takes."""

    def __init__(self):
        super().__init__()
        self.answers = []
        tune = self._tune
        self._tune = lambda *setting: self.answers.append(tune(*setting))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="there is another libc here")
def test_glibc_takes_the_settings():
    allocator = Answered()

    allocator.keep_freed()

    assert [1, 1] == allocator.answers
