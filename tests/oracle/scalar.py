"""One aligned mode in closed form, in arbitrary precision (theory, §1.3).

Layer strengths a (first layer) and b (second), b² − a² = λ, product s = ab, target
s̃ ≥ 0: ds/dt = √(λ² + 4s²)(s̃ − s). Derivatives come from this equation, which is
autonomous: with v(s, λ) its right-hand side and s, λ > 0 not both 0,

    ∂s/∂t = v(s),   ∂s/∂s0 = v(s)/v(s0),   ∂s/∂λ = v(s) ∫₀ᵗ λ/(λ² + 4s(τ)²) dτ.
"""

from typing import Any

import mpmath

mp: Any = mpmath.mp  # its methods are set at run time
Real = Any  # a float or an mpf

_DIGITS = 40


def _digits(rate: Real, t: Real, lam: Real = 0) -> int:
    """Digits enough for the growing part of a start that hardly has one.

    It is a cosθ + b sinθ, of the order of λ or larger, but 0 for a start of the wrong
    sign at λ = 0: then what it is rounded to must not grow into sight.
    """
    grown = 2 * rate * t / mp.log(10)
    if lam:
        grown = min(grown, 40 + 2 * max(0, -mp.log10(abs(lam))))
    return _DIGITS + int(mp.ceil(grown))


def strengths(s0: Real, lam: Real) -> tuple[Real, Real]:
    """Return a and b, ab = s0 and b² − a² = λ, to the caller's working precision.

    b ≥ 0 for λ ≥ 0, and a ≥ 0 for λ < 0.
    """
    s0, lam = mp.mpf(s0), mp.mpf(lam)
    wide = mp.sqrt(mp.hypot(s0, lam / 2) + abs(lam) / 2)
    narrow = s0 / wide if wide else mp.zero
    return (wide, narrow) if lam < 0 else (narrow, wide)


def layers(t: Real, s0: Real, target: Real, lam: Real) -> tuple[Real, Real]:
    """Return a(t) and b(t) of the mode that starts at strength s0."""
    mu = mp.hypot(mp.mpf(target), mp.mpf(lam) / 2)
    with mp.workdps(_digits(mu, t, lam)):
        t, target, lam = mp.mpf(t), mp.mpf(target), mp.mpf(lam)
        mu = mp.hypot(target, lam / 2)
        a, b = strengths(s0, lam)
        theta = mp.atan2(2 * target, -lam) / 2 if mu else mp.zero
        c, s = mp.cos(theta), mp.sin(theta)
        p, q = a * c + b * s, -a * s + b * c
        d_p = mp.expm1(2 * mu * t) / (2 * mu) if mu else t
        d_q = -mp.expm1(-2 * mu * t) / (2 * mu) if mu else t
        root = mp.sqrt(1 + d_p * p**2 + d_q * q**2)
        g, h = mp.exp(mu * t) * p / root, mp.exp(-mu * t) * q / root
        return g * c - h * s, g * s + h * c


def strength(t: Real, s0: Real, target: Real, lam: Real) -> Real:
    """Return s(t) = a(t) b(t)."""
    a, b = layers(t, s0, target, lam)
    with mp.workdps(_DIGITS):
        return a * b


def sigmoid(t: Real, s0: Real, target: Real) -> Real:
    """The limit λ → 0, for either sign of s0 ≠ 0 and s̃ > 0 (Saxe et al.)."""
    with mp.workdps(_digits(mp.mpf(target), t)):
        grow, ratio = mp.exp(2 * mp.mpf(target) * t), mp.mpf(target) / mp.mpf(s0)
        if s0 > 0:
            return target * grow / (grow - 1 + ratio)
        return target / (1 - grow * (1 - ratio))


def exponential(t: Real, s0: Real, target: Real, lam: Real) -> Real:
    """The limit |λ| → ∞: γ = (s − s0)/(s̃ − s0) = 1 − e^{−|λ|t}."""
    with mp.workdps(_DIGITS):
        return s0 - (mp.mpf(target) - s0) * mp.expm1(-abs(mp.mpf(lam)) * t)


def speed(s: Real, target: Real, lam: Real) -> Real:
    """Return ds/dt at strength s."""
    with mp.workdps(_DIGITS):
        s, lam = mp.mpf(s), mp.mpf(lam)
        return mp.sqrt(lam**2 + 4 * s**2) * (mp.mpf(target) - s)


def _memory(t: Real, s0: Real, target: Real, lam: Real) -> Real:
    """∫₀ᵗ λ/(λ² + 4s(τ)²) dτ."""
    if lam == 0:
        return mp.zero

    def rate(tau: Real) -> Real:
        return lam / (mp.mpf(lam) ** 2 + 4 * strength(tau, s0, target, lam) ** 2)

    return mp.quad(rate, mp.linspace(0, t, 9))


def strength_by_lam(t: Real, s0: Real, target: Real, lam: Real) -> Real:
    """Return ∂s/∂λ at time t and fixed s0 (0 at λ = 0, where s0 ≠ 0 is needed)."""
    with mp.workdps(_DIGITS):
        end = speed(strength(t, s0, target, lam), target, lam)
        return end * _memory(t, s0, target, lam)


def strength_by_start(t: Real, s0: Real, target: Real, lam: Real) -> Real:
    """Return ∂s/∂s0 at time t and fixed λ."""
    with mp.workdps(_DIGITS):
        end = speed(strength(t, s0, target, lam), target, lam)
        return end / speed(s0, target, lam)


def time_to(level: Real, s0: Real, target: Real, lam: Real) -> Real:
    """Return the time at which s(t) = level, for s0 < level < s̃."""
    with mp.workdps(_DIGITS):
        late = mp.one
        while strength(late, s0, target, lam) < level:
            late *= 2

        def excess(t: Real) -> Real:
            return strength(t, s0, target, lam) - mp.mpf(level)

        return mp.findroot(excess, (mp.zero, late), solver="anderson", tol=1e-60)


def time_to_by(
    level: Real, s0: Real, target: Real, lam: Real
) -> tuple[Real, Real, Real]:
    """Derivatives of the time to a level: in the level, in s0 and in λ."""
    with mp.workdps(_DIGITS):
        t = time_to(level, s0, target, lam)
        by_level = 1 / speed(level, target, lam)
        by_start = -1 / speed(s0, target, lam)
        return by_level, by_start, -_memory(t, s0, target, lam)
