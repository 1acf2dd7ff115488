"""The mixin that makes a Keras optimizer differentially private."""

import contextlib
import functools
import weakref
from types import MappingProxyType

import keras
import numpy as np
import tensorflow as tf

from keras_gdp.clipping import ClippingStrategy
from keras_gdp.clipping.made_up import start_strategy
from keras_gdp.clipping.objective import specs_of
from keras_gdp.errors import (
    LedgerError,
    SamplingMismatchError,
    UnclippedGradientsError,
)
from keras_gdp.noise import NoiseStream
from keras_gdp.optimizers._ledger import PrivacyLedger
from keras_gdp.optimizers._own_loss import (
    check_loss_function,
    checked_batch,
    checked_variables,
    own_objective,
    row_weights,
)
from keras_gdp.optimizers._settings import (
    check_noise_range,
    checked_settings,
    refuse_accumulation,
)
from keras_gdp.sampling import Sampling
from keras_gdp.training import PrivateUpdate, holders
from keras_gdp.training.interface import Fitted
from keras_gdp.training.validate import checked_engine

__all__ = ["PrivateOptimizer"]

_NO_LIMIT = 2**62


class _NoisedGradients(list):
    """Gradients that were clipped per example and noised; only made below."""


def _naming_what_is_missing(init):
    """Has a missing `noise_multiplier` reported under the public class's name."""

    @functools.wraps(init)
    def checked(self, *args, **kwargs):
        if "noise_multiplier" not in kwargs:
            raise TypeError(
                f"Argument `noise_multiplier` of {type(self).__name__} is missing. "
                "Give the standard deviation of the noise in units of `l2_norm_clip`, "
                f"such as `{type(self).__name__}(..., l2_norm_clip=1.0, "
                "noise_multiplier=1.1)`; `keras_gdp.accounting.noise_multiplier_for` "
                "finds it for a budget."
            )
        init(self, *args, **kwargs)

    return checked


