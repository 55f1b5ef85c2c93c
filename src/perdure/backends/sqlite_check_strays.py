"""What no session of a store would find: rows that belong to nothing, and a schema that is not perdure's."""

# pyright: reportUnknownMemberType=false
# (apsw's stubs name a type that Python has from 3.12 on)

from __future__ import annotations

from collections.abc import Iterator

import apsw

from perdure.backends.sqlite_schema import migrations

#: The session of a row by its number, what the row names, and where that is not there.
#: Ids of records are session * 2^40 + number.
_STRAYS = (
    *(
        (table, "id >> 40", "session", "id >> 40 NOT IN (SELECT id FROM session)")
        for table in ("commit", "task", "submission", "document")
    ),
    ("conversation", "session", "session", "session NOT IN (SELECT id FROM session)"),
    ("inbound", "session", "session", "session NOT IN (SELECT id FROM session)"),
    ("entry", "id >> 40", "conversation", "conversation NOT IN (SELECT id FROM conversation)"),
    ("base", "document >> 40", "document", "document NOT IN (SELECT id FROM document)"),
    ("delta", "document >> 40", "document", "document NOT IN (SELECT id FROM document)"),
)


def strays(connection: apsw.Connection) -> Iterator[tuple[int, str]]:
    """Rows whose session, conversation or document is not there, each with the number of its session."""
    for table, session, whole, where in _STRAYS:
        sql = f'SELECT {session}, count(*), min(rowid) FROM "{table}" WHERE {where} GROUP BY 1'
        for number, count, first in connection.execute(sql):
            yield number, f"{count} rows of table {table} are of a {whole} that is not there (the first is row {first})"


def schema_differences(connection: apsw.Connection, version: int) -> Iterator[tuple[str, str]]:
    """Tables, indexes and triggers that the store should have, each with what is wrong: rules are kept no more."""
    model = apsw.Connection(":memory:")
    try:
        for number, script in sorted(migrations().items()):
            if number <= version:
                model.execute(script)
        wanted, found = _schema(model), _schema(connection)
    finally:
        model.close()
    for (kind, name), sql in wanted.items():
        if (kind, name) not in found:
            yield kind, f"its {kind} {name} is not there"
        elif found[kind, name] != sql:
            yield kind, f"its {kind} {name} is not as perdure made it"
    for kind, name in found.keys() - wanted.keys():
        if kind == "trigger":
            yield kind, f"it has a trigger {name}, which is not perdure's"


def _schema(connection: apsw.Connection) -> dict[tuple[str, str], str]:
    rows = connection.execute("SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'")
    return {(kind, name): sql for kind, name, sql in rows}
