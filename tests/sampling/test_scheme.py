import pytest

from keras_gdp import accounting
from keras_gdp.sampling import Sampling


def test_each_kind_states_its_event():
    assert Sampling("poisson", 25, 100).event(1.5) == accounting.SampledGaussian(
        1.5, 0.25
    )
    assert Sampling("uniform", 25, 100).event(1.5) == accounting.UniformSampledGaussian(
        1.5, 25, 100
    )
    for sampling in (Sampling("shuffle", 25, 100), Sampling("unknown")):
        assert sampling.event(1.5) == accounting.Gaussian(1.5)


def test_a_started_pass_over_shuffled_data_is_charged_whole():
    sampling = Sampling("shuffle", 4, 10)
    assert [sampling.releases(s) for s in (0, 1, 3, 4, 6, 9)] == [0, 1, 1, 2, 2, 3]
    assert [Sampling("poisson", 4, 10).releases(s) for s in (0, 1, 9)] == [0, 1, 9]


def test_relation_follows_the_sampling():
    assert Sampling("uniform", 2, 4).relation == "replace_one"
    for kind in ("poisson", "shuffle"):
        assert Sampling(kind, 2, 4).relation == "add_remove"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("cyclic", 2, 4), "sampling"),
        (("poisson", 0, 4), "batch_size"),
        (("poisson", 5, 4), "batch_size"),
        (("uniform", 2.5, 4), "batch_size"),
        (("shuffle", 2, 0), "num_examples"),
        (("poisson", float("nan"), 4), "batch_size"),
    ],
    ids=str,
)
def test_bad_declarations_are_named(arguments, named):
    with pytest.raises((ValueError, TypeError), match=named):
        Sampling(*arguments)
