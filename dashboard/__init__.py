"""Views over the store reader and the statistics. Reads, never writes."""
