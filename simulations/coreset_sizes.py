"""Sizes that the theorems on coresets ask for.

References
----------
[1] L. Huang, Z. Li, J. Sun and H. Zhao, "Coresets for vertical federated learning:
regularized linear regression and k-means clustering", NeurIPS 2022.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

__all__ = ["Constants", "theorem31_size", "theorem42_size", "theorem52_size"]

Constants = Literal["one", "proof"]
"""What stands for the constants that Theorems 4.2 and 5.2 leave out.

"one": each O(.) of the theorem is 1. "proof": the bounds of zeta and G with which the
proof goes into Theorem 3.1, and 1 for the O(.) of that one.
"""


def theorem31_size(
    total: float, dimension: float, eps: float = 0.1, delta: float = 0.1
) -> float:
    r"""Return the size of an epsilon-coreset by Theorem 3.1, with 1 for its O(.).

    .. math:: m = \epsilon^{-2}\, \zeta G\, (D \log(\zeta G) + \log(1/\delta))

    Parameters
    ----------
    total : float
        :math:`\zeta G`, at least 1. G is the sum of all scores of all parties. zeta is
        the largest ratio of what a row can make up of the cost of all rows, over all
        models, to the row's summed score.
    dimension : float
        D: d^2 for regression, d k for k-means; d counts the columns of all parties.
    eps : float
        :math:`\epsilon`, between 0 and 1/2: for every model the cost on the coreset is
        within this share of the cost on all rows.
    delta : float
        :math:`\delta`, between 0 and 1/2: the chance that it is not.

    Returns
    -------
    float
        m, a number of draws, rounded up; infinite where `total` is.

    Raises
    ------
    ValueError
        An argument is out of range.

    Notes
    -----
    The constant of the O(.) is that of the framework of Feldman and Langberg, which
    [1] cites (Theorem D.1) and does not give. So the size is one up to a factor that
    nobody has named, and a guide to how m grows with the arguments. The size of a
    coreset that does as well in practice is smaller by orders of magnitude.

    Examples
    --------
    zeta G = 1 leaves the chance alone: 100 log 10.

    >>> theorem31_size(1.0, 4)
    231.0
    """
    if not total >= 1:
        raise ValueError(f"total must be at least 1, got {total}")
    for name, share in (("eps", eps), ("delta", delta)):
        if not 0 < share < 0.5:
            raise ValueError(f"{name} must be above 0 and below 1/2, got {share}")
    if not dimension >= 1:
        raise ValueError(f"dimension must be at least 1, got {dimension}")
    if math.isinf(total):
        return math.inf
    m = total * (dimension * math.log(total) + math.log(1 / delta)) / eps**2
    return float(math.ceil(m))


def theorem42_size(
    gamma: float,
    d: int,
    n_parties: int,
    eps: float = 0.1,
    delta: float = 0.1,
    constants: Constants = "one",
) -> float:
    r"""Return the size that Theorem 4.2 asks for, for regression.

    .. math:: m = O(\epsilon^{-2} \gamma^{-2} d\,
       (d^2 \log(\gamma^{-2} d) + \log(1/\delta)))

    Parameters
    ----------
    gamma : float
        :math:`\gamma` of Assumption 4.1, at most 1: `sigma_min` of all rows.
    d : int
        Columns of all parties, without the labels.
    n_parties : int
        T; only the constants of the proof depend on it.
    eps, delta : float
        See `theorem31_size`.
    constants : {"one", "proof"}
        "one" has zeta G = d / gamma^2, as the theorem says. "proof" has zeta at most
        1 / gamma^2 (Lemma E.2) and G at most d + T + 1 (Appendix E.2).

    Returns
    -------
    float
        m, a number of draws, rounded up; infinite where gamma is 0, that is, where the
        theorem promises nothing.

    Raises
    ------
    ValueError
        An argument is out of range.

    Examples
    --------
    The set of [1] has 463,715 rows, 90 columns and T = 3. Whatever its gamma, the
    theorem asks for more than 700 times as many draws, for an error of 10 %:

    >>> theorem42_size(1.0, 90, 3) / 463_715 > 700
    True
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must be from 0 to 1, got {gamma}")
    _check_counts(d=d, n_parties=n_parties)
    G = d if _as_stated(constants) else d + n_parties + 1
    total = G / gamma**2 if gamma**2 > 0 else math.inf
    return theorem31_size(total, d**2, eps, delta)


def theorem52_size(
    tau: float,
    d: int,
    k: int,
    n_parties: int,
    eps: float = 0.1,
    delta: float = 0.1,
    alpha: float = 2.0,
    constants: Constants = "one",
) -> float:
    r"""Return the size that Theorem 5.2 asks for, for k-means.

    .. math:: m = O(\epsilon^{-2} \alpha \tau k T\,
       (d k \log(\alpha \tau k T) + \log(1/\delta)))

    Parameters
    ----------
    tau : float
        :math:`\tau` of Assumption 5.1, at least 1: see `tau`, which estimates it from
        below.
    d : int
        Columns of all parties.
    k : int
        Number of clusters.
    n_parties : int
        T.
    eps, delta : float
        See `theorem31_size`.
    alpha : float
        Approximation factor of the local clusterings, at least 1; see
        `vkmc_sensitivities`.
    constants : {"one", "proof"}
        "one" has zeta G = alpha tau k T, as the theorem says. "proof" has zeta at most
        4 tau and G = 2 (k + 1) alpha T (Lemma F.2).

    Returns
    -------
    float
        m, a number of draws, rounded up; infinite where tau is, that is, where the
        theorem promises nothing.

    Raises
    ------
    ValueError
        An argument is out of range.

    Examples
    --------
    The set of [1] has 515,345 rows, 90 columns and T = 3. Whatever its tau, the theorem
    asks for more than 40 times as many draws for k = 10, for an error of 10 %:

    >>> theorem52_size(1.0, 90, 10, 3) / 515_345 > 40
    True
    """
    for name, value in (("tau", tau), ("alpha", alpha)):
        if not value >= 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    _check_counts(d=d, k=k, n_parties=n_parties)
    rate = k if _as_stated(constants) else 8 * (k + 1)
    return theorem31_size(alpha * tau * rate * n_parties, d * k, eps, delta)


def _as_stated(constants: Constants) -> bool:
    if constants not in get_args(Constants):
        raise ValueError(
            f"constants must be one of {get_args(Constants)}, got {constants!r}"
        )
    return constants == "one"


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
