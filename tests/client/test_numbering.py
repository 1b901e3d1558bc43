from cachecd_client.numbering import Numbering


def test_a_number_is_left_to_one_iterator_more_unless_it_was_finished():
    numbering = Numbering()
    assert [numbering.begin(0) for _ in range(5)] == [(0, 0), (0, 1), (1, 2), (1, 3), (2, 4)]
    numbering.reached(3)
    numbering.reached(4)
    numbering.finished(4)
    assert numbering.begin(0) == (5, 5)


def test_a_resumed_run_begins_where_it_is_told_and_never_before_what_was_reached():
    numbering = Numbering()
    assert numbering.begin(7) == (7, 0)
    numbering.reached(8)
    assert numbering.begin(7) == (8, 1)
    assert numbering.begin(20) == (20, 2)


def test_an_iterator_that_lags_behind_changes_nothing():
    numbering = Numbering()
    numbering.begin(5)
    numbering.reached(3)
    numbering.finished(3)
    assert numbering.begin(0) == (5, 1)
