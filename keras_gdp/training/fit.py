"""What surrounds the private steps: where their batches come from, who trained before.

`fit` declares how it draws its batches, and takes the declaration back when it ends;
a model keeps its ledger when it is compiled anew.
"""

import contextlib
import inspect
import warnings

import keras
import numpy as np
import tensorflow as tf

from keras_gdp import _validate
from keras_gdp.data import PoissonDataset, SampledDataset, verified_sampling
from keras_gdp.errors import BudgetExceededError
from keras_gdp.sampling import Sampling
from keras_gdp.training import _keras, holders
from keras_gdp.training.train_step import forget_engines

__all__ = ["compiled", "fitting", "stepping", "training_without_privacy"]


def compiled(model, previous):
    """Hands the ledger on to the optimizer that a model was compiled with.

    Args:
        model: The model, just compiled.
        previous: The private optimizer that it had before, or `None`.
    """
    if previous is not None:
        holders.note(model.variables, previous)
    optimizer = _keras.private_optimizer(model)
    if optimizer is not None:
        holders.take_over(model.variables, optimizer)
        forget_engines(optimizer)
    elif not _keras.has_own_train_step(model) and any(
        _trained(holder) for holder in holders.of(model.variables)
    ):
        warnings.warn(
            f"Model {model.name!r} was trained with privacy and is now compiled with "
            f"{type(model.optimizer).__name__}, which gives none. Training it voids "
            "the guarantee: a DP optimizer compiled later reports epsilon = infinity. "
            "Files saved meanwhile do not hold the ledger.",
            stacklevel=3,
        )


def training_without_privacy(model):
    """Notes in the ledgers, if there are any, that an ordinary optimizer trains.

    A model with a `train_step` of its own may use its optimizer for other things than
    its data, as GANs do.
    """
    if _keras.has_own_train_step(model):
        return
    for holder in holders.of(model.trainable_variables):
        if _trained(holder):
            holder.charge_unprotected_step()


@contextlib.contextmanager
def _holding(model, optimizer):
    """Context of steps: the ledgers of a model's weights are the optimizer's then."""
    holders.take_over(model.variables, optimizer)
    try:
        yield
    finally:
        # Afterwards, when a model that was not built before has its weights.
        holders.note(model.trainable_variables, optimizer)


def _trained(optimizer):
    return int(optimizer.private_steps.numpy()) > 0


@contextlib.contextmanager
def stepping(model, optimizer):
    """Context of a `train_on_batch`: during `fit` its batch is not one of `fit`'s."""
    optimizer.refresh_after_fork()
    within_fit = optimizer.fitted is not None and not optimizer.fitted.own_loop
    with (
        _holding(model, optimizer),
        optimizer.unbound() if within_fit else contextlib.nullcontext(),
    ):
        yield


@contextlib.contextmanager
def fitting(model, optimizer, *args, **kwargs):
    """Context of a `fit` with these arguments."""
    call = inspect.signature(keras.Model.fit).bind(model, *args, **kwargs)
    call.apply_defaults()
    callbacks = _callbacks(call.arguments["callbacks"])
    limited = any(getattr(c, "sets_private_limit", False) for c in callbacks)
    if optimizer.limit_reached and not limited:
        raise BudgetExceededError(
            f"Model {model.name!r} has reached the limit that is saved with it, "
            f"{int(optimizer.max_private_steps.numpy())} private steps: nothing would "
            "be trained. Pass a `PrivacyBudget` with a larger budget as a callback."
        )
    _warn_of_steering(callbacks)
    try:
        with _holding(model, optimizer):
            _declare(optimizer, call.arguments)
            yield
        optimizer.check_served(optimizer.fitted)
        if optimizer.limit_reached and not limited:
            warnings.warn(
                "The limit of private steps that is saved with the model was reached "
                "during `fit`; the batches after it changed nothing.",
                stacklevel=4,
            )
    finally:
        _finish(optimizer)


def _finish(optimizer):
    """Steps outside of `fit` are charged as if they saw every example."""
    fitted, optimizer.fitted = optimizer.fitted, None
    optimizer.bind(Sampling("unknown"))
    for action in [] if fitted is None else fitted.at_end:
        action()


def _declare(optimizer, arguments):
    source = arguments["x"]
    sampling, divisor = _sampling_of(arguments)
    facts = {}
    if isinstance(source, SampledDataset):
        facts["padded"] = isinstance(source, PoissonDataset)
        if sampling is not None and not source.use_multiprocessing:
            facts["draws"] = source.draws
    optimizer.fitted = optimizer.begin(source, sampling, **facts)
    if sampling is None:
        optimizer.bind(Sampling("unknown"))
    else:
        optimizer.bind(sampling, divisor)


def _sampling_of(arguments):
    """Returns how `fit` draws its batches, and the divisor that this implies.

    Both are `None` where that cannot be known.
    """
    source, batch_size = arguments["x"], arguments["batch_size"]
    if isinstance(source, SampledDataset):
        if arguments["class_weight"] is not None:
            raise ValueError(
                "Argument `class_weight` of `fit` cannot be combined with a "
                f"{type(source).__name__}, whose batches carry sample weights. Pass "
                "`sample_weight=` to the dataset instead, one weight per example."
            )
        sampling = verified_sampling(source)
        return sampling, None if sampling is None else sampling.batch_size
    length = _array_length(source)
    if length is None:
        return None, None
    split = arguments["validation_split"]
    if split and arguments["validation_data"] is None:
        length = int(length * (1.0 - split))
    if length == 0:
        raise ValueError(
            "Argument `x` of `fit` holds no example to train on. Received arrays of "
            f"{_array_length(source)} rows, validation_split={split!r}. Check how the "
            "data was loaded and split."
        )
    steps = arguments["steps_per_epoch"]
    if batch_size is None:
        batch_size = -(-length // steps) if steps else 32
    batch_size = _validate.count(
        "batch_size", batch_size, "Pass `fit(..., batch_size=32)`, say.", minimum=1
    )
    # Where that is more than there are, each step sees them all; the divisor must not
    # tell how many they are.
    return Sampling("shuffle", min(batch_size, length), length), batch_size


def _array_length(source):
    # Only what Keras cuts into batches itself: other objects with a shape may serve
    # whatever they like.
    leaves = [leaf for leaf in keras.tree.flatten(source) if leaf is not None]
    if leaves and all(_is_array(leaf) for leaf in leaves):
        return int(leaves[0].shape[0])
    return None


def _is_array(leaf):
    if isinstance(leaf, np.ndarray | tf.Tensor | tf.Variable | keras.Variable):
        return True
    return type(leaf).__module__.partition(".")[0] == "pandas"


def _callbacks(argument):
    listed = getattr(argument, "callbacks", argument)
    if listed is None:
        return []
    return list(listed) if isinstance(listed, list | tuple) else [listed]


def _warn_of_steering(callbacks):
    for callback in callbacks:
        monitor = getattr(callback, "monitor", None)
        if isinstance(callback, keras.callbacks.ModelCheckpoint):
            monitor = monitor if callback.save_best_only else None
        if isinstance(monitor, str) and not monitor.startswith(("val_", "epsilon")):
            warnings.warn(
                f"{type(callback).__name__} decides by {monitor!r}, which is computed "
                "on the training data without noise; the guarantee does not cover "
                "such decisions. Monitor a value on separate data, such as "
                f"'val_{monitor}'.",
                stacklevel=5,
            )
