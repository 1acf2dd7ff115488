"""delta by Laplace inversion of the cumulant function along a vertical line.

    delta(epsilon) = (1 / 2 pi i) int_{Re s = c} exp(K(s) - s epsilon) / (s (s+1)) ds

for any c > 0 in the strip where K is finite (plus the mass of infinite loss).
Trapezoid sums with step h are not merely accurate: by Poisson's summation formula

    sum_h(epsilon) = sum over all integers j of exp(c j Y) delta(epsilon + j Y),

with Y = 2 pi/h, so their error is a sum of positive images that is bounded by
delta <= 1 on the left and by Chernoff's bound on the right. The step is chosen to
make it negligible *relative to delta*, and it is added to the bounds, with the
remainder of the truncated sum and the rounding of K.
"""

import math
from typing import NamedTuple

import numpy as np

from keras_gdp.accounting.exact.composition import Cumulant
from keras_gdp.accounting.exact.moments import QuadratureTooLargeError
from keras_gdp.accounting.exact.privacy_loss import SETTLED
from keras_gdp.accounting.exact.saddle import Saddle, log_kappa, saddle_at
from keras_gdp.accounting.exact.waves import ComplexArray

__all__ = [
    "FEW_NODES",
    "GOOD_ERROR",
    "MOST_NODES",
    "Contour",
    "ContourDoesNotConverge",
    "refined_contour",
]

GOOD_ERROR = 5e-10  # relative, of delta: better is not looked for
_POOR_ERROR = 1e-2

