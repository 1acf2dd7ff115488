"""The privacy budget as a Keras callback."""

import math
import os
import time

import keras

from keras_gdp import _validate, accounting
from keras_gdp.callbacks.ledger_file import read_ledger, write_ledger
from keras_gdp.callbacks.statement import PrivacyStatement, counted
from keras_gdp.data import PoissonDataset, SampledDataset, verified_sampling
from keras_gdp.errors import (
    BudgetExceededError,
    LedgerError,
    PrivacyError,
    SamplingMismatchError,
    UnsupportedEventError,
)
from keras_gdp.optimizers import PrivateOptimizer
from keras_gdp.sampling import Sampling
from keras_gdp.training._keras import private_optimizer

__all__ = ["PrivacyBudget"]

_ACCOUNTANTS = ("exact", "rdp", "moments", "clt")
# The ledger file is written at every epoch's end, and this often in between.
_SECONDS_BETWEEN_WRITES = 10.0


class PrivacyBudget(keras.callbacks.Callback):
    """Reports epsilon every epoch, and stops before the budget is overspent.

    The limit itself holds inside the graph: before training, the largest number of
    steps whose epsilon stays within the budget is written to the optimizer's
    `max_private_steps`, and a step beyond it changes nothing. The callback reports,
    and ends `fit` politely.

    Every epoch's logs gain `epsilon` (of the chosen accountant), `epsilon_exact`,
    `epsilon_rdp`, `epsilon_clt` (an estimate) and `mu`, so that the progress bar,
    `History`, `CSVLogger` and `TensorBoard` show them. Callbacks listed before this
    one do not see them.

    Args:
        epsilon: The budget, > 0; `None` to report only.
        delta: Probability in (0, 1) with which epsilon may fail to hold; well below
            one over the number of examples.
        dataset: The `PoissonDataset` or `UniformDataset` that is fitted. The callback
            checks that it is the one that `fit` uses.
        num_examples: Declared size of the data set, where no `dataset` is given.
        batch_size: Declared (expected) batch size, where no `dataset` is given.
        sampling: `"poisson"`, `"uniform"` or `"shuffle"`, where no `dataset` is given.
            Plain `fit(x, y, batch_size)` is `"shuffle"`, and recognised as such.
        accountant: `"exact"`, `"rdp"`, `"moments"`, or `"clt"` (an estimate that can
            lie below the truth): whose epsilon the budget limits.
        relation: `"add_remove"` or `"replace_one"`; by default the relation of the
            sampling: replace-one for `"uniform"`, add-or-remove-one otherwise.
        ledger: Path of a JSON file that keeps a second record of what was spent,
            and must agree with the model's own.
        optimizer: The DP optimizer to watch, where it is not the model's own (GANs).
        verbose: 1 to print the limit and the reason for stopping.

    Raises:
        ValueError: For values out of range, or for declarations that are missing.
        BudgetExceededError: At the start of training, if nothing is left to spend.
        SamplingMismatchError: If the batches do not come from what was declared.
        LedgerError: If the record on disk and in the model contradict each other.

    Example:
    ```python
    train = gdp.PoissonDataset(x_train, y_train, batch_size=256)
    budget = gdp.PrivacyBudget(epsilon=3.0, delta=1e-5, dataset=train)
    model.fit(train, epochs=60, callbacks=[budget])
    print(budget.statement())
    ```
    """

    def __init__(
        self,
        epsilon=None,
        delta=None,
        *,
        dataset=None,
        num_examples=None,
        batch_size=None,
        sampling=None,
        accountant="exact",
        relation=None,
        ledger=None,
        optimizer=None,
        verbose=0,
    ):
        super().__init__()
        if epsilon is not None:
            epsilon = _validate.positive(
                "epsilon", epsilon, "It is the budget; `None` reports without a limit."
            )
        if delta is None:
            raise ValueError(
                "Argument `delta` is missing. Give the probability with which epsilon "
                "may fail to hold, well below 1 / num_examples, such as 1e-5."
            )
        self.epsilon = epsilon
        self.delta = _validate.delta("delta", delta)
        self.accountant = _validate.one_of("accountant", accountant, _ACCOUNTANTS)
        if relation is not None:
            _validate.one_of("relation", relation, ("add_remove", "replace_one"))
        self.relation = relation
        self.dataset = dataset
        self.ledger = ledger
        self.verbose = verbose
        if ledger is not None and not isinstance(ledger, str | os.PathLike):
            raise ValueError(
                "Argument `ledger` must be the path of a JSON file, or None for no "
                f"second record. Received: ledger={ledger!r}. Pass a path such as "
                "'model.privacy.json'."
            )
        self._declared = _declared_sampling(dataset, num_examples, batch_size, sampling)
        self._num_examples, self._batch_size = num_examples, batch_size
        if optimizer is not None and not isinstance(optimizer, PrivateOptimizer):
            raise ValueError(
                "Argument `optimizer` must be a DP optimizer of keras_gdp. Received: "
                f"{type(optimizer).__name__}. Pass the one that takes the private "
                "steps, or leave it out for the model's own."
            )
        self._optimizer = optimizer
        self._limit = None
        self._fitted = None
        self._prepared_at, self._confirmed = None, False
        self._written_at = 0.0

    # Told to `fit`: a saved limit that is reached may be raised by this callback.
    sets_private_limit = True

    # What was spent ----------------------------------------------------------------

    @property
    def optimizer(self):
        """The DP optimizer that this callback watches."""
        if self._optimizer is not None:
            return self._optimizer
        optimizer = private_optimizer(self.model)
        if optimizer is None:
            received = type(getattr(self.model, "optimizer", None)).__name__
            if self.model is None:
                raise PrivacyError(
                    "PrivacyBudget has no model yet. Pass it to `fit` as a callback, "
                    "or give it `optimizer=model.optimizer`."
                )
            raise PrivacyError(
                "PrivacyBudget needs a model that is compiled with a DP optimizer, "
                f"such as keras_gdp.DPAdam. Received: {received}. "
                "Training with this optimizer has no privacy guarantee."
            )
        return optimizer

    def events(self):
        """Returns what happened so far, as a list of `(event, count)`."""
        return [(phase.event, phase.count) for phase in self.optimizer.phases]

    def composed(self, accountant=None):
        """Returns an accountant of `keras_gdp.accounting` holding all steps so far.

        Args:
            accountant: Name of the accountant; by default the chosen one.

        Raises:
            UnsupportedEventError: If it has no analysis for what happened.
        """
        composed = accounting.make_accountant(
            accountant or self.accountant, self._relation()
        )
        for event, count in self.events():
            composed.compose(event, count)
        return composed

    def spent(self, accountant=None) -> float:
        """Epsilon spent so far, at `delta`, by the chosen or the given accountant."""
        return self.composed(accountant).epsilon(self.delta)

    def remaining_steps(self) -> float:
        """Steps that the budget still allows; infinite where it sets no limit."""
        if self.epsilon is None:
            return math.inf
        steps = int(self.optimizer.private_steps.numpy())
        if self._limit is not None:
            return max(0, self._limit - steps)
        return self._affordable_steps(self._resolve_sampling())

    def _relation(self):
        if self.relation is not None:
            return self.relation
        relations = [phase.sampling.relation for phase in self.optimizer.phases]
        if self._declared is not None:
            relations.append(self._declared.relation)
        # A guarantee for several phases needs one relation: replace-one is what
        # sampling without replacement supports.
        return "replace_one" if "replace_one" in relations else "add_remove"

    def _epsilon_or_none(self, accountant):
        try:
            return self.spent(accountant)
        except UnsupportedEventError:
            return None

    def _assumption(self, accountant):
        try:
            return self.composed(accountant).assumption
        except UnsupportedEventError as error:
            return str(error)

    def _mu_or_none(self):
        try:
            return self.composed("clt").mu
        except UnsupportedEventError:
            return None

    def statement(self) -> PrivacyStatement:
        """Returns what this training guarantees so far."""
        optimizer = self.optimizer
        epsilons = {name: self._epsilon_or_none(name) for name in _ACCOUNTANTS}
        if epsilons[self.accountant] is None:
            self.composed()  # Raises the error that says why.
        relation = self._relation()
        phases = optimizer.phases
        return PrivacyStatement(
            epsilon=epsilons[self.accountant],
            delta=self.delta,
            mu=self._mu_or_none(),
            accountant=self.accountant,
            epsilons=epsilons,
            assumptions={name: self._assumption(name) for name in _ACCOUNTANTS},
            relation=relation,
            sampling=tuple(
                f"{counted(phase.steps, 'step')} with noise multiplier "
                f"{phase.noise_multiplier:g}: {phase.sampling.describe()}"
                for phase in phases
            )
            or ("no step was taken",),
            clipping=optimizer.strategy.describe(),
            sensitivity=float(optimizer.strategy.sensitivity),
            noise_multiplier=optimizer.noise_multiplier,
            effective_noise_multiplier=optimizer.strategy.effective_noise_multiplier(
                optimizer.noise_multiplier
            ),
            noise=optimizer.strategy.describe_noise(optimizer.noise_multiplier),
            steps=int(optimizer.private_steps.numpy()),
            max_steps=self._limit,
            epsilon_limit=self.epsilon,
            noise_seed=optimizer.noise_seed,
            warnings=tuple(self._warnings(relation, phases)),
        )

    def _warnings(self, relation, phases):
        optimizer = self.optimizer
        if optimizer.noise_multiplier == 0:
            yield "no noise is added: there is no privacy (epsilon is infinite)"
        elif any(phase.noise_multiplier == 0 for phase in phases):
            yield (
                "the model was also trained without noise, or with an optimizer that "
                "gives no privacy: epsilon is infinite, unless that data was public"
            )
        if any(phase.seeded_noise for phase in phases):
            yield (
                f"the noise {_from_seed('noise_seed', optimizer.noise_seed)}: there is "
                "no privacy against anyone who knows or guesses the seed"
            )
        if any(phase.sampling.seeded for phase in phases):
            source = self.dataset or getattr(self._fitted, "source", None)
            yield (
                f"the sampling {_from_seed('seed', getattr(source, 'seed', None))}: "
                "the amplification holds only against those who do not know it"
            )
        samplings = [phase.sampling for phase in phases] + [self._declared]
        examples = [s.num_examples for s in samplings if s and s.num_examples]
        if examples and self.delta * max(examples) >= 1.0:
            yield (
                f"delta = {self.delta:g} is not below one over the number of examples, "
                f"{max(examples)}: publishing an example at random would satisfy it. "
                "Choose a delta well below"
                f" {1.0 / max(examples):.3g}"
            )
        if self.accountant == "clt":
            yield "the chosen epsilon is an estimate and can lie below the truth"
        if len({phase.noise_multiplier for phase in phases}) > 1:
            yield "the noise multiplier changed between phases of training"
        for phase in phases:
            if phase.sampling.kind == "shuffle":
                poisson = Sampling(
                    "poisson", phase.sampling.batch_size, phase.sampling.num_examples
                )
                alternative = accounting.make_accountant("exact", relation)
                alternative.compose(poisson.event(phase.noise_multiplier), phase.steps)
                yield (
                    "the removed example's place in its batch is taken to stay empty; "
                    "shuffling is charged without amplification. The same steps with "
                    "keras_gdp.PoissonDataset would cost epsilon "
                    f"{alternative.epsilon(self.delta):.4g}"
                )
        if self._declared is not None and not self._is_verified():
            yield (
                "the sampling was declared by the user, and could not be checked where "
                "`fit` did not use a dataset of keras_gdp or plain arrays"
            )

    def _is_verified(self):
        fitted = self._fitted
        if self.dataset is not None or fitted is None:
            return self.dataset is not None
        return not fitted.own_loop and fitted.sampling is not None

    # The callback ------------------------------------------------------------------

    def on_train_begin(self, logs=None):
        self._prepared_at, self._confirmed = None, False
        try:
            self._prepare()
        except (LedgerError, BudgetExceededError):
            # A callback after this one, such as BackupAndRestore, may be about to
            # restore the state. No step is taken before all is checked again.
            if self.optimizer.fitted is None:
                raise

    def on_epoch_begin(self, epoch, logs=None):
        self._confirm()

    def _confirm(self):
        if not self._confirmed:
            self._prepare()
            self._confirmed = True

    def _prepare(self):
        """Checks everything, sets the limit and opens the ledger file."""
        optimizer = self.optimizer
        steps = int(optimizer.private_steps.numpy())
        if self._prepared_at == steps:
            return
        sampling = self._resolve_sampling()
        self._check_ledger_file(steps)
        if optimizer.fitted is not None:
            self._fitted = optimizer.fitted
            if self._write_ledger_file not in self._fitted.at_end:
                self._fitted.at_end.append(self._write_ledger_file)
            optimizer.bind(sampling, sampling.batch_size)
        else:
            self._fitted = self._begin_loop(optimizer, sampling)
            optimizer.bind(Sampling("unknown"), sampling.batch_size)
        self._set_limit(optimizer, sampling, steps)
        self._write_ledger_file()
        self._prepared_at = steps

    def _begin_loop(self, optimizer, sampling):
        """Returns what a training loop of the user's own draws from."""
        dataset = self.dataset
        counted = dataset is not None and not dataset.use_multiprocessing
        return optimizer.begin(
            dataset,
            sampling,
            draws=dataset.draws if counted else None,
            padded=isinstance(dataset, PoissonDataset),
            own_loop=True,
        )

    def _set_limit(self, optimizer, sampling, steps):
        self._limit = None
        if self.epsilon is None:
            return
        remaining = self._affordable_steps(sampling)
        if remaining < 1:
            raise BudgetExceededError(self._exceeded(optimizer, sampling, steps))
        self._limit = steps + remaining
        optimizer.max_private_steps.assign(self._limit)
        if self.verbose:
            print(
                f"PrivacyBudget: at most {remaining} more private steps within "
                f"epsilon={self.epsilon:g} at delta={self.delta:g}."
            )

    def _exceeded(self, optimizer, sampling, steps):
        start = (
            f"The budget epsilon={self.epsilon:g} at delta={self.delta:g} allows no "
            "further step"
        )
        spent = self.spent() if self.events() else 0.0
        if math.isinf(spent):
            return (
                f"{start}: the model was trained without noise or with an optimizer "
                "that gives no privacy, which no budget covers. Go on from the last "
                "file that was saved before that."
            )
        multiplier = optimizer.strategy.effective_noise_multiplier(
            optimizer.noise_multiplier
        )
        composed = self.composed().compose(sampling.event(multiplier), 1)
        unit = "pass over the data" if sampling.kind == "shuffle" else "step"
        advice = (
            "Fit a keras_gdp.PoissonDataset, whose random batches cost less, or train"
            if sampling.kind in ("shuffle", "unknown")
            else "Train"
        )
        return (
            f"{start}: {steps} private steps have spent {spent:.4g} ({self.accountant} "
            f"accountant), and with the next {unit} it would be "
            f"{composed.epsilon(self.delta):.4g}. {advice} with a larger budget, a "
            "larger `noise_multiplier` or a smaller sampling probability."
        )

    def on_train_batch_begin(self, batch, logs=None):
        self._confirm()
        if self._fitted.own_loop:
            # Nothing else says where such a loop ends: only steps between these two
            # calls are taken to come from the dataset.
            self.optimizer.fitted = self._fitted
            self.optimizer.bind(self._fitted.sampling, new_pass=False)

    def on_train_batch_end(self, batch, logs=None):
        optimizer = self.optimizer
        try:
            optimizer.check_served(self._fitted)
        finally:
            if self._fitted.own_loop:
                optimizer.fitted = None
                optimizer.bind(Sampling("unknown"), new_pass=False)
        if time.monotonic() - self._written_at > _SECONDS_BETWEEN_WRITES:
            self._write_ledger_file()
        steps = int(optimizer.private_steps.numpy())
        if self._limit is not None and steps >= self._limit:
            if self.verbose and not self.model.stop_training:
                print(f"\nPrivacyBudget: the budget is spent after {steps} steps.")
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            by_name = {
                name: self._epsilon_or_none(name) for name in ("exact", "rdp", "clt")
            }
            chosen = by_name.get(self.accountant)
            logs["epsilon"] = self.spent() if chosen is None else chosen
            for name, value in by_name.items():
                logs[f"epsilon_{name}"] = math.nan if value is None else value
            mu = self._mu_or_none()
            logs["mu"] = math.nan if mu is None else mu
        self._write_ledger_file()

    def on_train_end(self, logs=None):
        self._write_ledger_file()

    # Checks ------------------------------------------------------------------------

    def _resolve_sampling(self):
        fitted = self.optimizer.fitted
        source = None if fitted is None else fitted.source
        if self._declared is None:
            if fitted is None or fitted.sampling is None:
                raise ValueError(
                    "PrivacyBudget cannot tell how the batches are drawn. Fit a "
                    "PoissonDataset (not a subclass that overrides its drawing), pass "
                    "it as `dataset=` in a loop of your own, or declare `sampling=`, "
                    "`num_examples=` and `batch_size=`."
                )
            return fitted.sampling
        if self.dataset is not None:
            if source is not None and source is not self.dataset:
                raise SamplingMismatchError(
                    f"PrivacyBudget accounts for a {type(self.dataset).__name__}, but "
                    f"`fit` was given {_name(source)}. Fit the same dataset object "
                    "that the callback was given."
                )
            return self._declared
        if isinstance(source, SampledDataset):
            if source.sampling != self._declared:
                raise SamplingMismatchError(
                    f"PrivacyBudget was told: {self._declared.describe()}. But `fit` "
                    f"uses a {type(source).__name__}: {source.sampling.describe()}. "
                    "Pass `dataset=` and leave the declarations out."
                )
            return self._declared
        drawn = None if fitted is None else fitted.sampling
        if drawn is not None and drawn != self._declared:
            raise SamplingMismatchError(
                f"PrivacyBudget was told: {self._declared.describe()}. But `fit` was "
                f"given arrays: {drawn.describe()}. Fit a keras_gdp.PoissonDataset, "
                "or declare what `fit` does."
            )
        return self._declared

    def _affordable_steps(self, sampling):
        optimizer = self.optimizer
        multiplier = optimizer.strategy.effective_noise_multiplier(
            optimizer.noise_multiplier
        )
        history = [
            accounting.SelfComposed(event, count) for event, count in self.events()
        ]
        releases = accounting.max_steps(
            sampling.event(multiplier),
            epsilon=self.epsilon,
            delta=self.delta,
            accountant=self.accountant,
            relation=self._relation(),
            history=history,
        )
        return int(releases) * sampling.steps_per_release

    def _check_ledger_file(self, steps):
        if self.ledger is None:
            return
        content = read_ledger(self.ledger)
        if content is None:
            return
        if content["private_steps"] > steps:
            raise LedgerError(
                f"The ledger {str(self.ledger)!r} records {content['private_steps']} "
                f"private steps, the model only {steps}: its state was lost or is that "
                "of an older checkpoint. Load the newest model; or give a new path if "
                "this is another model, whose cost then adds to the first one's."
            )

    def _write_ledger_file(self):
        self._written_at = time.monotonic()
        if self.ledger is not None:
            write_ledger(
                self.ledger,
                int(self.optimizer.private_steps.numpy()),
                self.events(),
                self.delta,
            )


