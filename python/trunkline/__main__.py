"""`python -m trunkline` is `trunkline`."""

from .cli import main

main()
