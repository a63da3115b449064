"""What imported subjects are called on both sides."""

from __future__ import annotations

import pytest

from penstock.config.accounts import Account, Export, Import
from penstock.config.sharing import Relation, check_import, intersection
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("a.b", "a.b", "a.b"),
        ("a.*", "*.b", "a.b"),
        ("a.>", "a.b.c", "a.b.c"),
        ("a.b.c", ">", "a.b.c"),
        (">", "a.*.>", "a.*.>"),
        ("a.>", "*.*", "a.*"),
        ("a.>", "a", None),
        ("a", "a.>", None),
        ("a.b", "a.c", None),
        ("a.b", "a.b.c", None),
    ],
)
def test_what_two_patterns_have_in_common(one: str, other: str, expected: str | None) -> None:
    common = intersection(one.encode(), other.encode())

    assert expected == (None if common is None else common.decode())


@pytest.mark.parametrize(
    ("foreign", "local", "there", "here"),
    [
        ("a.b", "a.b", "a.b", "a.b"),
        ("a.>", "x.a.>", "a.b.c", "x.a.b.c"),
        ("a.*.*", "x.*.*", "a.1.2", "x.1.2"),
        ("a.*.*", "x.$2.y.$1", "a.1.2", "x.2.y.1"),
        ("a.*.>", "{{wildcard(1)}}.a.>", "a.1.2.3", "1.a.2.3"),
    ],
)
def test_subjects_are_carried_over_both_ways(
    foreign: str, local: str, there: str, here: str
) -> None:
    relation = Relation(foreign, local)

    assert here.encode() == relation.to_local(there.encode())
    assert there.encode() == relation.to_foreign(here.encode())


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("x.1.*", "a.*.1"), ("x.>", "a.*.*"), (">", "a.*.*"), ("*.1.2", "a.2.1"), ("y.>", None)],
)
def test_patterns_are_carried_over_as_far_as_they_match(pattern: str, expected: str | None) -> None:
    found = Relation("a.*.*", "x.$2.$1").foreign_pattern(pattern.encode())

    assert expected == (None if found is None else found.decode())


@pytest.mark.parametrize(("foreign", "local"), [("a.*", "x"), ("a", "x.>"), ("a.*", "x.$2")])
def test_both_sides_have_the_same_wildcards(foreign: str, local: str) -> None:
    with pytest.raises(ConfigError, match="same wildcards"):
        Relation(foreign, local)


def taking(account: str, subject: str) -> Import:
    return Import(kind="service", account=account, subject=subject)


def accounts(*given: Account) -> dict[str, Account]:
    return {account.name: account for account in given}


def test_an_import_needs_an_account_that_exports_it() -> None:
    private = Export(kind="service", subject="q.>", accounts=("C",))
    known = accounts(Account(name="A", exports=(private,)), Account(name="B"), Account(name="C"))

    check_import("C", taking("A", "q.x"), known)
    with pytest.raises(ConfigError, match=r'exports no service "q\.x" to "B"'):
        check_import("B", taking("A", "q.x"), known)
    with pytest.raises(ConfigError, match='names an unknown account "D"'):
        check_import("B", taking("D", "q.x"), known)
    with pytest.raises(ConfigError, match='exports no service "q" to "C"'):
        check_import("C", taking("A", "q"), known)


def test_an_export_may_be_for_the_account_that_its_subject_names() -> None:
    export = Export(kind="service", subject="q.*.x", account_token=2)

    assert export.allows("B", taking("A", "q.B.x"))
    assert not export.allows("B", taking("A", "q.C.x"))
    assert not export.allows("B", taking("A", "q.*.x"))


def test_imports_do_not_lead_round_in_a_circle() -> None:
    everything = (Export(kind="service", subject=">"),)
    known = accounts(
        Account(name="A", exports=everything, imports=(taking("B", "q"),)),
        Account(name="B", exports=everything, imports=(taking("A", "q"),)),
    )

    with pytest.raises(ConfigError, match="leads back to itself: A > B > A"):
        check_import("A", taking("B", "q"), known)


def test_an_import_of_the_exporter_that_leads_nowhere_is_not_held_against_its_importers() -> None:
    exporter = Account(
        name="B",
        exports=(Export(kind="service", subject="q"),),
        imports=(taking("GONE", "q"),),
    )

    check_import("A", taking("B", "q"), accounts(Account(name="A"), exporter))
