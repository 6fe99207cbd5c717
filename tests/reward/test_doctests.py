"""The examples in the docstrings of the reward kit."""

import doctest
import importlib
import pkgutil

import pytest

import reward


def modules():
    found = pkgutil.walk_packages(reward.__path__, "reward.")
    return ["reward_ocr", *(module.name for module in found if not module.name.endswith("__main__"))]


@pytest.mark.parametrize("name", modules())
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    assert sum(bool(test.examples) for name in modules() for test in finder.find(importlib.import_module(name))) > 20