def _declared_sampling(dataset, num_examples, batch_size, sampling):
    """Returns the `Sampling` that the arguments declare, or `None`."""
    declared = {
        "num_examples": num_examples,
        "batch_size": batch_size,
        "sampling": sampling,
    }
    given = [name for name, value in declared.items() if value is not None]
    if dataset is not None:
        if not isinstance(dataset, SampledDataset):
            raise ValueError(
                "Argument `dataset` must be a keras_gdp.PoissonDataset or "
                f"UniformDataset. Received: {_name(dataset)}. For other data declare "
                "`sampling=`, `num_examples=` and `batch_size=`."
            )
        if given:
            raise ValueError(
                f"Arguments {', '.join(f'`{n}`' for n in given)} cannot be combined "
                "with `dataset`, which states its own sampling. Leave them out."
            )
        if verified_sampling(dataset) is None:
            raise ValueError(
                f"Argument `dataset` is a {type(dataset).__name__}, which overrides "
                "how a keras_gdp dataset draws its batches: its sampling is not "
                "known. Transform examples in the source or in the model instead, or "
                "declare `sampling=`, `num_examples=` and `batch_size=`."
            )
        return dataset.sampling
    if not given:
        return None
    missing = [name for name, value in declared.items() if value is None]
    if missing == ["sampling"]:
        sampling, missing = "shuffle", []
    if missing:
        raise ValueError(
            f"Arguments {', '.join(f'`{n}`' for n in missing)} are missing. The "
            "accounting needs `sampling`, `num_examples` and `batch_size` together, "
            "or a `dataset`."
        )
    _validate.one_of("sampling", sampling, ("poisson", "uniform", "shuffle"))
    return Sampling(sampling, batch_size, num_examples)


def _from_seed(name, seed):
    if seed is None:
        return "of an earlier phase is reproducible from a seed"
    return f"is reproducible from {name}={seed}"


def _name(source):
    return f"an object of type {type(source).__name__}"
