"""What the guarantee depends on travels with the model, and noise never repeats."""

import os
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_gdp as gdp

X = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
Y = np.ones((12, 1), "float32")


def model_with(**kwargs):
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    options = {"l2_norm_clip": 0.7, "noise_multiplier": 1.2, "learning_rate": 0.1}
    model.compile(gdp.DPAdam(**{**options, **kwargs}), "mse")
    return model


def train(model, steps):
    dataset = gdp.PoissonDataset(X, Y, batch_size=4, steps_per_epoch=steps)
    model.fit(dataset, verbose=0)


def state(model):
    return [v.numpy() for v in [*model.weights, *model.optimizer.variables]]


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_keras_file_continues_where_it_stopped(tmp_path):
    model = model_with()
    train(model, 3)
    model.optimizer.max_private_steps.assign(77)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert type(loaded.optimizer) is gdp.DPAdam
    assert_same(state(model), state(loaded))
    assert loaded.optimizer.phases == model.optimizer.phases
    train(loaded, 2)
    assert int(loaded.optimizer.private_steps) == 5
    assert int(loaded.optimizer.max_private_steps) == 77
    (phase,) = loaded.optimizer.phases
    assert (phase.steps, phase.noise_multiplier) == (5, 1.2)
    assert loaded.optimizer.l2_norm_clip == 0.7
    assert float(loaded.optimizer._divisor) == 4


def noise_only(**kwargs):
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(500)])
    optimizer = gdp.DPSGD(1.0, l2_norm_clip=1.0, noise_multiplier=1.0, **kwargs)
    model.compile(optimizer, "mse")
    return model


def wide_updates(model):
    before = model.get_weights()
    model.train_on_batch(X[:4], np.zeros((4, 500)), sample_weight=np.zeros(4))
    return np.concatenate(
        [np.ravel(a - b) for a, b in zip(model.get_weights(), before, strict=True)]
    )


def correlation(a, b):
    return abs(np.corrcoef(a, b)[0, 1])


def test_noise_after_a_reload_differs_from_noise_before_and_between_reloads(tmp_path):
    model = noise_only()
    first = wide_updates(model)
    model.save(tmp_path / "m.keras")
    following = wide_updates(model)
    one = wide_updates(keras.saving.load_model(tmp_path / "m.keras"))
    two = wide_updates(keras.saving.load_model(tmp_path / "m.keras"))
    drawn = [first, following, one, two]
    for i in range(4):
        for j in range(i):
            # 2,500 pairs: standard error 0.02.
            assert correlation(drawn[i], drawn[j]) < 0.12


def test_noise_after_restoring_weights_in_the_same_process_is_new(tmp_path):
    model = noise_only()
    wide_updates(model)
    model.save_weights(tmp_path / "w.weights.h5")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    path = checkpoint.save(str(tmp_path / "c"))
    first = wide_updates(model)
    checkpoint.restore(path)
    second = wide_updates(model)
    model.load_weights(tmp_path / "w.weights.h5")
    third = wide_updates(model)
    assert correlation(first, second) < 0.12
    assert correlation(first, third) < 0.12


def test_seeded_noise_continues_its_stream_after_a_reload(tmp_path):
    unbroken = noise_only(noise_seed=5)
    expected = [wide_updates(unbroken) for _ in range(3)]
    model = noise_only(noise_seed=5)
    first = wide_updates(model)
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_allclose(first, expected[0], atol=1e-6)
    np.testing.assert_allclose(wide_updates(loaded), expected[1], atol=1e-6)
    np.testing.assert_allclose(wide_updates(loaded), expected[2], atol=1e-6)


def test_the_noise_key_is_in_no_saved_file(tmp_path):
    model = model_with()
    train(model, 2)
    key = model.optimizer._noise._key[0].numpy()
    model.save(tmp_path / "m.keras")
    model.export(tmp_path / "served", verbose=False)
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(
        str(tmp_path / "c")
    )
    restored = keras.saving.load_model(tmp_path / "m.keras")
    for variable in restored.optimizer.variables:
        assert not np.isin(key, variable.numpy()).any()
    needles = [word.tobytes() for word in key]
    for folder, _, files in os.walk(tmp_path):
        for name in files:
            with open(os.path.join(folder, name), "rb") as file:
                content = file.read()
            assert not any(needle in content for needle in needles), name


def test_weights_and_checkpoints_carry_the_ledger(tmp_path):
    model = model_with()
    train(model, 3)
    model.save_weights(tmp_path / "w.weights.h5")
    other = model_with()
    train(other, 1)
    other.load_weights(tmp_path / "w.weights.h5")
    assert int(other.optimizer.private_steps) == 3
    assert other.optimizer.phases == model.optimizer.phases


