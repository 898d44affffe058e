"""Student's t: which share of errors stays below a value, and below which value a share stays?

A skewed t has the same density, stretched by its skew above zero and pressed by it below.

Source: C. Fernandez, M. Steel, "On Bayesian modeling of fat tails and skewness", J. Am. Stat.
Assoc. 93, 1998, equation 1.
"""

from __future__ import annotations

import math
from functools import cache

_BISECTIONS = 60
_MOST_TERMS = 400
_PRECISION = 1e-15


def students_t_share(value: float, freedom: float) -> float:
    """Distribution function, 0 to 1.

    Args:
        value: In units of the scale.
        freedom: Degrees of freedom, above 0; need not be whole.

    Source: NIST Digital Library of Mathematical Functions, 8.17.22 (the continued fraction of the
    incomplete beta function); M. Abramowitz, I. A. Stegun, Handbook of Mathematical Functions,
    26.7.1.
    """
    if math.isinf(value):
        return float(value > 0)
    total = freedom + value * value
    beyond = _incomplete_beta(freedom / 2, 0.5, freedom / total, value * value / total) / 2
    return 1 - beyond if value > 0 else beyond


def skewed_t_share(value: float, freedom: float, skew: float) -> float:
    """Distribution function of a skewed t, 0 to 1; a skew of 1 is none."""
    whole = 1 + skew**2
    if value < 0:
        return 2 * students_t_share(value * skew, freedom) / whole
    return 1 - 2 * skew**2 * students_t_share(-value / skew, freedom) / whole


def skewed_t_quantile(probability: float, freedom: float, skew: float) -> float:
    """Where that function reaches a probability between 0 and 1."""
    whole = 1 + skew**2
    if probability * whole < 1:
        return students_t_quantile(probability * whole / 2, freedom) / skew
    beyond = (1 - probability) * whole / (2 * skew**2)
    return -skew * students_t_quantile(beyond, freedom)


@cache
def students_t_quantile(probability: float, freedom: float) -> float:
    """Where the distribution function reaches a probability between 0 and 1."""
    low, high = -1.0, 1.0
    while students_t_share(high, freedom) < probability:
        high *= 2
    while students_t_share(low, freedom) > probability:
        low *= 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_below = students_t_share(middle, freedom) < probability
        low, high = (middle, high) if is_below else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """The regularised incomplete beta function of 0 <= x <= 1, where the rest is 1 - x."""
    if x == 0.0 or rest == 0.0:
        return float(rest == 0.0)
    if x > (a + 1) / (a + b + 2):  # where the fraction of the other tail converges faster
        return 1 - _incomplete_beta(b, a, rest, x)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    front = math.exp(a * math.log(x) + b * math.log(rest) - log_beta) / a
    return front / _continued_fraction(a, b, x)


def _continued_fraction(a: float, b: float, x: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)) of DLMF 8.17.22, by ratios of successive convergents."""
    value = above = 1.0
    below = 0.0
    for term in range(1, _MOST_TERMS):
        m = term // 2
        if term % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        below = 1 / (1 + d * below)
        above = 1 + d / above
        value *= above * below
        if abs(above * below - 1) < _PRECISION:
            break
    return value
