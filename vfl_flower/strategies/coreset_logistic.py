"""Logistic regression on a coreset of rows whose columns are split over parties.

[1] "Improved Coresets for Vertical Federated Learning: Regularized Linear and Logistic
    Regressions", ICML 2025.
[2] A. Munteanu, C. Schwiegelshohn, C. Sohler, D. P. Woodruff, "On Coresets for Logistic
    Regression", NeurIPS 2018.
[3] L. Huang, Z. Li, J. Sun, H. Zhao, "Coresets for Vertical Federated Learning:
    Regularized Linear Regression and K-Means Clustering", NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Gt, Le
from flwr.app import ArrayRecord
from pydantic import Field

from vfl_flower.clients import coreset_predictions as predictions_party
from vfl_flower.clients import coresets as party
from vfl_flower.clients.evaluation import curves_of, metrics_of
from vfl_flower.models.coresets import LogisticModel
from vfl_flower.numerics import evaluation
from vfl_flower.numerics.coresets import sigma_min
from vfl_flower.numerics.linear import center
from vfl_flower.numerics.logistic import log_losses, solve_logistic
from vfl_flower.protocol.consent import Kind, in_order
from vfl_flower.protocol.exchange import FederationError
from vfl_flower.protocol.parties import Parties
from vfl_flower.protocol.settings import Fraction, InRunConfig, settings
from vfl_flower.protocol.steps import Steps
from vfl_flower.protocol.strategy import Run
from vfl_flower.strategies import coresets_metrics
from vfl_flower.strategies.coreset_predictions import keep_parts, predict_rows
from vfl_flower.strategies.sampling import CoresetStrategy, Earlier, Scoring, estimate
from vfl_flower.typing import Array


@settings
class CoresetVLogistic(CoresetStrategy):
    """Logistic regression of two classes on a coreset, with a ridge penalty.

    Algorithm 1 of [3] with the scores of [2] on each party's columns, which count the
    penalty as [1] does: row i is drawn with probability proportional to the sum over
    parties of the square roots of its ridge leverage scores, and weighted by the
    inverse.

    =============  =====================================  ==========================
    round trip     party j sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, digest of ids, key        all of it
    totals         G_j = sum_i g_ij; rows drawn with      each G_j, the rows' numbers
                   probability g_ij / G_j
    scores         g_ij for i in S, masked; its columns   sum_j g_ij; the columns and
                   of S, its labels                       labels of S
    keep           whether it keeps its block             all of it
    addends        X_j theta_j of rows held out, masked   nothing: only the label
                                                          holder can open the sum
    answer         the label holder alone: errors, and    all of it
                   curves if all parties consent
    =============  =====================================  ==========================

    Notes
    -----
    The label holder must have labels with two values, of which the larger is the second
    class, the positive one. Labels have no part in the scores, so the numbers of the
    rows that are drawn tell nothing of them. The server sees the rows of the coreset
    and their labels.

    With a ``test_fraction`` the label holder learns the log of the odds of each row
    held out, and tells the errors of the model on them. With two parties it so learns
    the other's part of it.

    The metrics of the result: ``train_log_loss`` (weighted on the coreset),
    ``objective``, ``weight_sum``, ``converged``; unless the sampling is ``full``,
    ``sigma_min`` (Assumption 4.1 of [3] on the coreset, without labels: near 0 the
    coreset has no guarantee); where asked ``check_log_loss`` with its standard error;
    and on rows held out ``test_error``, ``test_log_loss``, ``test_auc`` and the others
    of a classifier, with standard errors.

    Examples
    --------
    >>> import numpy as np
    >>> from vfl_flower import Party
    >>> from vfl_flower.simulation import simulate
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(5000, 4))
    >>> y = X @ [1.0, 2.0, 3.0, 4.0] + rng.logistic(size=5000) > 0
    >>> parties = [Party(X[:, :2]), Party(X[:, 2:], y=y.astype(float))]
    >>> result = simulate(CoresetVLogistic(size=500), parties, seed=0)
    >>> result.model.predict_proba([np.ones((1, 2)), np.ones((1, 2))]).round(2).tolist()
    [[0.0, 1.0]]
    """

    size: Annotated[party.Size, InRunConfig(200)] = Field(2000, kw_only=False)
    alpha: Annotated[float, Gt(0), Le(1e50)] = 1e-4
    """Strength of the ridge penalty. The objective is ``sum_S w log(1 + exp(-s (x theta
    + b))) / n + alpha |theta|^2`` with signs s of the classes; in scikit-learn, with
    weights w: ``LogisticRegression(C=1 / (2 * alpha * n))``."""
    fit_intercept: bool = True
    """Fit b. Its column of ones counts in the label holder's scores."""
    test_fraction: Annotated[Fraction, InRunConfig(0.2)] = 0.0
    """Share of the rows held out. The label holder gets the log of the odds of each,
    which only it can open, and tells the server the errors, in three more round
    trips."""
    allow_two_parties: bool = False
    """Let two parties evaluate or predict, of which the label holder then learns the
    other's part."""

    # This is no setting here: there is no strategy that adds rows.
    keep_coreset: ClassVar[bool] = False  # type: ignore[misc]

    model_class = LogisticModel
    labelled = True
    classes = True
    question = "Which few rows give nearly the logistic model of all rows?"
    explained = coresets_metrics.LOGISTIC
    evaluation_steps = (predictions_party.addends, predictions_party.answer)
    steps: ClassVar[Steps] = (
        *(*CoresetStrategy.steps, predictions_party.keep),
        *evaluation_steps,
    )

    def __post_init__(self) -> None:
        """Raise ``ValueError`` where settings do not fit together."""
        super().__post_init__()
        if self.evaluate == "full":
            raise ValueError(
                "evaluate must be 'coreset' for a logistic regression, got 'full': "
                "check_size estimates the loss on all training rows"
            )

    @property
    def needs(self) -> tuple[Kind, ...]:
        """Also, to evaluate the model, predictions of which the errors are told."""
        evaluated: set[Kind] = (
            {"predictions", "moments"} if self.test_fraction else set()
        )
        return in_order({*super().needs, *evaluated})

    @property
    def wants(self) -> tuple[Kind, ...]:
        """With rows held out the curves."""
        return ("curves",) if self.test_fraction else ()

    def shortfalls(self, metrics: Mapping[str, Any]) -> list[str]:
        """Return whether the solver has converged and the model is any use."""
        told = []
        if not metrics.get("converged", 1.0):
            told.append("the solver stopped before it converged: raise alpha")
        return told + evaluation.shortfalls(metrics)

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Draw the coreset, solve on it, evaluate."""
        widths = [party.n_columns for party in parties]
        holder, n = parties.label_holder, self.n_train(parties)
        held = self.n_test(parties)
        if held:
            parties.refuse_two("test_fraction", self.allow_two_parties)
        run.record(0, LogisticModel([np.zeros(d) for d in widths]).to_record())
        # The square root of a leverage score is at most 1.
        scoring = Scoring(bound=2.0, intercept=self.fit_intercept, l2=self.alpha)
        coreset = self.draw(parties, run, scoring, Earlier())
        assert coreset.X is not None
        assert coreset.y is not None
        X, y, w = np.hstack(coreset.X), coreset.y, coreset.weights
        classes = np.unique(y)
        if len(classes) != 2:
            raise FederationError(
                f"the {len(y)} rows to train on must be of two classes, and are of "
                f"{len(classes)}: raise size"
            )
        theta, intercept, converged = solve_logistic(
            X, y == classes[1], w, n, self.alpha, self.fit_intercept
        )

        def losses(X: Array, y: Array) -> Array:
            return log_losses(X @ theta + intercept, y == classes[1])

        loss = float(w @ losses(X, y) / n)
        metrics: dict[str, Any] = {
            "weight_sum": float(w.sum()),
            "train_log_loss": loss,
            "objective": loss + self.alpha * float(theta @ theta),
            "converged": float(converged),
        }
        if (check := coreset.check) and check.X is not None and check.y is not None:
            checked = losses(np.hstack(check.X), check.y)
            metrics |= estimate("check_log_loss", checked, check.weights, n)
        if self.sampling != "full":
            metrics["sigma_min"] = sigma_min(self._scored(coreset.X, w, holder), w)
        theta_j = np.split(theta, np.cumsum(widths)[:-1])
        rows = [block[None] for block in theta_j]
        number = keep_parts(
            parties, "logistic", rows, intercept, holder, needed=held > 0
        )
        if held:
            curves = parties.let("curves", *range(len(parties)))
            told = predict_rows(
                parties,
                holder,
                1,
                held,
                evaluate=True,
                curves=curves,
                test_fraction=self.test_fraction,
            )
            metrics |= metrics_of(told)
            run.curves = curves_of(told)
        arrays = LogisticModel(theta_j, intercept, number, classes).to_record()
        run.record(1, arrays, metrics)
        return arrays

    def _scored(self, X: list[Array], w: Array, holder: int) -> list[Array]:
        """Return the blocks by which the parties scored the rows."""
        if not self.fit_intercept:
            return X
        blocks = [center(block, w) for block in X]
        blocks[holder] = np.column_stack([blocks[holder], np.ones(len(w))])
        return blocks
