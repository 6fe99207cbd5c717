"""Random tables for property tests."""

from hypothesis import strategies as st

from reward.task_scorers.table_tree import Cell, Table

spans = st.sampled_from((1, 1, 1, 2, 3))
cells = st.builds(Cell, st.text("ab1", max_size=4), spans, spans)


def tables(max_rows: int = 4, max_columns: int = 3) -> st.SearchStrategy[Table]:
    """Ragged tables, with empty tables and empty rows among them."""
    rows = st.lists(cells, max_size=max_columns).map(tuple)
    return st.lists(rows, max_size=max_rows).map(lambda rows: Table(tuple(rows)))


@st.composite
def similar_tables(draw: st.DrawFn) -> tuple[Table, Table]:
    """A table and an edited copy: cells and rows dropped, changed, moved across rows."""
    table = draw(tables(4, 4))
    rows = [list(row) for row in table.rows]
    for _ in range(draw(st.integers(0, 4))):
        row = rows[draw(st.integers(0, len(rows) - 1))] if rows else []
        match draw(st.sampled_from(("drop", "change", "insert", "split", "join"))):
            case "drop" if row:
                row.pop(draw(st.integers(0, len(row) - 1)))
            case "change" if row:
                row[draw(st.integers(0, len(row) - 1))] = draw(cells)
            case "insert":
                row.insert(draw(st.integers(0, len(row))), draw(cells))
            case "split" if row:
                at = draw(st.integers(0, len(row)))
                rows.insert(next(i for i, other in enumerate(rows) if other is row) + 1, row[at:])
                del row[at:]
            case "join" if len(rows) > 1:
                rows[0] += rows.pop(1)
    return table, Table(tuple(tuple(row) for row in rows))
