"""Time and error per epsilon query: keras_gdp against dp-accounting and prv-accountant.

    python benchmarks/accounting.py [--output docs/accounting_benchmark.md]

The truth is `eps_point` of tests/reference/accounting.json (inversion of the exact
characteristic function, computed independently). The other two packages are optional;
a column says "-" where one is missing or gives up. Times are the best of `--repeats`
runs in one process, composing included. Ours are three: the first query of an event;
one for another number of steps of the same event, as in a training loop; and one for
another delta of the same composition. A second table compares all three with
dp-accounting over a grid of settings.
"""

import argparse
import itertools
import json
import statistics
import time
import warnings
from pathlib import Path

from keras_gdp.accounting import ExactAccountant, SampledGaussian, noise_multiplier_for
from keras_gdp.accounting.exact.composition import directions
from keras_gdp.accounting.exact.pairs import dominating_pair

KINDS = ("first", "other steps", "other delta")
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
GRID = ((0.001, 0.01, 0.1, 0.5), (100, 1000, 10_000), (0.5, 1.0, 2.0, 8.0))


def timed(function, repeats):
    best, value = float("inf"), None
    for _ in range(repeats):
        start = time.perf_counter()
        value = function()
        best = min(best, time.perf_counter() - start)
    return value, best


def ours(sigma, p, steps, delta, kind):
    if kind == "first":
        dominating_pair.cache_clear()
        directions.cache_clear()
    elif kind == "other steps":
        steps += next(QUERIES)
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


def times_of_ours(run, repeats):
    """Seconds for each kind of query, and the epsilon of the first."""
    first, *others = (attempt(ours, repeats, *run, kind) for kind in KINDS)
    return first[0], [first[1], *(seconds for _, seconds in others)]


def ratio_lines(repeats):
    """How many times as long dp-accounting takes over the grid."""
    ratios = {kind: [] for kind in KINDS}
    for p, steps, sigma in itertools.product(*GRID):
        peer = attempt(dp_accounting_epsilon, 1, sigma, p, steps, 1e-6)
        if peer is None:
            return ["", "dp-accounting is not installed."]
        _, seconds = times_of_ours((sigma, p, steps, 1e-6), repeats)
        for kind, own in zip(KINDS, seconds, strict=True):
            ratios[kind].append(peer[1] / own)
    lines = ["", "| query | least | median | settings below 20 |", "|---|---|---|---|"]
    for kind, found in ratios.items():
        below = f"{sum(ratio < 20.0 for ratio in found)} of {len(found)}"
        median = statistics.median(found)
        lines.append(f"| {kind} | {min(found):.2g} | {median:.0f} | {below} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    cases = {case["id"]: case for case in json.loads(CASES.read_text())["cases"]}
    names = " | ".join(f"{kind} ms" for kind in KINDS)
    lines = [
        f"| p, sigma, steps | epsilon at 1e-5 | {names} | rel. error "
        "| dp-accounting ms | rel. error | prv-accountant ms | rel. error |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in NAMES:
        phase, truth = cases[name]["phases"][0], cases[name]["eps_point"]["1e-5"]
        run = (phase["sigma"], phase["p"], phase["steps"], 1e-5)
        epsilon, seconds = times_of_ours(run, arguments.repeats)
        pld = cell(attempt(dp_accounting_epsilon, 1, *run), truth)
        prv = cell(attempt(prv_epsilon, 1, *run), truth)
        row = [f"{phase['p']:.3g}, {phase['sigma']}, {phase['steps']}", f"{truth:.6g}"]
        row += [f"{1e3 * value:.2g}" for value in seconds]
        row.append(f"{epsilon / truth - 1.0:+.1e}")
        lines.append("| " + " | ".join([*row, *pld, *prv]) + " |")
    lines += ratio_lines(arguments.repeats)
    _, seconds = timed(
        lambda: noise_multiplier_for(
            1.0, 1e-5, sampling_probability=256 / 60000, steps=3516 + next(QUERIES)
        ),
        arguments.repeats,
    )
    lines.append("")
    own = f"{1e3 * seconds:.0f} ms"
    lines.append(f"Noise for (1, 1e-5) over some 3516 steps at p = 0.00427: {own}.")
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.output:
        arguments.output.write_text(text)


if __name__ == "__main__":
    main()
