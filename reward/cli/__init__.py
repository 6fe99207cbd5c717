"""Command-line tools of the reward kit: one module a subcommand, each with ``add_parser`` and ``run``."""
