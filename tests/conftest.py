import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import logging
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("default")
logging.getLogger("tensorflow").setLevel(logging.ERROR)


@pytest.fixture
def repository():
    return Path(__file__).resolve().parent.parent


@pytest.fixture
def seeded():
    import keras

    keras.utils.set_random_seed(20260101)
