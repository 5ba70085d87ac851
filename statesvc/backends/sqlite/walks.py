"""Queries as SELECTs: one index each, walked from a place on.

Owns the SQL of queries. Must not know connections. Column names come from here, never from outside.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ..port import Query

_TERM_COLUMNS = {"status": "status", "node": "node", "owner": "owner"}


def statement(query: Query) -> tuple[str, list[Any]]:
    """The SELECT for a query, and its values."""
    if query.term is None:
        return _plain_walk(query, "data, checksum")
    if len(query.term) == 2:
        return _label_walk(query) if _is_label(query) else _plain_walk(query, "data, checksum")
    return _walks_of_values(query)


def _is_label(query: Query) -> bool:
    return query.term is not None and query.term[0].startswith("label:")


def _plain_walk(query: Query, columns: str) -> tuple[str, list[Any]]:
    where, values = ["kind = ?"], [query.kind]
    if query.sort != "deleted":
        where.append("deleted IS NULL")
    if query.term is not None:
        column, value = query.term
        where.append(f"{_TERM_COLUMNS[column]} = ?" if value else f"{_TERM_COLUMNS[column]} IS NULL")
        values += [value] if value else []
    _narrow(query, query.sort, where, values)
    direction = _direction(query)
    order = f"id {direction}" if query.missing or query.sort == "id" else f"{query.sort} {direction}, id {direction}"
    sql = f"SELECT {columns} FROM record WHERE {' AND '.join(where)} ORDER BY {order} LIMIT ?"  # noqa: S608
    return sql, [*values, query.limit]


def _label_walk(query: Query) -> tuple[str, list[Any]]:
    places, values = _label_places(query)
    direction = _direction(query)
    sql = f"""
        SELECT data, checksum FROM ({places}) AS found CROSS JOIN record USING (kind, id)
        ORDER BY found.created {direction}, found.id {direction}
    """  # noqa: S608
    return sql, values


def _label_places(query: Query) -> tuple[str, list[Any]]:
    assert query.term is not None  # noqa: S101 - the caller looked
    field, value = query.term
    where, values = ["kind = ?", "name = ?", "value = ?"], [query.kind, field.removeprefix("label:"), value]
    _narrow(query, "created", where, values)
    direction = _direction(query)
    sql = f"""
        SELECT kind, id, created FROM label WHERE {" AND ".join(where)}
        ORDER BY created {direction}, id {direction} LIMIT ?
    """  # noqa: S608
    return sql, [*values, query.limit]


def _walks_of_values(query: Query) -> tuple[str, list[Any]]:
    """A walk for each value, merged by SQLite in one statement: one moment, whatever moves between the values, and once
    whatever has several of them."""
    assert query.term is not None  # noqa: S101 - the caller looked
    field, *terms = query.term
    if not terms:
        return "SELECT data, checksum FROM record WHERE false", []
    walks, values = [], []
    for term in terms:
        one = replace(query, term=(field, term))
        sql, more = _label_places(one) if _is_label(query) else _plain_walk(one, "created, id")
        walks.append(f"SELECT created, id FROM ({sql})")  # noqa: S608
        values += more
    direction = _direction(query)
    sql = f"""
        SELECT data, checksum FROM (
            {" UNION ".join(walks)} ORDER BY created {direction}, id {direction} LIMIT ?
        ) AS found CROSS JOIN record ON record.kind = ? AND record.id = found.id
        ORDER BY found.created {direction}, found.id {direction}
    """  # noqa: S608
    return sql, [*values, query.limit, query.kind]


def _direction(query: Query) -> str:
    return "DESC" if query.descending else "ASC"


def _narrow(query: Query, column: str, where: list[str], values: list[Any]) -> None:
    beyond = "<" if query.descending else ">"
    if query.missing:
        where.append(f"{column} IS NULL")
    elif column != "id":
        where.append(f"{column} IS NOT NULL")
    for bound, operator in ((query.low, ">="), (query.high, "<")):
        if bound is not None:
            where.append(f"{column} {operator} ?")
            values.append(bound)
    if query.after is not None:
        if query.missing or column == "id":
            where.append(f"id {beyond} ?")
            values.append(query.after.id)
        else:
            where.append(f"({column}, id) {beyond} (?, ?)")
            values += [query.after.key, query.after.id]
