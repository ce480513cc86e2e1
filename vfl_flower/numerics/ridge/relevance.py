r"""The relevance of each column to a model of random features, from its Gram matrix.

The model is a sum over frequencies,

.. math:: f(x) = \sum_j a_j \cos\theta_j + b_j \sin\theta_j, \qquad
    \theta_j = \omega_j^T x + \phi_j,

so its derivative with respect to column c is :math:`\sum_j \omega_{jc} s_j(x)` with
:math:`s_j = b_j \cos\theta_j - a_j \sin\theta_j`. The mean square of this derivative
over the rows, the *relevance* of column c, is a quadratic form in the same sums of
products from which f was computed:

.. math:: R_c = \omega_{\cdot c}^T H \omega_{\cdot c}, \qquad
    H_{jk} = \frac1n \sum_i s_j(x_i) s_k(x_i).

R is the diagonal of the average gradient outer product of [1]. Columns scaled by
:math:`\sqrt{R_c}` give the next random features. This is one iteration of the Recursive
Feature Machines of [1], with the diagonal only.

If one party knows :math:`\omega_{\cdot c}` and another party knows H, a random
:math:`B \sim N(0, H)` replaces H: :math:`\omega_{\cdot c}^T B` is a vector of
independent :math:`N(0, R_c)` numbers. So the vector reveals R_c up to a sampling error,
and nothing else about H. For several columns, the vectors also reveal the products of
the columns' derivatives.

References
----------
[1] A. Radhakrishnan, D. Beaglehole, P. Pandit and M. Belkin, "Mechanism for feature
learning in neural networks and backpropagation-free machine learning models", Science
383, 2024.
"""

from __future__ import annotations

import numpy as np

from vfl_flower.typing import Array


def derivative_products(gram: Array, weights: Array, n: float) -> Array:
    """Return H, (A, A): mean products of f's derivatives with respect to the angles.

    `gram`, (2 A, 2 A), holds the sums of products, over n rows, of the cosines of A
    angles, followed by their sines. `weights`, (2 A, K), are a and b of K functions;
    the matrices H of these functions are added up.
    """
    A = len(gram) // 2
    H = np.zeros((A, A))
    for w in weights.T:
        products = gram * np.outer(v := np.concatenate([w[A:], -w[:A]]), v)
        H += products[:A, :A] + products[:A, A:] + products[A:, :A] + products[A:, A:]
    return np.asarray((H + H.T) / (2 * n))


def probes(H: Array, count: int, rng: np.random.Generator) -> Array:
    """Draw columns of B, (A, count), from N(0, H); negative eigenvalues count as 0."""
    values, vectors = np.linalg.eigh(H)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return np.asarray(root @ rng.standard_normal((len(H), count)))


def relevance_of(products: Array) -> Array:
    """Return R, (d,), from Omega^T B, (d, count).

    The relative standard error of R is sqrt(2 / count).
    """
    return np.asarray((products**2).mean(axis=1))
