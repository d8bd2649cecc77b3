"""How text comes out."""
