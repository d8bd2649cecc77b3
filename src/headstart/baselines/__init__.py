"""What a neural model has to beat."""
