"""Assignment of new rows to the clusters of a trained model, by each party's map."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from flwr.app import ArrayRecord

from vfl_flower.clients.kernel_kmeans import clustering as party
from vfl_flower.models.base import UsedModel
from vfl_flower.protocol.settings import settings
from vfl_flower.protocol.steps import Steps
from vfl_flower.protocol.terms import Terms
from vfl_flower.server.parties import Parties
from vfl_flower.server.strategy import Run
from vfl_flower.strategies.evaluation import record_model
from vfl_flower.strategies.kernel_kmeans.metrics import NEW_CLUSTERS
from vfl_flower.strategies.later import LaterTask, log_clusters


@settings
class FKKMeansPrediction(LaterTask):
    """Assignment of new rows to clusters; the rows stay at their parties.

    =============  =====================================  ==========================
    round trip     party m sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, digests of column names,  all of it
                   key
    predict        nothing                                nothing
    =============  =====================================  ==========================

    The task is for models trained with ``cem`` on rows that are split among parties.
    Each party has a complete map from rows to clusters, and writes the clusters of its
    new rows to a file in its ``state-dir``. Not all training parties need to take part.

    Raises
    ------
    PartyFailed
        A party has no local model, its local model has no map, or its columns differ
        from the training columns.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import vfl_flower as vf
    >>> data = {"X": [[k / 100] for k in range(50)], "ids": range(50)}
    >>> with TemporaryDirectory() as home:
    ...     parties = [vf.Party(**data, name=n, state_dir=f"{home}/{n}") for n in "abc"]
    ...     model = vf.simulate(vf.FKKMeans(n_clusters=2, iterations=2), parties).model
    ...     vf.simulate(FKKMeansPrediction(model.id), parties).metrics["rows"]
    150
    """

    task = "predict"
    question = "Which cluster does each new row belong to?"
    explained = NEW_CLUSTERS
    partition = "horizontal"
    fills = True
    model_class = UsedModel
    steps: ClassVar[Steps] = (party.predict,)

    def protocol(self, parties: Parties, run: Run) -> ArrayRecord:
        """Ask all parties in one round trip."""
        return record_model(run, UsedModel(self.model_id), self.ask(parties))

    def ask(self, parties: Parties) -> dict[str, Any]:
        """Have the parties assign their rows to clusters; return metrics."""
        parties.ask(party.predict)
        log_clusters(parties, self.model_id)
        return {"rows": parties.n_rows}


@settings
class FKKMeansEvaluation(FKKMeansPrediction):
    """Evaluation of clusters by the mean squared distance of new rows to centres.

    =============  =====================================  ==========================
    round trip     party m sends                          the server learns
    =============  =====================================  ==========================
    hello          name, sizes, digests of column names,  all of it
                   key
    evaluate       cost of its rows, masked               the sum over the parties
    =============  =====================================  ==========================

    ``test_loss`` is measured in the space of the embedding, like the ``inertia`` of
    training divided by the number of training rows. Each party needs at least 20 rows,
    and writes nothing. See :class:`FKKMeansPrediction`.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import vfl_flower as vf
    >>> data = {"X": [[k / 100] for k in range(50)], "ids": range(50)}
    >>> with TemporaryDirectory() as home:
    ...     parties = [vf.Party(**data, name=n, state_dir=f"{home}/{n}") for n in "abc"]
    ...     model = vf.simulate(vf.FKKMeans(n_clusters=2, iterations=2), parties).model
    ...     vf.simulate(FKKMeansEvaluation(model.id), parties).metrics["test_loss"] < 1
    True
    """

    task = "evaluate"
    question = "How well do the clusters fit new rows?"
    steps: ClassVar[Steps] = (party.evaluate,)

    @property
    def terms(self) -> Terms:
        """The cost of the rows, as in training."""
        return Terms(("row-sums",))

    def ask(self, parties: Parties) -> dict[str, Any]:
        """Return the mean cost over the rows of all parties, as metrics."""
        N = parties.n_rows
        sums = parties.ask_exactly(party.evaluate.summing(cost=4.0 * N)).sums
        if not 0 <= (cost := float(sums["cost"][0])) < math.inf:
            raise parties.faulty_sum(party.evaluate, "a cost")
        return {"test_rows": N, "test_loss": cost / N}