_TOLERANCE = 1e-13
FEW_NODES, MOST_NODES = 600, 32000  # tried at first, and at last
_LOOKS = (FEW_NODES, 1000, 2000, 4000, 8000, 16000, MOST_NODES)
_BETWEEN = 1.7  # how much larger it may be between two looks
_MANY = 600  # nodes, and a quarter of the few
_IMAGES = (1.03, 1.08, 1.2, 1.45, 2.0, 3.0)
_ABSCISSAS = (0.97, 0.93, 0.88, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
_DETOUR, _ASTRAY = 3.0, 25.0  # spacings, in what small jumps need
_UNIT, _TURNED = 2.0**-53, 16.0  # rounding of what K differs by along the line
_SAFETY = 2.0  # in the rounding that losses tell of
_DISAGREE = 1e-6  # |exp K| is largest on the real axis
_SPARE = 6.0  # logarithm of the accuracy that a smaller abscissa may cost,
_AMPLIFIED = 1e-11  # and what rounding may become by it


class ContourDoesNotConverge(Exception):
    """The integrand decays too slowly: use the grid path."""


class Value(NamedTuple):
    """log of a value, its derivative in epsilon, and its relative error."""

    log_value: float
    slope: float
    error: float

    @property
    def interval(self) -> tuple[float, float]:
        """Bounds on the log of the value, for an error below 1."""
        low, high = math.log1p(-self.error), math.log1p(self.error)
        return self.log_value + low, self.log_value + high


class Contour:
    """The integrand on one vertical line, good for epsilons around one.

    Args:
        composition: One direction of a composition, or a part of it.
        saddle: Where the line crosses the real axis.
        log_whole: A rough log of the delta that this is a part of, if it is: smaller
            parts need not be as accurate.
        most: How many nodes there may be.

    Raises:
        ContourDoesNotConverge: If the integrand does not decay within so many nodes.
    """

    def __init__(
        self,
        composition: Cumulant,
        saddle: Saddle,
        log_whole: float = -math.inf,
        most: int = MOST_NODES,
    ) -> None:
        if not composition.smooth:
            raise ContourDoesNotConverge  # atoms only: the integrand returns for ever
        self._composition, self._most = composition, most
        self._mass = composition.log_mass
        self._partial = log_whole > -math.inf
        self._spare = max(log_whole - saddle.log_delta, 0.0)
        budget = math.log(_TOLERANCE) + saddle.log_delta + self._spare - 1.0
        orders = [saddle.c * factor for factor in _IMAGES]
        self._far = [(order, composition.real(order)[0]) for order in orders]
        lines = [self._line_at(saddle.c, saddle.epsilon, budget)]
        if most <= FEW_NODES and lines[0][0] * saddle.c > -_ASTRAY * budget:
            raise ContourDoesNotConverge
        if lines[0][0] * saddle.c > -_DETOUR * budget:
            # Far jumps rule K just right of the saddle: images die out sooner from a
            # smaller abscissa, which costs only digits that are not needed.
            least = lines[0][2] - saddle.c * saddle.epsilon
            spare = math.log(_AMPLIFIED / composition.rounding(saddle.c))
            for factor in _ABSCISSAS:
                self._far.append(lines[-1][1:])  # right of the next one
                line = self._line_at(factor * saddle.c, saddle.epsilon, budget)
                if line[2] - line[1] * saddle.epsilon - least > min(spare, _SPARE):
                    break
                lines.append(line)
        spacing, c, self._k = min(lines)
        self._far = [(order, k) for order, k in self._far if order > c]
        self._spacing = 1.1 * spacing  # room for a neighbouring epsilon
        self.saddle = saddle if c == saddle.c else saddle_at(composition, c, saddle)
        try:
            self._collect()
        except QuadratureTooLargeError:
            raise ContourDoesNotConverge from None

    def _line_at(
        self, c: float, epsilon: float, budget: float
    ) -> tuple[float, float, float]:
        """The spacing Y that pushes all images from c below exp(budget); c and K."""
        k = self._composition.real(c)[0]
        right = min(
            (value - other * epsilon + log_kappa(other) - budget) / (other - c)
            for other, value in self._far
        )
        return max((self._mass - budget) / c, right), c, k

    def _collect(self) -> None:
        """Evaluates the integrand in blocks until its remainder is negligible."""
        c, composition = self.saddle.c, self._composition
        self._step = step = 2.0 * math.pi / self._spacing
        guess = 9.0 / math.sqrt(self.saddle.curvature) / step
        floor = _TOLERANCE * math.exp(self._spare)
        floor /= math.sqrt(self.saddle.curvature) * c * (c + 1.0)
        least = 2.0 * composition.lasting(c) / (step * self._most)
        if guess > self._most or least > floor:
            raise ContourDoesNotConverge
        start, size = 0, min(max(int(guess), 24), 256)
        first, early = size, min(_MANY, self._most // 4)
        blocks = []
        while True:
            cumulants, decay = composition.line(c, step, start, size)
            cumulants -= self._k
            if cumulants.real.max() > _DISAGREE:
                raise ContourDoesNotConverge  # beyond what the quadrature can do
            blocks.append(cumulants)
            start += size
            largest = float(decay[-max(4, size // 4) :].max())
            self._remainder = self._beyond(step * (start - 1), largest, floor)
            if self._remainder <= floor:
                break
            before_many = start - size <= early < start
            if start > self._most or (before_many and not self._ends(floor)):
                raise ContourDoesNotConverge
            size = max(48, start)
        self._add_up(np.concatenate(blocks), first)

    def _beyond(self, tau: float, largest: float, floor: float) -> float:
        """The integral beyond a frequency, given the largest |exp K| / exp K(c) there.

        At most that times the integral of 1/|s|^2.
        """
        if 2.0 * largest / tau <= floor:
            largest = max(largest, self._returning(tau))
        return 2.0 * largest / tau

    def _ends(self, floor: float) -> bool:
        """Whether the integral beyond any number of nodes that may be is negligible."""
        c, step = self.saddle.c, self._step
        for many in _LOOKS:
            if many <= self._most:
                _, decay = self._composition.line(c, step, many, 1)
                if 2.0 * float(decay[0]) / (step * many) <= floor:
                    return True
        return False

    def _add_up(self, cumulants: ComplexArray, first: int) -> None:
        """Terms of the sum and their rounding, of which the first nodes have their own.

        Args:
            cumulants: K less its value at the abscissa.
            first: Size of the first block, which has most of the sum.
        """
        c, step, rounding = self.saddle.c, self._step, self._composition.rounding
        self._tau = step * np.arange(cumulants.size)
        s = c + 1j * self._tau
        self._terms = np.exp(cumulants) / (s * (s + 1.0))
        self._terms[0] *= 0.5
        weights = np.abs(self._terms)
        self._sizes = float(weights.sum())
        weights /= self._sizes
        self._turn = float(weights @ self._tau)
        self._rounding = _TURNED * _UNIT * float(weights @ np.abs(cumulants))
        share = float(weights[:first].sum())
        self._rounding += share * _SAFETY * rounding(c, step * first)
        if first < self.size:
            self._rounding += (1.0 - share) * _SAFETY * rounding(c, step * self.size)

    def _returning(self, tau: float) -> float:
        """What |exp K| / exp K(c) comes back to beyond a frequency.

        Where jumps of about one size make up the loss, |exp K| falls far down and rises
        again, at about 2 pi over that size, until their spread makes an end of it. The
        peaks are not narrower than the one at frequency 0.
        """
        composition, c = self._composition, self.saddle.c
        step = 2.0 / math.sqrt(composition.real(c)[2])
        start = int(tau / step) + 1
        # They fall like a normal density: sooner to what a small part need not beat.
        last = composition.settled * math.sqrt(max(1.0 - self._spare / SETTLED, 0.0))
        count = math.ceil(last / step) + 1 - start
        if count <= 0:
            return 0.0
        if count > MOST_NODES:
            raise ContourDoesNotConverge
        _, decay = composition.line(c, step, start, count)
        return _BETWEEN * float(decay.max())

    @property
    def size(self) -> int:
        """Number of nodes."""
        return int(self._tau.size)

    def most(self, epsilon: float) -> float:
        """Log of Chernoff's bound on the line."""
        c = self.saddle.c
        return self._k - c * epsilon + log_kappa(c)

    def value(self, epsilon: float) -> Value:
        """Log delta without the infinite mass, slope, relative error."""
        c = self.saddle.c
        turned = self._terms * np.exp(-1j * self._tau * epsilon)
        total = float(turned.sum().real)
        slope = float(((c + 1j * self._tau) * turned).sum().real)
        scale = self._k - c * epsilon
        right = min(
            k - other * epsilon + log_kappa(other) + (c - other) * self._spacing
            for other, k in self._far
        )
        left = self._mass - c * self._spacing
        unit = self._step / math.pi
        size = abs(math.log(total * unit)) if total * unit > 0.0 else 0.0
        rounding = 8.0 + abs(scale) + size + abs(self._k) + abs(c * epsilon)
        rounding = _UNIT * (4.0 * rounding + self._turn * abs(epsilon))
        error = (rounding + self._rounding) * self._sizes
        error += self._remainder / self._step
        for image in (left, right):  # the further ones shrink geometrically
            error += 2.0 * math.exp(min(image - scale, 700.0)) / unit
        if not total * unit > 0.0:
            if not self._partial or not error * unit > 0.0:
                raise ContourDoesNotConverge
            # A part that the whole does not notice: between 0 and twice the error.
            return Value(scale + math.log(error * unit), -c, 1.0)
        log_value = scale + math.log(total * unit)
        return Value(log_value, -slope / total, error / total)


def refined_contour(
    composition: Cumulant, saddle: Saddle, most: int = MOST_NODES
) -> Contour:
    """The contour, made again if the rough log delta misled it."""
    found = Contour(composition, saddle, most=most)
    value, _, error = found.value(saddle.epsilon)
    misled = abs(value - saddle.log_delta) > 0.5
    if misled and GOOD_ERROR < error < _POOR_ERROR:
        better = Contour(composition, saddle._replace(log_delta=value), most=most)
        if better.value(saddle.epsilon).error < error:
            return better
    return found
