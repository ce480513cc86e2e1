r"""The step and the number of iterations that Theorem 4 of the FDSKL paper asks for.

[1] B. Gu, Z. Dang, X. Li and H. Huang, "Federated doubly stochastic kernel learning
for vertically partitioned data", KDD 2020.
"""

from __future__ import annotations

import math


def theorem4_step(
    slope: float, kappa: float, phi: float, regularization: float, eps: float
) -> float:
    r"""Return the largest constant step of Theorem 4, which a step must stay below.

    .. math:: \gamma < \min\Big\{\frac1\lambda,
       \frac{\epsilon\lambda}{4 M^2 (\sqrt\kappa + \sqrt\phi)^2}\Big\}

    Parameters
    ----------
    slope : float
        M, a bound of |L'(u, y)|: `Loss.slope`, 1 for logistic and smooth hinge.
    kappa : float
        Bound of the kernel K(x, x'); 1 for Gaussian and Laplacian.
    phi : float
        Bound of \|phi(x) phi(x')\|; 2 for sqrt(2) cos.
    regularization : float
        :math:`\lambda`.
    eps : float
        The error :math:`E|f_t(x) - f_*(x)|^2` to reach.

    Raises
    ------
    ValueError
        An argument is not positive and finite.

    Notes
    -----
    For the square loss there is no M: |L'| has no bound, and the theorem says nothing
    unless the scores are bounded. The theorem bounds the distance to f_* alone; useful
    steps are orders of magnitude larger.
    """
    _check_positive(
        slope=slope, kappa=kappa, phi=phi, regularization=regularization, eps=eps
    )
    spread = (math.sqrt(kappa) + math.sqrt(phi)) ** 2
    return min(1 / regularization, eps * regularization / (4 * slope**2 * spread))


def theorem4_iterations(
    slope: float,
    kappa: float,
    phi: float,
    regularization: float,
    eps: float,
    distance: float,
    theta: float = 1.0,
) -> int:
    r"""Return how many iterations Theorem 4 asks for (equation 8).

    .. math:: t \ge \frac{8\kappa B \log(8\kappa e_1/\epsilon)}
       {\vartheta\epsilon\lambda}, \quad
       B = \Big[\sqrt{G_2^2 + G_1} + G_2\Big]^2, \quad
       G_1 = \frac{2\kappa M^2}{\lambda}, \quad
       G_2 = \frac{\sqrt\kappa M (\sqrt\kappa + \sqrt\phi)}{2\lambda^{3/2}}

    Parameters
    ----------
    slope, kappa, phi, regularization, eps : float
        M, :math:`\kappa`, :math:`\phi`, :math:`\lambda` and :math:`\epsilon`; see
        `theorem4_step`.
    distance : float
        :math:`e_1 = E\|h_1 - f_*\|_{\mathcal H}^2`; with a start at 0,
        :math:`\|f_*\|_{\mathcal H}^2`.
    theta : float
        :math:`\vartheta` in (0, 1]; the step is :math:`\epsilon\vartheta/(8\kappa B)`.

    Returns
    -------
    int
        At least 0.

    Raises
    ------
    ValueError
        An argument is not positive and finite, or `theta` is above 1.
    """
    _check_positive(
        slope=slope,
        kappa=kappa,
        phi=phi,
        regularization=regularization,
        eps=eps,
        distance=distance,
        theta=theta,
    )
    if theta > 1:
        raise ValueError(f"theta must be at most 1, got {theta}")
    spread = math.sqrt(kappa) + math.sqrt(phi)
    g1 = 2 * kappa * slope**2 / regularization
    g2 = (
        math.sqrt(kappa)
        * slope
        * spread
        / (2 * regularization * math.sqrt(regularization))
    )
    b = (math.sqrt(g2**2 + g1) + g2) ** 2
    log = math.log(8 * kappa * distance / eps)
    return max(0, math.ceil(8 * kappa * b * log / (theta * eps * regularization)))


def _check_positive(**arguments: float) -> None:
    for name, value in arguments.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be positive and finite, got {value}")
