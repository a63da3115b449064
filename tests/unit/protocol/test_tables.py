"""Tables for people."""

from __future__ import annotations

from penstock.protocol.tables import details, markdown, printable, render


def test_columns_line_up_and_numbers_stand_on_the_right() -> None:
    table = render(("NAME", "MESSAGES", "STORAGE"), [("a", "1", "file"), ("bcdef", "1,000", "m")])

    assert table == (
        "NAME   MESSAGES  STORAGE\n"
        "a             1  file\n"
        "bcdef     1,000  m"
    )  # fmt: skip


def test_the_first_columns_stay_on_the_left_whatever_they_hold() -> None:
    assert render(("NAME", "SUBJECT"), [("1", "2")], left=2) == "NAME  SUBJECT\n1     2"


def test_a_table_without_rows_is_its_header() -> None:
    assert render(("A", "B"), []) == "A  B"


def test_wide_characters_take_two_columns_and_accents_none() -> None:
    assert (
        render(("A", "B"), [("日本", "x"), ("e\u0301", "y")]) == "A     B\n日本  x\ne\u0301     y"
    )


def test_markdown_says_in_its_rule_which_columns_hold_numbers() -> None:
    assert markdown(("name", "n"), [("a", "1"), ("long name", "1000")]) == (
        "| name      |    n |\n"
        "| --------- | ---: |\n"
        "| a         |    1 |\n"
        "| long name | 1000 |"
    )  # fmt: skip


def test_a_short_row_ends_in_empty_cells() -> None:
    assert markdown(("a", "b"), [("1",)], left=2) == "| a   | b   |\n| --- | --- |\n| 1   |     |"


def test_details_are_names_and_values() -> None:
    assert details([("a", "1"), ("long", ""), ("b", "2")]) == "  a     1\n  long\n  b     2"
    assert details([]) == ""


def test_what_would_move_the_cursor_is_spelt_out() -> None:
    assert printable("a\x1b[2Jb\n\tc\x07 é 日") == "a\\x1b[2Jb\\n\\tc\\x07 é 日"
    assert "\x1b" not in render(("A",), [("\x1b[31m",)])