def test_weights_for_an_optimizer_not_yet_built_are_refused_with_the_way_out(tmp_path):
    model = model_with()
    train(model, 2)
    model.save_weights(tmp_path / "w.weights.h5")
    other = model_with()
    with pytest.raises(ValueError, match=r"optimizer\.build\(model\.trainable"):
        other.load_weights(tmp_path / "w.weights.h5")
    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "w.weights.h5")
    assert other.optimizer.phases == model.optimizer.phases


def test_backup_and_restore_continues_the_count(tmp_path):
    class Interrupt(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    model = model_with()
    dataset = gdp.PoissonDataset(X, Y, batch_size=4)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "b")
    with pytest.raises(KeyboardInterrupt):
        model.fit(dataset, epochs=3, verbose=0, callbacks=[backup, Interrupt()])
    model = model_with()
    backup = keras.callbacks.BackupAndRestore(tmp_path / "b")
    model.fit(dataset, epochs=3, verbose=0, callbacks=[backup])
    assert int(model.optimizer.private_steps) >= 9


def test_a_state_that_does_not_fit_is_refused_not_skipped(tmp_path):
    plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    plain.compile("sgd", "mse")
    plain.fit(X, Y, verbose=0)
    store = {}
    plain.optimizer.save_own_variables(store)
    model = model_with()
    model.optimizer.build(model.trainable_variables)
    with pytest.raises(gdp.LedgerError, match="count of private steps"):
        model.optimizer.load_own_variables(store)


def test_a_contradictory_ledger_is_refused():
    model = model_with()
    train(model, 3)
    model.optimizer._ledger.variable.assign(np.zeros(model.optimizer._ledger.shape))
    with pytest.raises(gdp.LedgerError, match="ledger"):
        _ = model.optimizer.phases


def test_a_model_compiled_anew_keeps_its_ledger(tmp_path):
    model = model_with()
    train(model, 3)
    model.optimizer.max_private_steps.assign(50)
    model.save(tmp_path / "m.keras")
    for trained in (model, keras.saving.load_model(tmp_path / "m.keras")):
        trained.compile(gdp.DPSGD(0.1, l2_norm_clip=1.0, noise_multiplier=3.0), "mse")
        train(trained, 2)
        phases = trained.optimizer.phases
        assert [(p.steps, p.noise_multiplier) for p in phases] == [(3, 1.2), (2, 3.0)]
        assert int(trained.optimizer.private_steps) == 5
        assert int(trained.optimizer.max_private_steps) == 50


@pytest.mark.parametrize("name", ["noise_multiplier", "l2_norm_clip", "batch_size"])
def test_settings_cannot_be_changed_behind_the_ledgers_back(name):
    optimizer = model_with().optimizer
    with pytest.raises(AttributeError, match="new optimizer"):
        setattr(optimizer, name, 0.5)


def run(code, *paths, **environment):
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, paths)],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def test_a_new_process_loads_without_custom_objects_in_any_import_order(tmp_path):
    model = model_with()
    train(model, 3)
    model.save(tmp_path / "m.keras")
    for imports in ("import keras, keras_gdp", "import keras_gdp, keras"):
        out = run(
            f"""
            import sys
            {imports}
            model = keras.saving.load_model(sys.argv[1])
            print(type(model.optimizer).__name__, int(model.optimizer.private_steps))
            """,
            tmp_path / "m.keras",
        )
        assert "DPAdam 3" in out


def test_an_exported_model_serves_without_keras_gdp(tmp_path):
    model = model_with()
    train(model, 3)
    expected = model.predict(X, verbose=0)
    model.export(tmp_path / "served", verbose=False)
    np.save(tmp_path / "x.npy", X)
    run(
        """
        import sys
        sys.modules["keras_gdp"] = None
        import numpy as np, tensorflow as tf
        served = tf.saved_model.load(sys.argv[1])
        np.save(sys.argv[3], served.serve(np.load(sys.argv[2])).numpy())
        """,
        tmp_path / "served",
        tmp_path / "x.npy",
        tmp_path / "out.npy",
    )
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=1e-6)


def test_mixed_float16_models_reload_with_their_ledger(tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = model_with()
        train(model, 3)
        model.save(tmp_path / "m.keras")
        loaded = keras.saving.load_model(tmp_path / "m.keras")
    finally:
        keras.config.set_dtype_policy("float32")
    assert int(loaded.optimizer.inner_optimizer.private_steps) == 3
    train(loaded, 1)
    assert int(loaded.optimizer.inner_optimizer.private_steps) == 4
