"""The public names exist, are listed, and cost nothing to import."""

import importlib
import os
import pkgutil
import subprocess
import sys

import pytest

import keras_gdp

PACKAGES = [
    "keras_gdp",
    *(
        info.name
        for info in pkgutil.iter_modules(keras_gdp.__path__, "keras_gdp.")
        if info.ispkg
    ),
]


@pytest.mark.parametrize("name", PACKAGES)
def test_all_lists_what_exists(name):
    module = importlib.import_module(name)
    assert len(set(module.__all__)) == len(module.__all__)
    for public in module.__all__:
        assert getattr(module, public) is not None
        assert public in dir(module)


def test_every_promised_name_is_public():
    for name in (
        "DPSGD DPAdam DPAdamW DPAdagrad DPAdadelta DPAdamax DPNadam DPRMSprop DPFtrl "
        "DPLion DPAdafactor DPLamb make_private PoissonDataset UniformDataset "
        "PrivacyBudget PrivacyStatement explain_clipping PrivacyError "
        "UnclippedGradientsError BudgetExceededError UnsupportedLayerError "
        "UnsupportedEventError SamplingMismatchError LedgerError"
    ).split():
        assert name in keras_gdp.__all__
        assert getattr(keras_gdp, name).__doc__


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'DPMagic'"):
        _ = keras_gdp.DPMagic


def python(code):
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


@pytest.mark.parametrize(
    "package", ["accounting", "tradeoff", "sampling", "tuning", "audit"]
)
def test_the_pure_half_works_without_tensorflow(package):
    python(
        "import sys\n"
        "for name in ('tensorflow', 'keras', 'matplotlib', 'tensorflow_probability'):\n"
        "    sys.modules[name] = None\n"
        f"import keras_gdp.{package}\n"
    )


def test_keras_may_be_imported_after_keras_gdp():
    out = python(
        "import keras_gdp, sys; assert 'tensorflow' not in sys.modules; import keras\n"
        "print(keras.optimizers.deserialize({'class_name': 'DPSGD',\n"
        " 'module': 'keras_gdp.optimizers', 'registered_name': 'keras_gdp>DPSGD',\n"
        " 'config': {'learning_rate': 0.1, 'l2_norm_clip': 1.0,\n"
        " 'noise_multiplier': 1.0}}).l2_norm_clip)"
    )
    assert "1.0" in out
