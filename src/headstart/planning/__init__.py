"""What a run will need, before it starts."""
