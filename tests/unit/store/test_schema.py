from __future__ import annotations

import pytest
from sqlalchemy import Table

from sandkeeper.store.schema import CATALOGUE_TABLES, OWNER_TABLES

TABLES = [*OWNER_TABLES.sorted_tables, *CATALOGUE_TABLES.sorted_tables]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_table_names_tenant_and_machine(table: Table) -> None:
    for column in ("tenant_id", "machine_id"):
        assert not table.columns[column].nullable
