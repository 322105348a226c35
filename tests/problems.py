"""A registry of learning problems with exact answers.

Every problem is one λ-balanced start and one task, built with numpy alone (theory,
§1.1), and its answer comes from the arbitrary-precision solution of the same rounded
weights: nothing here depends on what is tested. A start is W1 = R S1 Vᵀ,
W2 = U S2 Rᵀ, with R, U, V random, or the identity for an aligned start.

Whether a value can be compared at a time depends on flags, not on names:

- `missed`: the largest singular value of the target that learning would miss at
  λ = 0, because the start is behind a saddle (square product of full rank whose
  determinant has the wrong sign, or a mode that starts at or below 0); else 0. A
  simulation leaves the saddle by rounding at about t = ln(1/ε)/(2 · missed), and
  where |λ| is below ε all of this holds too.
- `saddle`: it does so, being at λ = 0 exactly.
- `exact_start`: the rounded weights lie behind the saddle exactly (diagonal starts).
- `full`: no singular value of the target is 0, so that learning ends exponentially.
- `ends`: it has ended by `LARGEST_TIME`, at a limit that does not depend on the start.
- `simple_spectrum`: the target has distinct, nonzero singular values.
- `hidden_regular`: the weights have a derivative in λ at this λ.
"""

import dataclasses
import functools
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

import lazyrich as lr
from tests.oracle import riccati
from tests.oracle.riccati import Blocks

LARGEST_TIME = 1e6
LARGEST_EXPONENT = 1999.0  # of μt: what the answers have digits for
LARGE_EXPONENT = 300.0  # the same for large layers, where digits cost more
FRACTIONS = (0.0, 1e-5, 3e-4, 1e-3, 3e-3, 1e-2, 1e-1, 1.0)

# A few more values than any shape has, or as many as the largest that uses them.
_SPECTRA = {
    "generic": (2.0, 1.3, 0.9, 0.6, 0.4, 0.3, 1.7, 1.1, 0.75, 0.5),
    "diagonal": (3.0, 2.0, 1.5, 1.0, 0.75, 0.5),
    "repeated": (1.0, 1.0, 2.0, 0.5, 2.0, 1.0),
    "turned": (1.0, 1.0, 2.0, 0.5, 2.0, 1.0, 2.0, 0.5, 0.5, 1.0),  # repeated, rotated
    "near": (
        1.5,
        1.5 * (1 + 1e-9),
        0.8,
        0.5,
        1.1,
        0.3,
        0.3 * (1 + 1e-9),
        1.0,
        0.6,
        2.0,
    ),
    "spread": (2.0, 2e-6, 0.05, 1e-3, 2.0, 0.3, 1e-4, 1e-5, 0.7, 1e-2),
    "zero": (0.0,) * 6,
}
_ROTATED = ("generic", "turned", "near", "spread")  # by random singular vectors


def _orthogonal(rng: np.random.Generator, size: int) -> np.ndarray:
    q, r = np.linalg.qr(rng.normal(size=(size, size)))
    return q * np.sign(np.diag(r))


def _rectangle(rows: int, columns: int, values: np.ndarray) -> np.ndarray:
    out = np.zeros((rows, columns))
    np.fill_diagonal(out, np.pad(values, (0, min(rows, columns) - len(values))))
    return out


