"""What `eaimw sim` prints: figures to the right, where each comes from, and the same as JSON."""

from __future__ import annotations

import json

import pytest

from eaimw.cli.sim.printing import origin, show, table_lines
from eaimw.sim.findings import Column, Findings, Table, percentile

TABLE = Table(
    (Column("name"), Column("model", "modelled", 1), Column("calls", "simulated")),
    (("one", 1234.56, 3), ("another", None, 12_345)),
)


def test_figures_stand_right_and_say_where_they_come_from() -> None:
    """Names stand left; numbers have their column's decimals; a cell without a figure is a dash."""
    assert table_lines(TABLE) == [
        "name       model   calls",
        "one      1,234.6       3",
        "another        -  12,345",
        "modelled: model; simulated: calls",
    ]


def test_figures_of_one_kind_are_told_at_once() -> None:
    """One sentence will do."""
    assert origin(Table((Column("name"), Column("a", "measured"), Column("b", "measured")), ())) == (
        "measured: all figures"
    )


def test_json_has_the_printed_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """Rounded as they are printed, by the names of the columns, each kind by its column."""
    show(Findings("example", 7, TABLE, ("A note.",), (Table(TABLE.columns[:1], (("x",),), "Another."),)), as_json=True)
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert json.loads(printed) == {
        "study": "example",
        "seed": 7,
        "rows": [
            {"name": "one", "model": 1234.6, "calls": 3},
            {"name": "another", "model": None, "calls": 12_345},
        ],
        "kind": {"model": "modelled", "calls": "simulated"},
        "notes": ["A note."],
        "beside": [{"title": "Another.", "rows": [{"name": "x"}], "kind": {}}],
    }


def test_a_row_has_a_cell_for_each_column() -> None:
    """One too few is a fault of who made the table."""
    with pytest.raises(ValueError, match="zip"):
        Table(TABLE.columns, (("one", 1.0),))


@pytest.mark.parametrize(
    ("count", "share", "expected"), [(0, 0.5, None), (1, 0.5, 1.0), (100, 0.07, 7.0), (100, 0.99, 99.0), (3, 1.0, 3.0)]
)
def test_a_percentile_is_one_of_the_values(count: int, share: float, expected: float | None) -> None:
    """The nearest rank, without interpolation."""
    assert percentile([float(n) for n in range(count, 0, -1)], share) == expected
