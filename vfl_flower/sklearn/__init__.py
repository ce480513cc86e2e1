"""Estimators for scikit-learn, each of which runs a strategy in this process."""

from vfl_flower.sklearn.coresets import CoresetKMeans, CoresetRegressor
from vfl_flower.sklearn.fdskl import KernelClassifier, KernelRegressor
from vfl_flower.sklearn.kernel_kmeans import KernelKMeans
from vfl_flower.sklearn.mufc import ForgettingKMeans
from vfl_flower.sklearn.ridge import SecureRidgeClassifier, SecureRidgeRegressor

__all__ = [
    "CoresetKMeans",
    "CoresetRegressor",
    "ForgettingKMeans",
    "KernelClassifier",
    "KernelKMeans",
    "KernelRegressor",
    "SecureRidgeClassifier",
    "SecureRidgeRegressor",
]
