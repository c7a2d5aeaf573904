"""What a run or a study has found: rows of figures, each of which says where it comes from.

modelled: by a formula. simulated: counted in virtual time, where the code that is studied really ran. measured: read
off a real machine, and so not the same in every run. published: somebody else's, as they gave it, to compare with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["Cell", "Column", "Findings", "Kind", "Table", "percentile"]

Kind = Literal["modelled", "simulated", "measured", "published"]
Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of figures with so many decimals; or of names, or numbers that were given: its kind is None then."""

    name: str
    kind: Kind | None = None
    decimals: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, as many as columns; numbers are rounded to their column's decimals. A cell without one: None.

    title: a sentence that says whose figures these are, where that is not plain. Raises ValueError for a row too short
    or too long.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""

    def __post_init__(self) -> None:
        made = [
            tuple(_rounded(cell, column.decimals) for cell, column in zip(row, self.columns, strict=True))
            for row in self.rows
        ]
        object.__setattr__(self, "rows", tuple(made))

    def records(self) -> list[dict[str, Cell]]:
        """Each row by the names of the columns."""
        return [{column.name: cell for column, cell in zip(self.columns, row, strict=True)} for row in self.rows]

    def kinds(self) -> dict[str, str]:
        """Where each column of figures comes from."""
        return {column.name: column.kind for column in self.columns if column.kind is not None}


@dataclass(frozen=True, slots=True)
class Findings:
    """All that a command under `eaimw sim` prints.

    study: the command's name. seed: what all chance came from. notes: sentences for who reads the table. beside:
    other tables to compare with.
    """

    study: str
    seed: int
    table: Table
    notes: tuple[str, ...] = ()
    beside: tuple[Table, ...] = ()

    def record(self) -> Mapping[str, object]:
        """As `--json` prints it."""
        found: dict[str, object] = {
            "study": self.study,
            "seed": self.seed,
            "rows": self.table.records(),
            "kind": self.table.kinds(),
            "notes": list(self.notes),
        }
        if self.beside:
            found["beside"] = [
                {"title": table.title, "rows": table.records(), "kind": table.kinds()} for table in self.beside
            ]
        return found


def percentile(values: list[float], share: float) -> float | None:
    """The smallest value that this share (above 0, at most 1) of all are not above; None if there are none."""
    if not values:
        return None
    rank = math.ceil(round(share * len(values), 9))  # 0.07 * 100 is a little more than 7 in floating point
    return sorted(values)[rank - 1]


def _rounded(cell: Cell, decimals: int) -> Cell:
    if isinstance(cell, float):
        return round(cell, decimals) if decimals else round(cell)
    return cell
