"""The HTTP server of `headstart serve`: FastAPI routes over batched models, with a playground page."""
