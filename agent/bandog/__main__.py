"""`python -m bandog` is the same as `bandog`."""

from .cli import main

main()