@dataclasses.dataclass(frozen=True)
class Problem:
    """One start and one task; see the module's docstring for the flags."""

    shape: tuple[int, int, int]  # inputs, hidden, outputs
    lam: float
    scale: float = 1e-3  # of the singular values of W2W1
    spectrum: str = "generic"  # "generic", "rank 1" (exactly) or a key of _SPECTRA
    side: str = "front"  # "behind": one singular vector of W2W1 turned round
    modes: tuple[float, ...] | None = None  # aligned start with these strengths
    seed: int = 0

    @property
    def name(self) -> str:
        shape = "-".join(str(n) for n in self.shape)
        how = self.side if self.modes is None else f"modes{list(self.modes)}"
        return f"{shape}_{self.lam:g}_{self.scale:g}_{self.spectrum}_{how}".replace(
            " ", ""
        )

    def sigma(self) -> np.ndarray:
        """The target (outputs, inputs)."""
        inputs, _, outputs = self.shape
        # Not of the seed: the exact answers share the target's eigenvectors.
        rng = np.random.default_rng([1, *self.shape])
        if self.spectrum == "rank 1":  # few bits, so that the products are exact
            left, right = rng.integers(1, 256, outputs), rng.integers(1, 256, inputs)
            return np.outer(left, -right) / 2.0**15
        values = np.array(_SPECTRA[self.spectrum][: min(inputs, outputs)])
        sigma = _rectangle(outputs, inputs, values)
        if self.spectrum in _ROTATED and self.modes is None:
            u, v = _orthogonal(rng, outputs), _orthogonal(rng, inputs)
            sigma = u @ sigma @ v.T
            if inputs == outputs and np.linalg.det(sigma) < 0:
                sigma[0] *= -1
        return sigma

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """The start: w1 (hidden, inputs) and w2 (outputs, hidden)."""
        inputs, hidden, outputs = self.shape
        rng = np.random.default_rng([2, self.seed, *self.shape])
        k = min(self.shape)
        if self.modes is None:
            r, u, v = (_orthogonal(rng, n) for n in (hidden, outputs, inputs))
            s = self.scale * rng.uniform(0.3, 1.5, k)
            turned = np.linalg.det(u) * np.linalg.det(v) < 0
            if turned != (self.side == "behind"):
                u[:, 0] *= -1
        else:
            r, u, v = (np.eye(n) for n in (hidden, outputs, inputs))
            s = np.array(self.modes)
        wide = np.sqrt(np.sqrt(s**2 + self.lam**2 / 4) + abs(self.lam) / 2)
        narrow = np.divide(s, wide, out=np.zeros(k), where=wide > 0)
        # At λ = 0 the two may differ in the last place; balance needs them equal.
        if self.lam == 0:
            wide, narrow = np.sqrt(np.abs(s)), np.sign(s) * np.sqrt(np.abs(s))
        extra = np.full(max(hidden - k, 0), np.sqrt(abs(self.lam)))
        if self.lam < 0:
            s1, s2 = np.concatenate([wide, extra]), narrow
        else:
            s1, s2 = narrow, np.concatenate([wide, extra])
        # At λ = 0 surplus hidden directions may exceed both sides; they hold nothing.
        s1, s2 = s1[: min(hidden, inputs)], s2[: min(hidden, outputs)]
        w1 = r @ _rectangle(hidden, inputs, s1) @ v.T
        w2 = u @ _rectangle(outputs, hidden, s2) @ r.T
        return w1, w2

    def build(self) -> tuple[lr.networks.TwoLayerLinear, lr.tasks.LinearTask, float]:
        """The network, the task and λ."""
        w1, w2 = (jnp.asarray(w) for w in self.weights())
        net = lr.networks.TwoLayerLinear(w1, w2)
        return net, lr.tasks.LinearTask(jnp.asarray(self.sigma())), self.lam

    @property
    def exact_start(self) -> bool:
        return self.modes is not None

    @functools.cached_property
    def missed(self) -> float:
        inputs, hidden, outputs = self.shape
        sigma = self.sigma()
        if self.modes is not None:
            return max(
                (x for x, s in zip(np.diag(sigma), self.modes, strict=True) if s <= 0),
                default=0.0,
            )
        if not (hidden >= inputs == outputs and self.full):
            return 0.0
        w1, w2 = self.weights()
        agree = np.linalg.slogdet(w2 @ w1)[0] == np.linalg.slogdet(sigma)[0]
        return 0.0 if agree else float(np.linalg.norm(sigma, -2))

    @property
    def saddle(self) -> bool:
        return self.lam == 0 and self.missed > 0

    @property
    def full(self) -> bool:
        return self.spectrum not in ("rank 1", "zero")

    @functools.cached_property
    def ends(self) -> bool:
        # The slowest rate: μ_j − μ_k of the last value kept and the first left out, as
        # of eigenvalues of F; with nothing left out, μ_j − |λ|/2 of surplus directions.
        s = np.linalg.svd(self.sigma(), compute_uv=False)
        kept = min(self.shape[1], len(s))
        left = s[kept] if kept < len(s) else 0.0
        sum_ = np.hypot(s[kept - 1], self.lam / 2) + np.hypot(left, self.lam / 2)
        fast = (s[kept - 1] ** 2 - left**2) * LARGEST_TIME > 50 * sum_
        return bool(self.full and fast)

    @property
    def simple_spectrum(self) -> bool:
        inputs, _, outputs = self.shape
        one = min(inputs, outputs) == 1 and self.spectrum != "zero"
        return one or self.spectrum in ("generic", "diagonal", "near", "spread")

    @property
    def hidden_regular(self) -> bool:
        inputs, hidden, outputs = self.shape
        return self.lam != 0 or hidden <= min(inputs, outputs)

    @functools.cached_property
    def times(self) -> tuple[float, ...]:
        """Eight times from 0: all problems of one shape share one compilation."""
        mu = max(riccati.rate(*self.weights(), self.sigma()), 1e-300)
        exponent = LARGE_EXPONENT if sum(self.shape) > 30 else LARGEST_EXPONENT
        horizon = min(LARGEST_TIME, exponent / mu)
        if self.saddle and not self.exact_start:
            # Rounding grows like ε e^{2 · missed · t}, also in the answer.
            horizon = min(horizon, 15.0 / self.missed)
        return tuple(horizon * x for x in FRACTIONS)

    @functools.cached_property
    def answers(self) -> list[Blocks]:
        """W1ᵀW1, W2W1 and W2W2ᵀ at each of `times`."""
        return riccati.solve(*self.weights(), self.sigma(), self.times)

    def answer(self, t: float) -> Blocks:
        """W1ᵀW1, W2W1 and W2W2ᵀ at time t."""
        if t in self.times:
            return self.answers[self.times.index(t)]
        return riccati.solve(*self.weights(), self.sigma(), [t])[0]

    def limit(self) -> np.ndarray:
        """W2W1 as t → ∞ for a start that is not behind a saddle."""
        u, s, vt = np.linalg.svd(self.sigma(), full_matrices=False)
        kept = self.shape[1]
        return (u[:, :kept] * s[:kept]) @ vt[:kept]


