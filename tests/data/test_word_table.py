import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.data.word_table import LONGEST, ROOM, WordTable, make_keys

words = st.tuples(st.integers(0, 2), st.binary(min_size=1, max_size=LONGEST))
calls = st.lists(st.lists(words, max_size=40), max_size=5)


def keys_of(some):
    sizes = np.array([len(word) for _, word in some], np.int64)
    text = b"".join(word for _, word in some) + b"~" * ROOM
    return make_keys(text, np.cumsum(sizes) - sizes, sizes, np.array([mark for mark, _ in some], np.uint8))


@settings(deadline=None)
@given(calls, st.integers(1, 10))
def test_the_table_numbers_words_as_a_dict_does(asked, bits):
    table, known = WordTable(), {}
    table._clear(bits)  # a small one has to grow
    for some in asked:
        before = len(known)
        found, fresh = table.find(*keys_of(some), before)
        for number, place in enumerate(fresh.tolist(), start=before):
            assert known.setdefault(some[place], number) == number
        assert [known[word] for word in some] == found.tolist()
        assert table.count == len(known) <= len(table.keys) / 2


def test_keys_that_all_lead_to_one_slot_are_still_told_apart():
    table = WordTable()
    table.factors = [np.uint64(0), np.uint64(0)]
    some = [(mark, bytes([letter])) for mark in range(3) for letter in range(200)]
    found, fresh = table.find(*keys_of(some), 7)
    assert sorted(found.tolist()) == list(range(7, 607))
    again, none = table.find(*keys_of(some), 10**6)
    assert (again.tolist(), len(none)) == (found.tolist(), 0)
    assert [found[place] for place in fresh] == list(range(7, 607))
