"""The reward kit without a trainer.

python -m reward score IN.jsonl --out OUT.jsonl      score answers
python -m reward explain --task spotting ...         see why a score is what it is
python -m reward audit DATA.parquet                  score every reference of a dataset against itself
python -m reward judge-check                         try the judge servers
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys

_SUBCOMMANDS = {
    "score": "reward.cli.score",
    "explain": "reward.cli.explain",
    "audit": "reward.cli.audit",
    "judge-check": "reward.utils.judge_check",
}


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand and return its exit code: 0 fine, 1 done but something needs attention, 2 could not run."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(
        prog="python -m reward", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    modules = {command: importlib.import_module(module) for command, module in _SUBCOMMANDS.items()}
    for module in modules.values():
        module.add_parser(subparsers)
    options = parser.parse_args(arguments)
    return modules[options.command].run(options)


if __name__ == "__main__":
    sys.exit(main())
