"""The command line `keras-gdp`: the accounting functions for a terminal.

```
keras-gdp epsilon --noise 1.1 --probability 0.00427 --steps 14062 --delta 1e-5
keras-gdp noise --epsilon 3 --delta 1e-5 --batch-size 256 --examples 60000 --epochs 60
keras-gdp compare --paper
```

Exit codes: 0 success, 1 no answer exists (budget unreachable), 2 bad arguments.
"""

import argparse
import csv
import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from keras_gdp.errors import PrivacyError

__all__ = ["main"]

_ACCOUNTANTS = ("exact", "rdp", "clt", "moments")

# Bu et al. (2020), Table 1: noise multiplier and epochs on MNIST, batch 256 of 60000.
_PAPER = ((1.3, 15), (1.1, 60), (0.7, 45), (0.6, 62), (0.55, 68), (0.5, 100))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="keras-gdp",
        description="Privacy accounting for DP-SGD: what a run costs, what a budget "
        "allows. Noise is the noise multiplier: standard deviation over the clip norm.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("--json", action="store_true", help="print JSON")
        made.add_argument(
            "--relation",
            choices=("add_remove", "replace_one"),
            default="add_remove",
            help="when two data sets are neighbours (default: %(default)s)",
        )
        return made

    def noise_option(made: argparse.ArgumentParser, *, required: bool) -> None:
        made.add_argument(
            "--noise",
            type=float,
            required=required,
            help="noise multiplier: standard deviation of the noise over the clip norm",
        )

    def delta_option(made: argparse.ArgumentParser) -> None:
        made.add_argument(
            "--delta",
            type=float,
            default=1e-5,
            help="additive part of the guarantee, well below 1 / examples (default: "
            "%(default)s)",
        )

    def budget_option(made: argparse.ArgumentParser) -> None:
        made.add_argument(
            "--epsilon",
            type=float,
            required=True,
            help="multiplicative part of the guarantee",
        )

    def run_options(
        made: argparse.ArgumentParser, *, noise: bool = True, steps: bool = True
    ) -> None:
        made.add_argument("--probability", type=float, help="sampling probability")
        made.add_argument("--batch-size", type=int, help="expected batch size")
        made.add_argument("--examples", type=int, help="number of training examples")
        if noise:
            noise_option(made, required=True)
        if steps:
            made.add_argument("--steps", type=int, help="number of noised updates")
            made.add_argument("--epochs", type=float, help="instead of --steps")

    def accountant_option(made: argparse.ArgumentParser) -> None:
        made.add_argument(
            "--accountant",
            choices=_ACCOUNTANTS,
            default="exact",
            help="how losses are composed; clt is an estimate, the others are bounds "
            "(default: %(default)s)",
        )

    made = command("epsilon", "Epsilon of a run at a given delta.")
    run_options(made)
    delta_option(made)
    accountant_option(made)
    made = command("delta", "Delta of a run at a given epsilon.")
    run_options(made)
    budget_option(made)
    accountant_option(made)
    made = command("noise", "Smallest noise multiplier for a budget.")
    run_options(made, noise=False)
    budget_option(made)
    delta_option(made)
    accountant_option(made)
    made = command("steps", "Largest number of steps for a budget.")
    run_options(made, steps=False)
    budget_option(made)
    delta_option(made)
    accountant_option(made)
    made = command("compare", "All accountants side by side.")
    run_options(made, noise=False)
    noise_option(made, required=False)
    delta_option(made)
    made.add_argument(
        "--paper", action="store_true", help="the MNIST rows of Bu et al."
    )
    made = command("tradeoff", "Trade-off function of a run, as CSV or PNG.")
    run_options(made)
    made.add_argument("--points", type=int, default=101, help="rows of the CSV")
    made.add_argument("--output", help="file ending in .csv or .png (default: stdout)")
    accountant_option(made)
    return parser


def _probability(args: argparse.Namespace) -> float:
    if args.probability is not None:
        if args.batch_size is not None or args.examples is not None:
            raise ValueError(
                "Give either --probability, or --batch-size and --examples."
            )
        return float(args.probability)
    if args.batch_size is None or args.examples is None:
        raise ValueError("Give --probability, or both --batch-size and --examples.")
    if not 0 < args.batch_size <= args.examples:
        raise ValueError(
            "--batch-size must be between 1 and --examples. Received: "
            f"{args.batch_size} of {args.examples}. Check their order."
        )
    return float(args.batch_size) / float(args.examples)


def _steps(args: argparse.Namespace, probability: float) -> int:
    if (args.steps is None) == (args.epochs is None):
        raise ValueError("Give either --steps or --epochs.")
    if args.steps is not None:
        return int(args.steps)
    if not args.epochs > 0 or probability <= 0 or args.epochs / probability == math.inf:
        raise ValueError(
            "--epochs must be > 0 and finite, with a sampling probability > 0. "
            f"Received: {args.epochs}. Give --steps instead where there is no pass."
        )
    # An epoch is num_examples drawn in expectation.
    return math.ceil(args.epochs / probability - 1e-9)


def _run(args: argparse.Namespace) -> tuple[float, int, Any]:
    from keras_gdp.accounting import SampledGaussian

    probability = _probability(args)
    steps = _steps(args, probability)
    return probability, steps, SampledGaussian(args.noise, probability)


def _accountant(args: argparse.Namespace) -> Any:
    from keras_gdp.accounting import make_accountant

    _, steps, event = _run(args)
    made = make_accountant(args.accountant, args.relation)
    return made.compose(event, steps), steps


