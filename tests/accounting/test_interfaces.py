"""What surrounds the accountants: import, public names, command line, interop."""

import csv
import io
import json
import subprocess
import sys

import pytest

from keras_gdp import accounting, cli
from keras_gdp.accounting import (
    Composed,
    Event,
    Gaussian,
    Laplace,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
    SelfComposed,
    UniformSampledGaussian,
    make_accountant,
)
from keras_gdp.errors import UnsupportedEventError


def test_import_is_light():
    code = (
        "import time, sys; sys.modules['tensorflow'] = None; t = time.process_time();"
        "import keras_gdp.accounting; t = time.process_time() - t;"
        "assert not any(n.split('.')[0] in ('keras', 'scipy') for n in sys.modules);"
        "print(t)"
    )
    times = [
        float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3)
    ]
    # Half a second on an idle machine; twice that where other tests share the cores.
    assert min(times) < 1.0


def test_public_names_are_sorted_and_exist():
    assert accounting.__all__ == sorted(accounting.__all__)
    assert all(hasattr(accounting, name) for name in accounting.__all__)


@pytest.mark.parametrize("name", ["exact", "rdp", "clt", "moments"])
def test_every_accountant_keeps_the_contract(name):
    step = SampledGaussian(1.0, 0.01)
    one = make_accountant(name).compose(step, 300)
    two = make_accountant(name).compose(SelfComposed(step, 200)).compose(step, 100)
    assert one.epsilon(1e-5) == pytest.approx(two.epsilon(1e-5), rel=1e-12, abs=0.0)
    assert one.delta(one.epsilon(1e-5)) == pytest.approx(1e-5, rel=1e-6, abs=0.0)
    low, high = one.epsilon_bounds(1e-5)
    assert 0 <= low <= high == one.epsilon(1e-5)
    assert "record" in one.assumption
    assert one.copy().events == one.events
    assert make_accountant(name).epsilon(1e-5) == 0.0
    replaced = make_accountant(name, "replace_one").compose(Gaussian(1.0))
    assert replaced.epsilon(1e-5) >= 9.997
    no_noise = make_accountant(name).compose(Gaussian(0.0))
    assert no_noise.epsilon(1e-5) == float("inf")
    with pytest.raises(ValueError, match="`relation`.*one example"):
        make_accountant(name, "neighbours")
    with pytest.raises(TypeError, match="`event`.*Build it"):
        one.compose("step")
    with pytest.raises(ValueError, match="`group_size`.*1 for one"):
        make_accountant(name, group_size=0)
    with pytest.raises(ValueError, match=f"Did you mean {name!r}"):
        make_accountant(name.upper())


def test_upper_bounds_are_ordered():
    run = SelfComposed(SampledGaussian(1.1, 256 / 60000), 14062)
    spent = {n: make_accountant(n).compose(run) for n in ("exact", "rdp", "moments")}
    values = [spent[n].epsilon(1e-5) for n in ("exact", "rdp", "moments")]
    assert values == sorted(values)
    assert all(item.is_upper_bound for item in spent.values())


def test_clt_is_exact_for_plain_gaussians_and_refuses_laplace():
    plain = make_accountant("clt").compose(Gaussian(2.0), 4)
    assert plain.is_upper_bound
    assert plain.mu == pytest.approx(1.0)
    with pytest.raises(UnsupportedEventError, match="Laplace"):
        plain.compose(Laplace(1.0))


def run(capsys, *args):
    code = cli.main(list(args))
    streams = capsys.readouterr()
    return code, streams.out, streams.err


RUN = ("--noise", "1.1", "--batch-size", "256", "--examples", "60000")


