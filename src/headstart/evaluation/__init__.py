"""Measurements of trained models."""
