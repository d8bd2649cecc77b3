"""How a model leaves, and comes in."""
