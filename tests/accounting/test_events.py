import json

import pytest

from keras_gdp.accounting import (
    ApproximateDP,
    Composed,
    Event,
    Gaussian,
    Laplace,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
    SelfComposed,
    UniformSampledGaussian,
)

ALL = [
    ApproximateDP(1.0, 1e-6),
    Gaussian(1.0),
    SampledGaussian(1.1, 0.01),
    UniformSampledGaussian(1.0, 10, 100),
    Laplace(2.0),
    SampledLaplace(2.0, 0.5),
    RandomizedResponse(0.5, 3),
    Composed([Gaussian(1.0), SelfComposed(SampledGaussian(0.0, 1.0), 3)]),
    Composed(),
]


@pytest.mark.parametrize("event", ALL, ids=lambda e: type(e).__name__)
def test_json_round_trip(event):
    assert Event.from_dict(json.loads(json.dumps(event.to_dict()))) == event
    assert hash(Event.from_dict(event.to_dict())) == hash(event)


@pytest.mark.parametrize(
    ("build", "word"),
    [
        (lambda: Gaussian(-1.0), "`noise_multiplier`.*start with 1.0"),
        (lambda: Gaussian(float("nan")), "noise_multiplier"),
        (lambda: SampledGaussian(1.0, 1.5), "It is `batch_size / num_examples`"),
        (lambda: UniformSampledGaussian(1.0, 0, 10), "batch_size"),
        (lambda: UniformSampledGaussian(1.0, 11, 10), "num_examples.*smaller"),
        (lambda: SelfComposed(Gaussian(1.0), -1), "`count`.*pass 1 for once"),
        (lambda: RandomizedResponse(0.5, 1), "`num_categories`.*2 for yes and no"),
        (lambda: RandomizedResponse(2.0), "`noise_probability`.*such as 0.25"),
        (lambda: ApproximateDP(1.0, 2.0), "delta"),
        (lambda: Event.from_dict({"type": "Nothing"}), "Nothing.*newer version"),
        (lambda: Event.from_dict({"type": "Gaussian"}), "noise_multiplier.*unchanged"),
        (
            lambda: Event.from_dict({"type": "Gaussian", "noise_multiplier": -1}),
            "noise",
        ),
    ],
)
def test_bad_values_name_the_argument(build, word):
    with pytest.raises(ValueError, match=word):
        build()


def test_events_are_required_where_events_go():
    with pytest.raises(TypeError, match=r"events\[0\].*SelfComposed"):
        Composed([1.0])
    for bad in (None, 3, Gaussian(1.0)):
        with pytest.raises(TypeError, match="`events` must be a list"):
            Composed(bad)
    with pytest.raises(TypeError, match="event"):
        SelfComposed("step", 3)


def test_leaves_count_releases():
    step = Gaussian(1.0)
    tree = SelfComposed(Composed([step, SelfComposed(Laplace(1.0), 5)]), 4)
    assert list(tree.leaves()) == [(step, 4), (Laplace(1.0), 20)]
