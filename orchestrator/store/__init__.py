"""The store: one Parquet file per committed chunk, written once, read through an in-memory DuckDB."""
