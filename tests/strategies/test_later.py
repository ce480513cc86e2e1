"""What the tasks with a trained model share: checks of parties, and what they log."""

from types import SimpleNamespace

import numpy as np
import pytest

from vfl_flower.models.base import UsedModel
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.replies import Replies
from vfl_flower.server.strategy import Run
from vfl_flower.strategies import CoresetEvaluation, CoresetPrediction, Removal
from vfl_flower.strategies.later import check_places, log_clusters

MODEL = "0123abcd"


class Connected(list):
    n_rows, session = 7, 0xAB


PARTIES = Connected(SimpleNamespace(name=name) for name in ("north", "south"))


def finished(strategy, reply, caplog):
    run, model = Run(0), UsedModel(MODEL)
    with caplog.at_level("INFO", "vfl_flower"):
        strategy.finish(PARTIES, run, 1, reply, model)
    return run, [record.getMessage() for record in caplog.records]


def test_predictions_stay_at_the_receiver_where_the_log_says(caplog):
    run, lines = finished(CoresetPrediction(MODEL), {"test_mae": 0.5}, caplog)
    assert run.train_metrics[1] == {"rows": 7}
    file = f"predictions-{MODEL}-00000000000000ab.csv"
    assert lines == [f"7 predictions are at 'south', in {file} of its state-dir"]


def test_an_evaluation_records_its_metrics_and_curves(caplog):
    reply = {"test_mae": 0.5, "curve_rows": np.array([1, 2])}
    run, lines = finished(CoresetEvaluation(MODEL), reply, caplog)
    assert run.train_metrics[1] == {"rows": 7, "test_mae": 0.5}
    assert (run.curves, lines) == ({"rows": [1, 2]}, [])


def test_clusters_stay_at_each_party_where_the_log_says(caplog):
    with caplog.at_level("INFO", "vfl_flower"):
        log_clusters(PARTIES, MODEL)
    assert f"in predictions-{MODEL}-00000000000000ab.csv of each party" in caplog.text


@pytest.mark.parametrize("settings", [{"model_id": "../0123ab"}, {"seed": 1}])
def test_refused_settings(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        Removal(**{"model_id": MODEL} | settings)


PLACES = [{"index": j, "parties": 2, "target": "binary"} for j in range(2)]


def check(*replies):
    def failure(j, reason):
        return FederationError(f"party {j}: {reason}")

    check_places(PARTIES, Replies(list(replies), failure), ["target"])


def test_all_parties_of_training_have_their_places():
    check(*PLACES)
    with pytest.raises(FederationError, match=r"'north' .* place of training, 1"):
        check(*PLACES[::-1])
    with pytest.raises(FederationError, match=r"party 1: .* the target of 'north'"):
        check(PLACES[0], PLACES[1] | {"target": "continuous"})
    with pytest.raises(FederationError, match=r"the 3 parties of training .* 2 do"):
        check(PLACES[0] | {"parties": 3}, PLACES[1])
