"""Random labels: memorised without privacy, not with it."""

import json
import math

import keras
import numpy as np
import pytest
from scipy import stats

import keras_gdp as gdp
from keras_gdp.audit import LabelMemorization, MemorizationRun, label_memorization

X = np.random.default_rng(0).normal(size=(300, 20)).astype("float32")


def model_fn():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((20,)),
            keras.layers.Dense(128, "relu"),
            keras.layers.Dense(4, "softmax"),
        ]
    )


def optimizer_fn(noise_multiplier):
    if noise_multiplier == 0:
        return keras.optimizers.Adam(0.01)
    return gdp.DPAdam(0.01, l2_norm_clip=1.0, noise_multiplier=noise_multiplier)


def run(budgets, **options):
    settings = {
        "delta": 1e-4,
        "epochs": 60,
        "batch_size": 50,
        "verbose": 0,
        "inputs": "data",
        **options,
    }
    return label_memorization(model_fn, optimizer_fn, X, 4, budgets, **settings)


def test_a_model_without_privacy_memorises_and_a_private_one_stays_at_chance():
    result = run([0.1, math.inf], inputs=("data", "noise"), confidence=0.9999)
    private, unlimited = result.runs[:2], result.runs[2:]
    for memorised in unlimited:
        assert memorised.accuracy > 0.97
        assert memorised.memorized
        assert memorised.p_value < 1e-50
        assert memorised.allowed == 1.0
    for protected in private:
        assert protected.allowed == pytest.approx(math.exp(0.1) / 4 + 1e-4)
        # The interval holds chance unless an event of probability 1e-4 happened, or
        # the little that epsilon = 0.1 allows was all memorised.
        assert protected.interval[0] <= 0.25 <= protected.interval[1]
        assert not protected.memorized
        assert protected.noise_multiplier > 0
    assert result.largest_safe_budget == 0.1
    assert "nothing was memorised up to epsilon = 0.1" in str(result)


def test_results_are_kept_and_not_repeated(tmp_path):
    path = tmp_path / "runs.json"
    calls = []

    def counted(noise):
        calls.append(noise)
        return optimizer_fn(noise)

    settings = {"delta": 1e-4, "epochs": 2, "batch_size": 50, "verbose": 0}
    settings.update(inputs="data", path=path)
    first = label_memorization(model_fn, counted, X, 4, [2.0], **settings)
    second = label_memorization(model_fn, counted, X, 4, [2.0, math.inf], **settings)
    assert len(calls) == 2
    assert second.runs[0] == first.runs[0]
    assert len(json.loads(path.read_text())["runs"]) == 2
    with pytest.raises(ValueError, match="other settings .*epochs"):
        run([2.0], epochs=3, path=path)
    path.write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        run([2.0], epochs=2, path=path)


def made(epsilon, memorized, inputs="data"):
    return MemorizationRun(epsilon, inputs, 1.0, 0.3, (0.2, 0.4), 0.7, 0.5, memorized)


@pytest.mark.parametrize(
    ("memorized", "safe"),
    [([0, 0, 0], 3.0), ([0, 0, 1], 2.0), ([0, 1, 0], 1.0), ([1, 0, 0], None)],
)
def test_the_largest_safe_budget_has_only_safe_ones_below(memorized, safe):
    runs = [made(float(i + 1), bool(m)) for i, m in enumerate(memorized)]
    assert LabelMemorization(tuple(runs), 0.25, 100, 0.99).largest_safe_budget == safe


def test_p_values_are_exact():
    (found,) = run([3.0], epochs=1).runs
    correct = round(found.accuracy * 300)
    expected = sum(stats.binom.pmf(k, 300, 0.25) for k in range(correct, 301))
    assert found.p_value == pytest.approx(expected)


def test_the_figure_shows_every_run():
    import matplotlib

    matplotlib.use("Agg")
    result = LabelMemorization(
        (made(1.0, False), made(math.inf, True)), 0.25, 100, 0.99
    )
    axes = result.plot()
    assert [c.get_label() for c in axes.containers] == ["random labels, data"]


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"budgets": [0.0]}, "`budgets`.*math.inf"),
        ({"inputs": "labels"}, "`inputs`.*a tuple of several"),
        ({"delta": 1.0}, "delta"),
        ({"epochs": 0}, "epochs"),
        ({"budgets": 1.0}, r"budgets=\[1.0\]"),
        ({"budgets": []}, "budgets"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 301}, "batch_size=301 with 300 examples"),
    ],
    ids=str,
)
def test_bad_arguments_are_named(bad, named):
    with pytest.raises(ValueError, match=named):
        run(**{"budgets": [1.0], **bad})


def test_functions_and_inputs_are_named():
    good = {"model_fn": model_fn, "optimizer_fn": optimizer_fn, "x": X}
    settings = {"delta": 1e-4, "epochs": 1, "batch_size": 5, "num_classes": 4}
    for bad in ({"model_fn": 1}, {"optimizer_fn": None}, {"x": 3.0}, {"x": X[:0]}):
        with pytest.raises(
            ValueError, match=f"`{next(iter(bad))}`.*(It returns|how the data)"
        ):
            label_memorization(**{**good, **settings, **bad}, budgets=[1.0])


def test_an_optimizer_that_does_not_fit_the_budget_is_refused():
    def plain(noise):
        return keras.optimizers.Adam()

    with pytest.raises(
        ValueError, match="must return a DP optimizer.*keras_gdp.DPSGD, say"
    ):
        label_memorization(
            model_fn, plain, X, 4, [1.0], delta=1e-4, epochs=1, batch_size=50, verbose=0
        )
