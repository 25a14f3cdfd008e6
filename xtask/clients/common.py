"""Shared by the scripts of the clients: the address of the server, the cases, and the report."""
import asyncio
import inspect
import os
import sys
import traceback

URL = os.environ["TERCET_URL"] + "/v1"
KEY = "none"
# The server has one model, so every name selects it.
MODEL = "gpt-4o-mini"
QUESTION = "What is a trait?"


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def report(package, **cases):
    """Runs the cases and prints a line for each: its name, and `ok` or the error."""
    from importlib.metadata import version

    print(f"version\t{version(package)}")
    for name, case in cases.items():
        try:
            result = case()
            if inspect.isawaitable(result):
                result = asyncio.run(result)
            print(f"{name}\tok", flush=True)
        except Exception as e:
            traceback.print_exc(file=sys.stderr)
            line = " ".join(str(e).split())[:300]
            print(f"{name}\t{type(e).__name__}: {line}", flush=True)


def check(truth, what):
    if not truth:
        raise AssertionError(what)