# These are compared with simulations too, which compile for seconds a shape.
SIMULATED: tuple[Problem, ...] = (
    Problem((4, 4, 4), 0.0),
    Problem((4, 4, 4), 0.0, side="behind"),
    Problem((4, 4, 4), 0.0, 1e-8, "repeated", seed=1),
    Problem((4, 4, 4), 0.0, 1.0, "rank 1", seed=2),
    Problem((4, 4, 4), 1e-9, seed=3),
    Problem((4, 4, 4), 1e-9, 1.0, side="behind", seed=3),
    Problem((4, 4, 4), -1e-9, 1.0, "rank 1", seed=4),
    Problem((4, 4, 4), 1.0, 1e-8, "rank 1", seed=5),
    Problem((4, 4, 4), -1.0, 1.0, "repeated", seed=6),
    Problem((4, 4, 4), 20.0, side="behind", seed=7),
    Problem((4, 4, 4), -20.0, 1.0, "zero", seed=8),
    Problem((4, 4, 4), 1e3, 1e-8, seed=9),
    Problem((4, 4, 4), -1e3, 1.0, seed=10),
    Problem((4, 4, 4), 0.0, 0.1, "diagonal", modes=(0.0, 0.1, 0.1, 0.1)),
    Problem((4, 4, 4), 1e-9, 0.1, "diagonal", modes=(0.0, 0.1, 0.1, 0.1)),
    Problem((4, 4, 4), -1.0, 0.1, "diagonal", modes=(0.1, 0.1, 0.0, 0.1)),
    Problem((4, 4, 4), 0.0, 0.1, "diagonal", modes=(0.1, -0.3, 0.1, 0.1)),
    Problem((4, 4, 4), 0.0, 0.1, "repeated", modes=(0.0, 0.1, 0.1, 0.0)),
    Problem((6, 6, 6), 0.0, 1e-8),
    Problem((6, 6, 6), -1.0, 1e-8, "repeated"),
    Problem((6, 3, 3), 0.0, 1.0),
    Problem((6, 3, 3), 1e-9, 1e-8, "rank 1"),
    Problem((6, 3, 3), 1.0, 1e-3, "repeated"),
    Problem((6, 3, 3), -20.0, 1e-8, seed=1),
    Problem((6, 3, 3), -1e3, 1e-3),
    Problem((3, 3, 6), 0.0, 1e-8, "rank 1"),
    Problem((3, 3, 6), -1e-9, 1.0),
    Problem((3, 3, 6), -1.0, 1e-8, "repeated", seed=1),
    Problem((3, 3, 6), 20.0, 1.0, "rank 1"),
    Problem((3, 3, 6), 1e3, 1.0),
    Problem((5, 3, 3), 20.0),
    Problem((5, 3, 3), -20.0, 1.0),
    Problem((5, 3, 3), 0.0, 1e-3, "zero"),
    Problem((3, 3, 5), 20.0, 1.0),
    Problem((3, 3, 5), -20.0),
    Problem((3, 3, 5), 1e-9, 1.0, "zero"),
    Problem((3, 5, 3), 0.0),
    Problem((3, 5, 3), 0.0, 1.0, side="behind"),
    Problem((3, 5, 3), 0.0, 1e-8, "repeated"),
    Problem((4, 2, 4), 0.0, 1.0),
    Problem((4, 2, 4), 1.0, 1e-8),
    Problem((4, 2, 4), -20.0, 1e-3),
    Problem((4, 2, 4), 1e3, 1.0, "rank 1"),
    Problem((4, 6, 4), 0.0, 1e-8),
    Problem((4, 6, 4), 0.0, 1e-3, side="behind"),
    Problem((4, 6, 4), 0.0, 1.0, "rank 1"),
    Problem((1, 1, 1), 0.0, 1e-8),
    Problem((1, 1, 1), 1.0, 1e-3, modes=(-0.2,)),
    Problem((1, 1, 1), -1e3, 1.0),
    Problem((1, 1, 1), 0.0, 1.0, "zero"),
    Problem((2, 4, 6), 1.0, 1e-3),
    Problem((2, 4, 6), 20.0, 1.0, "repeated"),
    Problem((2, 4, 6), 1e3, 1e-8),
    Problem((6, 4, 2), -1.0, 1e-3),
    Problem((6, 4, 2), -20.0, 1e-8, "rank 1"),
    Problem((6, 4, 2), -1e3, 1.0, "repeated"),
)

