"""What people use instead. PyTorch is imported where it is used: it may be absent."""

from importlib import import_module

import numpy as np
from scipy.integrate import solve_ivp


def lsoda(w1, w2, sigma, times, rtol: float, atol: float):
    """Both layers at `times` by SciPy's LSODA, for one start."""

    def velocity(_, y):
        a, b = y[: w1.size].reshape(w1.shape), y[w1.size :].reshape(w2.shape)
        gap = sigma - b @ a
        return np.concatenate([(b.T @ gap).ravel(), (gap @ a.T).ravel()])

    y0 = np.concatenate([w1.ravel(), w2.ravel()])
    span = (times[0], times[-1])
    y = solve_ivp(velocity, span, y0, "LSODA", times, rtol=rtol, atol=atol).y.T
    first = y[:, : w1.size].reshape(-1, *w1.shape)
    return first, y[:, w1.size :].reshape(-1, *w2.shape)


def torch_sgd_loop(w1, w2, x, y, draws, rate):
    """W2W1 after SGD in PyTorch, one member: `draws` (steps, batch) are its samples."""
    torch = import_module("torch")

    a, b, x, y = (
        torch.tensor(np.asarray(v), requires_grad=i < 2)
        for i, v in enumerate((w1, w2, x, y))
    )
    draws = torch.tensor(np.asarray(draws), dtype=torch.long)
    optimizer = torch.optim.SGD([a, b], lr=rate)
    for chosen in draws:
        optimizer.zero_grad()
        gap = x[chosen] @ a.T @ b.T - y[chosen]
        (0.5 * gap.square().sum() / len(chosen)).backward()
        optimizer.step()
    return (b @ a).detach().numpy()


def torch_sgd_vmapped(w1s, w2s, x, y, draws, rate):
    """The same for all members by `torch.func`; draws (steps, members, batch)."""
    torch = import_module("torch")
    grad, vmap = torch.func.grad, torch.func.vmap

    a, b, x, y = (torch.tensor(np.asarray(v)) for v in (w1s, w2s, x, y))
    draws = torch.tensor(np.asarray(draws), dtype=torch.long)

    def loss(weights, chosen):
        first, second = weights
        gap = x[chosen] @ first.T @ second.T - y[chosen]
        return 0.5 * gap.square().sum() / chosen.shape[0]

    slopes = vmap(grad(loss))
    for chosen in draws:
        da, db = slopes((a, b), chosen)
        a, b = a - rate * da, b - rate * db
    return (b @ a).numpy()


def torch_flow(w1s, w2s, sigma, times, rtol: float, atol: float):
    """W2W1 (members, times, …) by torchdiffeq's dopri5, one system of all members."""
    torch, odeint = import_module("torch"), import_module("torchdiffeq").odeint

    a, b, target = (torch.tensor(np.asarray(v)) for v in (w1s, w2s, sigma))

    def velocity(_, weights):
        first, second = weights
        gap = target - second @ first
        return second.mT @ gap, gap @ first.mT

    with torch.no_grad():
        first, second = odeint(
            velocity, (a, b), torch.tensor(times), rtol=rtol, atol=atol
        )
    return (second @ first).transpose(0, 1).numpy()


def diffeqsolve_flow(net, sigma, times, rtol: float, atol: float):
    """W2W1 at `times` by `diffrax.diffeqsolve` alone, for one start; to be vmapped."""
    import diffrax

    def velocity(t, weights, args):
        first, second = weights
        gap = sigma - second @ first
        return second.T @ gap, gap @ first.T

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(velocity),
        diffrax.Tsit5(),
        times[0],
        times[-1],
        None,
        (net.w1, net.w2),
        saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
        max_steps=100_000,
    )
    assert solution.ys is not None
    first, second = solution.ys
    return second @ first
