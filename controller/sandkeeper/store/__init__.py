"""The only room with SQL: owner files, the catalogue, their committer, the process lock."""
