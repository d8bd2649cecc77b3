"""Runs behind HTTP: bounds, batching, endpoints and the server; `headstart serve` opens it."""
