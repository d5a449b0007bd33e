"""Reader of tables of numbers: a row for each time, separated by commas, semicolons, tabs or spaces.

A header may be a comment or a plain first row. Messages number the rows like the lines of an editor.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from statistics import mode

import numpy as np
from numpy.typing import NDArray

from slipway_client.imu.columns import TIME, Columns, Layout, default_columns, header_columns
from slipway_client.imu.recording import Array
from slipway_client.imu.units import TIME_NS
from slipway_serving.protocol.errors import InvalidRequest, raise_all

_COMMENTS = ("#", "%")
_INT64 = np.iinfo(np.int64)
_FAR = 10**20


@dataclass(frozen=True)
class Table:
    """Content of a file of numbers.

    Attributes:
        path: File of the table.
        lines: Line number of each row in the file, from 1.
        rows: Cells of each row, one for each column.
        columns: Places of the columns.
    """

    path: Path
    lines: list[int]
    rows: list[list[str]]
    columns: Columns

    def times_ns(self, stated: str | None) -> tuple[NDArray[np.int64], str]:
        """Return the rows' times in nanoseconds, [rows], and their unit in the file.

        Args:
            stated: Unit that the user stated.

        Raises:
            InvalidRequest: A time is not a number or not a whole number of nanoseconds, or the times do not
                rise.
        """
        unit, problem = self.columns.unit(TIME, stated)
        raise_all(str(self.path), [f"{problem}; try --time-unit"] if problem else [])
        texts = [row[self.columns.time] for row in self.rows]
        # Nanoseconds since 1970 have more digits than a float64.
        try:
            exact = [int(text) * TIME_NS[unit] for text in texts]
        except ValueError:
            exact = [self._fraction(line, text, unit) for line, text in zip(self.lines, texts, strict=True)]
        self._check_range(exact, texts, unit)
        times = np.array(exact, np.int64)
        if len(wrong := np.flatnonzero(np.diff(times) <= 0)):
            at = int(wrong[0]) + 1
            got = "the same time as" if times[at] == times[at - 1] else "a time before"
            lost = "e" in texts[at].lower()
            cause = f"; times such as {texts[at]} have lost digits, try writing them in full" if lost else ""
            raise InvalidRequest(
                f"{self.path}: time must increase from row to row, got {got} that of the row before in row"
                f" {self.lines[at]}, and {len(wrong) - 1} more such rows{cause}"
            )
        return times, unit

    def group(self, name: str, scale: float = 1.0) -> Array:
        """Return the values of a group of columns, [rows, axes], times a factor.

        Raises:
            InvalidRequest: A value is not a number.
        """
        places = self.columns.groups[name]
        try:
            values = np.array([[float(row[place]) for place in places] for row in self.rows])
        except ValueError:
            for line, row in zip(self.lines, self.rows, strict=True):
                for place in places:
                    if not _is_number(row[place]):
                        raise self._number_error(line, place, row[place]) from None
            raise
        return values * scale

    def _fraction(self, line: int, text: str, unit: str) -> int:
        """Return a time that may have a point or an exponent, in whole nanoseconds.

        Raises:
            InvalidRequest: It is not a number, or has a fraction of a nanosecond, so the unit is another.
        """
        try:
            exact = Decimal(text) * TIME_NS[unit]
        except ArithmeticError:
            exact = Decimal("NaN")
        if not exact.is_finite():
            raise self._number_error(line, self.columns.time, text)
        whole = exact.to_integral_value()
        if unit == "ns" and exact != whole:
            raise InvalidRequest(
                f"{self.path}: time must be whole nanoseconds, got {text} in row {line}; try --time-unit s"
            )
        # Larger values are out of range anyway, and may have millions of digits.
        return int(whole) if abs(whole) < _FAR else _FAR

    def _check_range(self, exact: Sequence[int], texts: Sequence[str], unit: str) -> None:
        if _INT64.min <= min(exact) and max(exact) <= _INT64.max:
            return
        at = next(i for i, time in enumerate(exact) if not _INT64.min <= time <= _INT64.max)
        raise InvalidRequest(
            f"{self.path}: time must lie within 292 years of 0, got {texts[at]} {unit} in row"
            f" {self.lines[at]}; try another --time-unit"
        )

    def _number_error(self, line: int, place: int, text: str) -> InvalidRequest:
        return InvalidRequest(
            f"{self.path}: row {line} must contain numbers only, got {text!r} in column {place + 1}"
        )


def read_table(path: Path, layout: Layout) -> Table:
    """Read a file of numbers.

    Args:
        path: File of the table.
        layout: Layout of the file.

    Raises:
        InvalidRequest: The file cannot be read, a row has too few or too many columns, or the columns are
            unknown.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: must be a CSV of numbers, got {error}") from None
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    comments = [line for _, line in numbered if line.lstrip().startswith(_COMMENTS)]
    data_lines = [(number, line) for number, line in numbered if not line.lstrip().startswith(_COMMENTS)]
    separator = next((sign for sign in ";,\t" if data_lines and sign in data_lines[0][1]), None)
    rows = [_cells(line, separator) for _, line in data_lines]
    line_numbers = [number for number, _ in data_lines]
    has_header = bool(rows) and not _is_number(rows[0][0])
    header = rows.pop(0) if has_header else _cells(comments[-1].lstrip(" #%"), separator) if comments else []
    if has_header:
        line_numbers.pop(0)
    if not rows:
        raise InvalidRequest(f"{path}: must have rows of numbers, got none")
    count = len(header) if has_header else mode(map(len, rows))
    if len(header) != count:
        header = []  # the comment is not a header
    columns = _columns(path, layout, header, count, has_header=has_header)
    _check_rows(path, line_numbers, rows, count)
    return Table(path, line_numbers, rows, columns)


def _columns(path: Path, layout: Layout, header: Sequence[str], count: int, *, has_header: bool) -> Columns:
    """Return the places of the columns, from the header or from their number."""
    columns, problems = header_columns(layout, header)
    raise_all(str(path), problems)
    if columns is not None:
        return columns
    if has_header:
        raise InvalidRequest(
            f"{path}: header must name the columns, such as time, gyro_x and acc_x, got {', '.join(header)}"
        )
    if count not in layout.counts:
        raise InvalidRequest(
            f"{path}: must have {' or '.join(map(str, layout.counts))} columns, got {count} columns without a"
            " header that names them"
        )
    return default_columns(layout)


def _check_rows(path: Path, line_numbers: Sequence[int], rows: Sequence[Sequence[str]], count: int) -> None:
    wrong = [(place, len(row)) for place, row in zip(line_numbers, rows, strict=True) if len(row) != count]
    if wrong:
        more = f", and {len(wrong) - 1} more such rows" if len(wrong) > 1 else ""
        raise InvalidRequest(
            f"{path}: row {wrong[0][0]} must have {count} columns like the others, got {wrong[0][1]}{more}"
        )


def _cells(line: str, separator: str | None) -> list[str]:
    """Return a line's cells; unless commas separate them, a comma is read as the decimal point."""
    if separator is None:
        return line.split()
    if separator != ",":
        line = line.replace(",", ".")
    quoted = '"' in line  # csv is slow, and hardly any file of numbers has quotes.
    cells = next(csv.reader([line], delimiter=separator)) if quoted else line.split(separator)
    if len(cells) > 1 and not cells[-1].strip():  # a separator ends the line
        cells.pop()
    return cells


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
