"""Writes the list of GGUF metadata keys that llama.cpp publishes for architectures.

The list comes from the installed `gguf`, llama.cpp's own package. Names lack the architecture:
`attention.head_count` stands for `llama.attention.head_count`.

    python xtask/peers/gguf_keys.py            # write the file
    python xtask/peers/gguf_keys.py --check    # compare the file; exit code 1 if it differs
"""

import argparse
import importlib.metadata
import inspect
import pathlib
import sys

from gguf.constants import Keys

TARGET = pathlib.Path(__file__).parents[2] / "crates/tercet-networks/src/config/gguf_keys.txt"
PREFIX = "{arch}."


def names(group):
    """All key templates of a group and its nested groups."""
    for name, value in vars(group).items():
        if isinstance(value, str) and not name.startswith("_"):
            yield value
        elif inspect.isclass(value):
            yield from names(value)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare the committed file instead of writing it")
    options = parser.parse_args()
    keys = {name.removeprefix(PREFIX) for name in names(Keys) if name.startswith(PREFIX)}
    version = f"# gguf {importlib.metadata.version('gguf')}"
    # Leave out names with `{`: they are templates of tensor names, not metadata keys.
    text = "\n".join([version, *sorted(key for key in keys if "{" not in key)]) + "\n"
    if not options.check:
        TARGET.write_text(text)
        return
    committed = TARGET.read_text()
    if committed.splitlines()[0] != version:
        sys.exit(f"{TARGET.name} is of {committed.splitlines()[0][2:]}; installed: {version[2:]}")
    if committed != text:
        sys.exit(f"{TARGET.name} differs; run this script without --check")


if __name__ == "__main__":
    main()
