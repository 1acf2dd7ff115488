"""Time and error per epsilon query: keras_gdp against dp-accounting and prv-accountant.

    python benchmarks/accounting.py [--output docs/accounting_benchmark.md]

The truth is `eps_point` of tests/reference/accounting.json (inversion of the exact
characteristic function, computed independently). The other two packages are optional;
a column says "-" where one is missing or gives up. Times are the best of `--repeats`
runs in one process, composing included; "warm" is ours with the quadrature nodes of
the same event already built, as in a training loop, asking for another delta each
time.
"""

import argparse
import itertools
import json
import time
import warnings
from pathlib import Path

from keras_gdp.accounting import ExactAccountant, SampledGaussian, noise_multiplier_for
from keras_gdp.accounting.exact.pairs import dominating_pair

QUERIES = itertools.count(1)
CASES = Path(__file__).parents[1] / "tests" / "reference" / "accounting.json"
NAMES = (
    "mnist-s1.1-e60",
    "mnist-s0.6-e62",
    "mnist-s0.5-e100",
    "p0.1-s1.0-T100",
    "p0.01-s1.0-T1000",
    "p0.01-s0.8-T10000",
    "p0.001-s1.0-T100000",
    "p0.01-s10-T100000",
    "p0.01-s2-T1000",
    "p0.001-s2-T100000",
    "p0.001-s10-T1000",
)


def timed(function, repeats):
    best, value = float("inf"), None
    for _ in range(repeats):
        start = time.perf_counter()
        value = function()
        best = min(best, time.perf_counter() - start)
    return value, best


def ours(sigma, p, steps, delta, cold):
    if cold:
        dominating_pair.cache_clear()
    else:
        delta *= 1.0 + 1e-3 * next(QUERIES)
    run = ExactAccountant().compose(SampledGaussian(sigma, p), steps)
    return run.epsilon(delta)


def dp_accounting_epsilon(sigma, p, steps, delta):
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    step = dp_accounting.PoissonSampledDpEvent(p, dp_accounting.GaussianDpEvent(sigma))
    accountant.compose(dp_accounting.SelfComposedDpEvent(step, steps))
    return accountant.get_epsilon(delta)


def prv_epsilon(sigma, p, steps, delta):
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    mechanism = PoissonSubsampledGaussianMechanism(
        noise_multiplier=sigma, sampling_probability=p
    )
    accountant = PRVAccountant(
        prvs=mechanism, max_self_compositions=steps, eps_error=0.01, delta_error=1e-9
    )
    return accountant.compute_epsilon(delta=delta, num_self_compositions=[steps])[2]


def attempt(function, repeats, *arguments):
    try:
        return timed(lambda: function(*arguments), repeats)
    except ImportError:
        return None
    except Exception as error:  # a peer that gives up is a result
        warnings.warn(f"{function.__name__}{arguments}: {error!r}", stacklevel=1)
        return None


def cell(result, truth):
    if result is None:
        return "-", "-"
    value, seconds = result
    return f"{1e3 * seconds:.1f}", f"{value / truth - 1.0:+.1e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    cases = {case["id"]: case for case in json.loads(CASES.read_text())["cases"]}
    lines = [
        "| p, sigma, steps | epsilon at 1e-5 | ours cold ms | ours warm ms "
        "| rel. error | dp-accounting ms | rel. error | prv-accountant ms "
        "| rel. error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in NAMES:
        phase, truth = cases[name]["phases"][0], cases[name]["eps_point"]["1e-5"]
        run = (phase["sigma"], phase["p"], phase["steps"], 1e-5)
        cold = attempt(ours, arguments.repeats, *run, True)
        warm = attempt(ours, 4 * arguments.repeats, *run, False)
        pld = cell(attempt(dp_accounting_epsilon, 1, *run), truth)
        prv = cell(attempt(prv_epsilon, 1, *run), truth)
        label = f"{phase['p']:.3g}, {phase['sigma']}, {phase['steps']}"
        milliseconds, error = cell(cold, truth)
        row = [label, f"{truth:.6g}", milliseconds, cell(warm, truth)[0], error]
        lines.append("| " + " | ".join([*row, *pld, *prv]) + " |")
    _, seconds = timed(
        lambda: noise_multiplier_for(
            1.0, 1e-5, sampling_probability=256 / 60000, steps=3516
        ),
        arguments.repeats,
    )
    lines.append("")
    lines.append(f"Noise for (1, 1e-5) over 3516 steps: {1e3 * seconds:.0f} ms.")
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.output:
        arguments.output.write_text(text)


if __name__ == "__main__":
    main()
