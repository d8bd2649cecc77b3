"""Named settings."""
