"""The committed lists of configuration keys are those of the pinned packages."""

import pathlib
import subprocess
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).parents[3] / "xtask" / "peers"


@pytest.mark.parametrize("script", ["config_keys.py", "gguf_keys.py"])
def test_lists_of_keys_are_current(script: str) -> None:
    command = [sys.executable, str(SCRIPTS / script), "--check"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