def test_cli_epsilon_and_delta(capsys):
    code, out, _ = run(capsys, "epsilon", *RUN, "--steps", "14062", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["epsilon"] == pytest.approx(2.3815969214, abs=1e-9)
    code, out, _ = run(
        capsys, "delta", *RUN, "--steps", "14062", "--epsilon", "2", "--json"
    )
    assert json.loads(out)["delta"] == pytest.approx(1.1904263e-4, rel=1e-6, abs=0.0)


def test_cli_noise_and_steps(capsys):
    code, out, _ = run(
        capsys,
        *("noise", "--epsilon", "1", "--probability", "0.01", "--steps", "500"),
    )
    assert code == 0
    assert "noise_multiplier" in out
    code, out, _ = run(capsys, "steps", *RUN, "--epsilon", "3", "--json")
    assert json.loads(out)["steps"] == 21364


def test_cli_compare_reproduces_the_papers_table(capsys):
    code, out, _ = run(capsys, "compare", "--paper", "--json")
    rows = json.loads(out)["rows"]
    assert code == 0
    # Bu et al. (2020), Table 1: mu, epsilon by CLT and by the moments accountant.
    for row, mu, clt, moments in zip(
        rows,
        (0.23, 0.57, 1.13, 2.00, 2.76, 4.78),
        (0.83, 2.32, 5.07, 9.98, 14.98, 31.12),
        (1.19, 3.01, 7.10, 13.27, 18.72, 32.40),
        strict=True,
    ):
        assert row["mu"] == pytest.approx(mu, abs=0.0051)
        assert row["clt"] == pytest.approx(clt, abs=0.0051)
        assert row["moments"] == pytest.approx(moments, abs=0.06)


def test_cli_tradeoff_writes_csv(capsys, tmp_path):
    pytest.importorskip("keras_gdp.tradeoff")
    code, out, _ = run(capsys, "tradeoff", *RUN, "--steps", "500", "--points", "11")
    rows = list(csv.reader(io.StringIO(out)))
    assert code == 0
    assert rows[0] == ["alpha", "beta"]
    assert len(rows) == 12
    target = tmp_path / "curve.csv"
    code, _, _ = run(capsys, "tradeoff", *RUN, "--steps", "9", "--output", str(target))
    assert code == 0
    assert target.read_text().startswith("alpha,beta")


@pytest.mark.parametrize(
    "args",
    [
        ("epsilon", *RUN),
        ("epsilon", "--noise", "-1", "--probability", "0.1", "--steps", "5"),
        ("epsilon", *RUN, "--steps", "5", "--delta", "2"),
        ("epsilon", "--noise", "1", "--batch-size", "9", "--examples", "5"),
        ("nothing",),
        ("compare",),
        ("epsilon", "--noise", "1", "--probability", ".1", "--epochs", "inf"),
        ("epsilon", "--noise", "1", "--probability", ".1", "--epochs", "1e308"),
    ],
)
def test_cli_refuses_bad_arguments_without_traceback(capsys, args):
    code, _, err = run(capsys, *args)
    assert code == 2
    assert err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("args", "advice"),
    [
        (("epsilon", "--noise", "1", "--batch-size", "9", "--examples", "5"), "order"),
        (("tradeoff", *RUN, "--steps", "5", "--points", "1"), "out for 101"),
        (("tradeoff", *RUN, "--steps", "5", "--output", "a.pdf"), "to print the CSV"),
        (("epsilon", *RUN, "--steps", "5", "--delta", "2"), "1e-5 is common"),
        (("epsilon", *RUN, "--epochs", "-1"), "Give --steps instead"),
    ],
)
def test_cli_says_what_to_do(capsys, args, advice):
    code, _, err = run(capsys, *args)
    assert code == 2
    assert advice in err


@pytest.mark.parametrize(
    ("epsilon", "probability"), [("1e-30", "0.5"), ("1e-320", "1"), ("1e-320", "0.01")]
)
def test_cli_says_when_there_is_no_answer(capsys, epsilon, probability):
    code, _, err = run(
        capsys,
        *("noise", "--epsilon", epsilon, "--delta", "1e-300"),
        *("--probability", probability, "--steps", "1000000000"),
    )
    assert code == 1
    assert "epsilon" in err


def test_dp_accounting_round_trip():
    pytest.importorskip("dp_accounting")
    for event in (
        Gaussian(1.0),
        SampledGaussian(1.1, 0.01),
        UniformSampledGaussian(1.0, 10, 100),
        Laplace(2.0),
        SampledLaplace(2.0, 0.5),
        RandomizedResponse(0.5, 3),
        Composed([Gaussian(1.0), SelfComposed(SampledGaussian(1.0, 0.2), 3)]),
    ):
        assert Event.from_dp_event(event.to_dp_event()) == event


def test_epsilon_agrees_with_dp_accounting():
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    step = SelfComposed(SampledGaussian(1.0, 0.01), 200)
    theirs = PLDAccountant(value_discretization_interval=1e-4)
    theirs.compose(step.to_dp_event())
    ours = make_accountant().compose(step).epsilon(1e-5)
    assert isinstance(step.to_dp_event(), dp.SelfComposedDpEvent)
    assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-3, abs=0.0)
    assert ours <= theirs.get_epsilon(1e-5)