def _epsilon(args: argparse.Namespace) -> dict[str, Any]:
    spent, steps = _accountant(args)
    low, high = spent.epsilon_bounds(args.delta)
    return {
        "epsilon": high,
        "lower": low,
        "delta": args.delta,
        "steps": steps,
        "accountant": args.accountant,
        "assumption": spent.assumption,
    }


def _delta(args: argparse.Namespace) -> dict[str, Any]:
    spent, steps = _accountant(args)
    low, high = spent.delta_bounds(args.epsilon)
    return {
        "delta": high,
        "lower": low,
        "epsilon": args.epsilon,
        "steps": steps,
        "accountant": args.accountant,
        "assumption": spent.assumption,
    }


def _noise(args: argparse.Namespace) -> dict[str, Any]:
    from keras_gdp.accounting import noise_multiplier_for

    probability = _probability(args)
    steps = _steps(args, probability)
    noise = noise_multiplier_for(
        args.epsilon,
        args.delta,
        sampling_probability=probability,
        steps=steps,
        accountant=args.accountant,
        relation=args.relation,
    )
    return {"noise_multiplier": noise, "steps": steps, "accountant": args.accountant}


def _count(args: argparse.Namespace) -> dict[str, Any]:
    from keras_gdp.accounting import steps_for

    probability = _probability(args)
    steps = steps_for(
        args.epsilon,
        args.delta,
        noise_multiplier=args.noise,
        sampling_probability=probability,
        accountant=args.accountant,
        relation=args.relation,
    )
    return {
        "steps": steps,
        "epochs": steps * probability,
        "accountant": args.accountant,
    }


def _row(event: Any, steps: int, delta: float, relation: str) -> dict[str, Any]:
    from keras_gdp.accounting import CLTAccountant, make_accountant

    row: dict[str, Any] = {
        "noise_multiplier": event.noise_multiplier,
        "sampling_probability": event.sampling_probability,
        "steps": steps,
        "delta": delta,
        "mu": CLTAccountant(relation).compose(event, steps).mu,
    }
    for name in _ACCOUNTANTS:
        spent = make_accountant(name, relation).compose(event, steps)
        row[name] = spent.epsilon(delta)
    return row


def _compare(args: argparse.Namespace) -> dict[str, Any]:
    from keras_gdp.accounting import SampledGaussian

    if args.paper:
        p = 256 / 60000
        rows = [
            _row(SampledGaussian(s, p), int(e * 60000 / 256), args.delta, args.relation)
            for s, e in _PAPER
        ]
    else:
        if args.noise is None:
            raise ValueError("Give --noise, or --paper for the table of the paper.")
        _, steps, event = _run(args)
        rows = [_row(event, steps, args.delta, args.relation)]
    return {
        "rows": rows,
        "note": "exact, rdp, moments: upper bounds; clt: an estimate, not a guarantee",
    }


def _tradeoff(args: argparse.Namespace) -> dict[str, Any] | None:
    import numpy as np

    spent, _ = _accountant(args)
    curve = spent.trade_off()
    target = args.output or ""
    if target.endswith(".png"):
        try:
            import matplotlib
        except ImportError:
            raise ValueError(
                "A PNG needs matplotlib: pip install keras_gdp[plots], or write a .csv."
            ) from None
        matplotlib.use("Agg")
        axes = curve.plot()
        axes.figure.savefig(target, dpi=150)
        return {"written": target}
    if target and not target.endswith(".csv"):
        raise ValueError(
            f"--output must end in .csv or .png. Received: {target}. "
            "Leave it out to print the CSV."
        )
    if args.points < 2:
        raise ValueError(
            f"--points must be at least 2. Received: {args.points}. "
            "Leave it out for 101."
        )
    alphas = np.linspace(0.0, 1.0, args.points)
    betas = np.asarray(curve(alphas))
    if args.json and not target:
        return {"alpha": alphas.tolist(), "beta": betas.tolist()}
    stream = open(target, "w", newline="") if target else sys.stdout
    try:
        writer = csv.writer(stream)
        writer.writerow(["alpha", "beta"])
        writer.writerows(zip(alphas.tolist(), betas.tolist(), strict=True))
    finally:
        if target:
            stream.close()
    return {"written": target} if target else None


_COMMANDS = {
    "epsilon": _epsilon,
    "delta": _delta,
    "noise": _noise,
    "steps": _count,
    "compare": _compare,
    "tradeoff": _tradeoff,
}


def _text(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _print(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(_finite(answer), indent=2))
        return
    if "rows" in answer:
        columns = list(answer["rows"][0])
        table = [columns]
        for row in answer["rows"]:
            table.append(
                [f"{v:.5g}" if isinstance(v, float) else str(v) for v in row.values()]
            )
        widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
        for line in table:
            cells = (c.rjust(w) for c, w in zip(line, widths, strict=True))
            print("  ".join(cells))
        print(answer["note"])
        return
    for key, value in answer.items():
        print(f"{key}: {_text(value)}")


def _finite(value: Any) -> Any:
    """JSON has no infinity: written as the string "inf"."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: Arguments without the program's name; None for the process's own.

    Returns:
        The exit code: 0 success, 1 no answer exists, 2 bad arguments.
    """
    try:
        args = _parser().parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        answer = _COMMANDS[args.command](args)
        if answer is not None:
            _print(answer, args.json)
    except PrivacyError as error:
        print(f"keras-gdp: {error}", file=sys.stderr)
        return 1
    except (ValueError, TypeError, OSError) as error:
        print(f"keras-gdp: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
