"""The command line of every benchmark: what --help prints is the script's own docstring. It knows no benchmark."""

from __future__ import annotations

import argparse


def command_line(page: str | None) -> argparse.ArgumentParser:
    """Return a parser, so far without options, whose help is the page as it is written."""
    return argparse.ArgumentParser(description=page, formatter_class=argparse.RawDescriptionHelpFormatter)
