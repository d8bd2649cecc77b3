"""Whole jobs, start to end."""
