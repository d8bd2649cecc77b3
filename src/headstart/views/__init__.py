"""How results are seen."""
