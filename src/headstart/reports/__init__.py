"""HTML pages, model cards and terminal tables."""
