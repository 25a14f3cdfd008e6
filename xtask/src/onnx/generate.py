"""Writes the test cases of the installed `onnx` package to a folder: generate.py FOLDER"""

import sys

import onnx.backend.test.cmd_tools as tools
from onnx.backend.test.case import node

models = tools.model_test.collect_testcases
# ONNX's own program generates only cases with whole models; add the cases of single nodes.
tools.model_test.collect_testcases = lambda: [*node.collect_testcases(None), *models()]
sys.argv = ["cmd_tools", "generate-data", "-o", sys.argv[1]]
tools.main()
