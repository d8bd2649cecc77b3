"""python -m headstart."""

from headstart.cli.app import main

main()
