"""Tensors in, tensors out."""
