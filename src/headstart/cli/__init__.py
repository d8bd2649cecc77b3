"""The command line: thin doors."""