class PrivateOptimizer(PrivateUpdate):
    """Clips, adds noise, and counts; the Keras parent does the update.

    Mixed in before a Keras optimizer class. All arguments of the parent are taken as
    they are; learning-rate schedules, weight decay, `clipnorm`, `clipvalue` and
    moving averages act on the noised gradient, which costs no privacy.

    Args:
        *args: Passed to the Keras parent.
        l2_norm_clip: Bound on the L2 norm of each example's gradient, > 0; or a
            clipping strategy from `keras_gdp.clipping`.
        noise_multiplier: Standard deviation of the noise on the clipped sum, in units
            of its sensitivity (`l2_norm_clip`), >= 0. Zero adds no noise: epsilon is
            infinite. Strategies that release statistics of the batch to adapt their
            bounds add noise to these too, and each step costs slightly more:
            `strategy.effective_noise_multiplier(noise_multiplier)` is accounted.
        batch_size: The expected batch size, by which the noised sum is divided. A
            declared constant, never the number of rows that a batch happens to have.
            `None` takes it from what is fitted: a `PoissonDataset`'s or
            `fit(..., batch_size=...)`'s (32 where none is given, also for fewer
            examples), else the static size of the first batch.
        clipping: `"auto"`, the name of an engine, or a clipping strategy.
        physical_batch_size: Process the batch in chunks of this many rows inside the
            step: the same result with less memory. `None` for all at once.
        noise_seed: `None` to draw the noise from the operating system's entropy. An
            int makes it reproducible, and void as protection against whoever knows
            the seed; the privacy statement says so.
        **kwargs: Passed to the Keras parent.

    Raises:
        TypeError: If `noise_multiplier` is missing.
        ValueError: For values out of range, and for `gradient_accumulation_steps`.
    """

    @_naming_what_is_missing
    def __init__(
        self,
        *args,
        l2_norm_clip=None,
        noise_multiplier,
        batch_size=None,
        clipping="auto",
        physical_batch_size=None,
        noise_seed=None,
        **kwargs,
    ):
        refuse_accumulation(kwargs)
        settings = checked_settings(
            l2_norm_clip=l2_norm_clip,
            noise_multiplier=noise_multiplier,
            batch_size=batch_size,
            clipping=clipping,
            physical_batch_size=physical_batch_size,
            noise_seed=noise_seed,
        )
        super().__init__(*args, **kwargs)
        self._settings = MappingProxyType(settings)
        self._noise = NoiseStream(self.noise_seed)
        self._private_steps = self.add_variable((), dtype="int64", name="private_steps")
        self._max_private_steps = self.add_variable(
            (),
            initializer=keras.initializers.Constant(_NO_LIMIT),
            dtype="int64",
            name="max_private_steps",
        )
        # 0 until the expected batch size is known.
        self._divisor = self.add_variable((), dtype="float32", name="batch_size")
        self._ledger = PrivacyLedger(
            self.add_variable(
                PrivacyLedger.shape, dtype="float64", name="privacy_ledger"
            ),
            self.strategy.effective_noise_multiplier(self.noise_multiplier),
            seeded_noise=self.noise_seed is not None,
        )
        # Steps of earlier optimizers that this ledger holds, by optimizer.
        self._inherited = weakref.WeakKeyDictionary()
        if self.batch_size is not None:
            self._divisor.assign(self.batch_size)

    def __getattr__(self, name):
        settings = self.__dict__.get("_settings", {})
        if name in settings:
            return settings[name]
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}"
        )

    def __setattr__(self, name, value):
        if name in self.__dict__.get("_settings", {}):
            raise AttributeError(
                f"`{name}` of {type(self).__name__} cannot be changed: the compiled "
                "step and the ledger rest on it. Compile the model with a new "
                "optimizer, which takes over the ledger as a new phase of training."
            )
        super().__setattr__(name, value)

    @property
    def private_steps(self):
        """Number of noised updates so far, a variable saved with the model."""
        return self._private_steps

    @property
    def max_private_steps(self):
        """Number of noised updates after which nothing changes any more.

        A variable saved with the model; the limit is enforced inside the graph.
        """
        return self._max_private_steps

    @property
    def phases(self):
        """The training so far as a list of phases, for accounting."""
        self._ledger.check(int(self._private_steps.numpy()))
        return self._ledger.phases()

    @property
    def limit_reached(self):
        return bool(self._private_steps.numpy() >= self._max_private_steps.numpy())

    def inherit(self, previous):
        """Takes over the ledger of the optimizer that trained the same model before.

        The weights carry what was spent on them, whoever trains them next. The limit
        comes along too, until a new budget sets another.
        """
        ours, theirs = (int(o.private_steps.numpy()) for o in (self, previous))
        if theirs and self._inherited.get(previous) == theirs:
            return
        sources = [self, previous]
        if ours and previous._inherited.get(self) == ours:
            # All that this optimizer did is in there.
            sources, ours = [previous], 0
            self._ledger.clear()
        left = min(
            int(o.max_private_steps.numpy()) - int(o.private_steps.numpy())
            for o in sources
        )
        self._ledger.take_over(previous._ledger)
        self._private_steps.assign(ours + theirs)
        self._max_private_steps.assign(min(ours + theirs + left, _NO_LIMIT))
        self._inherited.update(previous._inherited)
        self._inherited[previous] = theirs

    def charge_unprotected_step(self):
        self._ledger.charge_unprotected_step()

    def bind(self, sampling: Sampling, batch_size=None, *, new_pass=True):
        self.refresh_after_fork()
        self._ledger.bind(sampling, new_pass)
        if batch_size is not None and self.batch_size is None:
            self._divisor.assign(batch_size)

    def refresh_after_fork(self):
        self._noise.refresh_after_fork()

    @contextlib.contextmanager
    def unbound(self):
        binding = self._ledger.binding
        self._ledger.bind(Sampling("unknown"), new_pass=False)
        try:
            yield
        finally:
            self._ledger.rebind(binding)

    def begin(self, source, sampling, **facts):
        return Fitted(source, sampling, self._ledger.taken, **facts)

    def check_served(self, fitted):
        if fitted.draws is None:
            return
        taken = self._ledger.taken - fitted.steps
        drawn = fitted.source.draws - fitted.draws
        if taken > drawn:
            self._ledger.charge_as_unknown(taken - fitted.distrusted)
            fitted.distrusted = taken
            raise SamplingMismatchError(
                f"{taken} private steps were taken but only {drawn} batches were drawn "
                f"from the {type(fitted.source).__name__} that is accounted for. Fit "
                "that dataset itself; batches must not be reused or cached. These "
                "steps are now charged as if each had seen every example."
            )

    def resolve_batch_size(self, static_rows):
        with tf.init_scope():
            if self._divisor.numpy() > 0:
                return
            if not static_rows:
                raise ValueError(
                    "The expected batch size is not known: the batches have no static "
                    "size and nothing declares it. Pass `batch_size=` to "
                    f"{type(self).__name__}, or fit a keras_gdp.PoissonDataset."
                )
            self._divisor.assign(static_rows)

    def nominal_batch_size(self) -> float:
        """The divisor as a number; call `resolve_batch_size` first."""
        with tf.init_scope():
            return float(self._divisor.numpy())

    def build(self, variables):
        if not self.built:
            self.strategy.build(variables, self._add_strategy_variable)
            check_noise_range(self.strategy, self.noise_multiplier)
        super().build(variables)

    def _add_strategy_variable(self, shape, initializer, name):
        return self.add_variable(
            shape, initializer=initializer, dtype="float32", name=name
        )

    def prepare_clipping(self, variables, objective, row_specs):
        with tf.init_scope():
            if not self.built:
                self.build(list(variables))
            self._ledger.check_room()
            self.strategy.check_variables(variables)
            start_strategy(self.strategy, objective, row_specs)

    def apply_clipped_sum(self, clipped, variables, extra_gradients=None):
        variables = list(variables)
        if not self.built:
            with tf.init_scope():
                self.build(variables)
        place = self._ledger.place()
        allowed = tf.logical_and(
            tf.less(self._private_steps.value, self._max_private_steps.value),
            place.there_is_room,
        )
        # Outside of the condition, which would have to pass on all that it uses.
        means, statistics = self._add_noise(clipped)
        self._private_steps.assign_add(tf.cast(allowed, tf.int64))
        self._ledger.record(place, allowed)

        def update():
            # All of one graph, as Keras asks.
            gradients = [tf.identity(mean) for mean in means]
            if statistics is not None:
                gradients = self._adapt(gradients, statistics)
            if extra_gradients is not None:
                gradients = [
                    g
                    if extra is None
                    else g + tf.cast(tf.convert_to_tensor(extra), g.dtype)
                    for g, extra in zip(gradients, extra_gradients, strict=True)
                ]
            if self.loss_scale_factor:
                gradients = [g * self.loss_scale_factor for g in gradients]
            self.apply(
                _NoisedGradients(
                    tf.cast(g, variable.dtype)
                    for g, variable in zip(gradients, variables, strict=True)
                ),
                variables,
            )
            return tf.constant(True)

        return tf.cond(allowed, update, lambda: tf.constant(False))

    def _adapt(self, gradients, statistics):
        """Adapts the strategy to its noised statistics; they may scale the update."""
        scales = self.strategy.update(statistics, self._divisor.value)
        if scales is None:
            return gradients
        return [
            gradient * tf.cast(scale, gradient.dtype)
            for gradient, scale in zip(gradients, scales, strict=True)
        ]

    def _add_noise(self, clipped):
        """Returns the mean gradients and the strategy's statistics, noised."""
        parts = [*clipped.gradients]
        stddevs = self.strategy.noise_stddevs(self.noise_multiplier, len(parts))
        if clipped.statistics is not None:
            parts.append(clipped.statistics)
            stddevs = [*stddevs, self.strategy.statistics_stddevs()]
        if clipped.statistics is not None or self.noise_multiplier != 0:
            noise = self._noise.draw(
                [part.shape for part in parts],
                [part.dtype for part in parts],
                self._private_steps.value,
                stddevs,
            )
            parts = [
                part + tf.cast(z, part.dtype)
                for part, z in zip(parts, noise, strict=True)
            ]
        statistics = parts.pop() if clipped.statistics is not None else None
        divisor = tf.convert_to_tensor(self._divisor)
        means = [part / tf.cast(divisor, part.dtype) for part in parts]
        return means, statistics

    def apply(self, grads, trainable_variables=None):
        """Refuses gradients that the private step did not make."""
        if not isinstance(grads, _NoisedGradients):
            raise UnclippedGradientsError(
                f"{type(self).__name__} received gradients that were not clipped per "
                "example and noised: they would train without privacy. Use "
                "`model.compile(optimizer=...)` and `fit` with a model that does not "
                "override `train_step`, or call `optimizer.private_step(loss_fn, "
                "batch, variables)` in a training loop of your own."
            )
        super().apply(list(grads), trainable_variables)

    def private_step(self, loss_fn, batch, variables, sample_weight=None):
        """Takes one private step on a loss of your own.

        For training loops that `fit` does not cover. Every call that touches data is
        one noised update, and is counted. During a `fit`, call it from `train_step`
        alone, once per batch.

        Args:
            loss_fn: Maps one example to its loss, a scalar. An example is `batch`
                with the leading axis removed from every tensor; add it again with
                `example[None]` to call a Keras model. It must not depend on other
                examples in any other way.
            batch: A tensor, or a nested structure of tensors, with a leading axis of
                examples. Its static size is the divisor if nothing else is declared.
            variables: The Keras variables to update.
            sample_weight: Tensor of shape (batch,) that multiplies the losses, or
                `None` for ones. An example of weight 0 contributes exactly nothing;
                pass the weights that a `PoissonDataset` serves, which are 0 for its
                padding rows.

        Returns:
            The losses of the examples, a tensor of shape (batch,), without weights,
            clipping or noise: not private to publish.

        Raises:
            UnsupportedLayerError: If computing the loss writes variables.
            ValueError: If `loss_fn` does not return a floating-point scalar, if
                `variables` is not a list of variables, if the tensors of `batch` have
                no leading axis of one length, or if `sample_weight` is missing for
                the padded batches of a `PoissonDataset`.
        """
        check_loss_function(loss_fn)
        variables = checked_variables(variables)
        self.refresh_after_fork()
        with tf.init_scope():
            holders.take_over(variables, self)
        if sample_weight is None and self.fitted is not None and self.fitted.padded:
            raise ValueError(
                "Argument `sample_weight` is missing. The batches of a PoissonDataset "
                "are padded with rows of weight 0, which would count as examples. "
                "Unpack `x, y, sample_weight = data` and pass `sample_weight=`."
            )

        batch, rows = checked_batch(batch)
        sample_weight = row_weights(sample_weight, rows)
        batch = (batch, sample_weight)
        objective = own_objective(loss_fn, variables)
        specs = specs_of(batch)
        self.prepare_clipping(variables, objective, specs)
        engine, _ = checked_engine(self, objective, specs)
        # Once nothing more is refused: it fixes the divisor.
        self.resolve_batch_size(rows if isinstance(rows, int) else None)
        clipped = engine.clip(objective, batch, tf.not_equal(sample_weight, 0.0))
        holders.note(variables, self)
        self.apply_clipped_sum(clipped, variables)
        return clipped.outputs[0]

    def load_own_variables(self, store):
        """Restores the state; refuses a file whose ledger does not fit."""
        if len(store.keys()) != len(self.variables):
            raise LedgerError(
                f"The saved optimizer has {len(store.keys())} variables, "
                f"{type(self).__name__} has {len(self.variables)}: it was saved by "
                "another optimizer, or one of the two is not built. Loading it would "
                "lose the count of private steps. Call "
                "`model.optimizer.build(model.trainable_variables)` first. If another "
                "class of optimizer saved the file, compile with that and load; then "
                "compile anew with this one, which takes over the ledger."
            )
        super().load_own_variables(store)
        if self.batch_size is not None:
            self._divisor.assign(self.batch_size)
        self._noise.refresh()

    def get_config(self):
        config = super().get_config()
        for name, value in self._settings.items():
            if name not in ("strategy", "engine_name"):
                config[name] = _serialize(value)
        return config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        for name in ("l2_norm_clip", "clipping"):
            if isinstance(config.get(name), dict):
                config[name] = keras.saving.deserialize_keras_object(config[name])
        return super().from_config(config, custom_objects=custom_objects)


def _serialize(value):
    if isinstance(value, ClippingStrategy):
        return keras.saving.serialize_keras_object(value)
    return float(value) if isinstance(value, np.floating) else value