# What only the exact method is asked for: nearly equal and widely spread singular
# values, λ next to 0 and far from it, products from 1e-10 to 10, larger layers.
PROBLEMS: tuple[Problem, ...] = (
    *SIMULATED,
    Problem((4, 4, 4), 0.0, 1e-10, "near"),
    Problem((4, 4, 4), 0.0, 10.0, "near", "behind"),
    Problem((4, 4, 4), 0.0, 1e-3, "spread"),
    Problem((4, 4, 4), 0.0, 10.0, "spread", "behind"),
    Problem((4, 4, 4), 0.0, 10.0, "turned", "behind", seed=1),
    Problem((4, 4, 4), 0.0, 1.0, "zero"),
    Problem((4, 4, 4), 1e-12, 10.0, side="behind"),
    Problem((4, 4, 4), -1e-12, 1e-10, side="behind"),
    Problem((4, 4, 4), 1e-12, 1e-3, "near"),
    Problem((4, 4, 4), -1e-12, 1.0, "spread", "behind"),
    Problem((4, 4, 4), 1e-6, 1e-10, "turned", "behind"),
    Problem((4, 4, 4), -1e-6, 10.0, side="behind"),
    Problem((4, 4, 4), 1e-6, 1.0, "zero"),
    Problem((4, 4, 4), 1.0, 10.0, "near", "behind"),
    Problem((4, 4, 4), -1.0, 1e-10, "spread"),
    Problem((4, 4, 4), 30.0, 1e-3, "near"),
    Problem((4, 4, 4), -30.0, 10.0, "turned"),
    Problem((4, 4, 4), 30.0, 1e-10, "rank 1"),
    Problem((4, 4, 4), 1e3, 10.0, "spread"),
    Problem((4, 4, 4), -1e3, 1e-10, "turned", "behind"),
    Problem((4, 4, 4), -1e3, 10.0, "zero"),
    Problem((4, 4, 4), 1e-12, 0.1, "diagonal", modes=(0.0, 0.1, -0.1, 1e-10)),
    Problem((1, 1, 1), 0.0, 1e-10),
    Problem((1, 1, 1), 0.0, 10.0, side="behind"),
    Problem((1, 1, 1), 0.0, modes=(0.0,)),
    Problem((1, 1, 1), 1e-12, 1.0, side="behind"),
    Problem((1, 1, 1), -1e-6, 10.0, side="behind"),
    Problem((1, 1, 1), 30.0, 1e-10),
    Problem((1, 1, 1), -30.0, modes=(-10.0,)),
    Problem((1, 1, 1), 1e3, 1e-10, "zero"),
    Problem((2, 7, 3), 0.0, 1e-10),
    Problem((2, 7, 3), 0.0, 10.0, "near"),
    Problem((2, 7, 3), 0.0, 1.0, "spread"),
    Problem((2, 7, 3), 0.0, 1e-3, "rank 1"),
    Problem((2, 7, 3), 0.0, 1.0, "zero"),
    Problem((2, 7, 3), 0.0, spectrum="diagonal", modes=(0.2, -0.1)),
    Problem((7, 2, 3), 0.0, 1e-10, "near"),
    Problem((7, 2, 3), 1e-12, 10.0, "near"),
    Problem((7, 2, 3), -1e-6, 1e-3),
    Problem((7, 2, 3), 1.0, 1e-10, "rank 1"),
    Problem((7, 2, 3), -30.0, 10.0, "spread"),
    Problem((7, 2, 3), 30.0, 1e-3),
    Problem((7, 2, 3), -1e3, 1e-10, "zero"),
    Problem((20, 10, 10), 0.0, 1e-10),
    Problem((20, 10, 10), 1.0, 10.0, "near"),
    Problem((20, 10, 10), -1e-6, 1e-3),
    Problem((20, 10, 10), -30.0, 1e-3, "near"),
    Problem((20, 10, 10), 1e3, 1.0),
    Problem((10, 10, 20), 0.0, 10.0, "spread"),
    Problem((10, 10, 20), 1e-12, 1e-10),
    Problem((10, 10, 20), -1.0, 1.0, "spread"),
    Problem((10, 10, 20), 30.0, 1e-10),
    Problem((3, 5, 3), 0.0, 10.0, "near", "behind"),
    Problem((3, 5, 3), 0.0, 1e-10, "spread"),
    Problem((3, 5, 3), 0.0, 1.0, "zero"),
    Problem((4, 6, 4), 0.0, 10.0, "turned", "behind"),
    Problem((6, 3, 3), 1e-12, 10.0, "near"),
    Problem((6, 3, 3), -1e-12, 1e-3, "spread"),
    Problem((6, 3, 3), 1e3, 1e-10),
    Problem((6, 3, 3), -30.0, 10.0, "rank 1"),
    Problem((3, 3, 6), 1e-6, 1e-10, "near"),
    Problem((3, 3, 6), 30.0, 10.0, "spread"),
    Problem((3, 3, 6), -1e3, 1e-10),
    Problem((4, 2, 4), -1e-6, 1e-10, "near"),
    Problem((4, 2, 4), -1e3, 10.0),
    Problem((2, 4, 6), 1e-12, 1e-10),
    Problem((2, 4, 6), 30.0, 10.0, "near"),
    Problem((6, 4, 2), -1e-6, 1e-3, "near"),
    Problem((6, 4, 2), -30.0, 1e-10, "zero"),
)


def grid() -> Iterator[tuple[Problem, float]]:
    """Every problem at each of its times after the start."""
    for problem in PROBLEMS:
        for t in problem.times[1:]:
            yield problem, t
