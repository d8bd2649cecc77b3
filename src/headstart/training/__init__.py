"""How weights change."""
