"""Conversion to and from other libraries."""
