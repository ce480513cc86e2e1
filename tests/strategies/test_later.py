"""What the tasks with a trained model share: checks of parties, and what they log."""

from types import SimpleNamespace

import numpy as np
import pytest

from vfl_flower.models.base import UsedModel
from vfl_flower.server.exchange import FederationError
from vfl_flower.server.replies import Replies
from vfl_flower.server.strategy import Run
from vfl_flower.strategies import (
    CoresetEvaluation,
    CoresetPrediction,
    MUFCStatus,
    Removal,
)
from vfl_flower.strategies.later import check_places, log_clusters

MODEL = "0123abcd"
FILE = f"predictions-{MODEL}-00000000000000ab.csv"


class Connected(list):
    n_rows, session = 7, 0xAB


PARTIES = Connected(SimpleNamespace(name=name) for name in ("north", "south"))


@pytest.mark.parametrize("kind", [CoresetPrediction, CoresetEvaluation])
def test_predictions_stay_and_an_evaluation_is_recorded(kind, caplog):
    run, reply = Run(0), {"test_mae": 0.5, "curve_rows": np.array([1, 2])}
    with caplog.at_level("INFO", "vfl_flower"):
        kind(MODEL).finish(PARTIES, run, 1, reply, UsedModel(MODEL))
        log_clusters(PARTIES, MODEL)
    if kind is CoresetEvaluation:
        assert run.train_metrics[1] == {"rows": 7, "test_mae": 0.5}
        assert run.curves == {"rows": [1, 2]}
    else:
        assert (run.train_metrics[1], run.curves) == ({"rows": 7}, {})
        line = f"7 predictions are stored at 'south', in the file {FILE} of its "
        assert caplog.messages[0] == line + "state-dir"
    line = f"the clusters are in {FILE} in each party's state-dir"
    assert caplog.messages[-1] == line


@pytest.mark.parametrize(
    ("kind", "settings", "rule"),
    [
        (Removal, {"model_id": ""}, "the id of a trained model, .* got none$"),
        (Removal, {"model_id": "../0123ab"}, "8 to 32 lower-case hexadecimal digits"),
        (CoresetPrediction, {"n_parties": 1}, "n_parties must be .* at least 2, got 1"),
        (Removal, {"seed": 1}, "seed has no effect with .*, got 1"),
        (MUFCStatus, {"server_state": "/state", "seed": 3}, "seed has no .*, got 3"),
    ],
)
def test_refused_settings(kind, settings, rule):
    with pytest.raises(ValueError, match=f"^(model_id must be )?{rule}"):
        kind(**{"model_id": MODEL} | settings)


PLACES = [{"index": j, "parties": 2, "target": "binary"} for j in range(2)]


def check(*replies):
    def failure(j, reason):
        return FederationError(f"party {j}: {reason}")

    check_places(PARTIES, Replies(list(replies), failure), ["target"])


def test_all_parties_of_training_have_their_places():
    check(*PLACES)
    with pytest.raises(FederationError, match=r"'north' .* index .* in training, 1"):
        check(*PLACES[::-1])
    with pytest.raises(FederationError, match=r"party 1: .* same target as 'north'"):
        check(PLACES[0], PLACES[1] | {"target": "continuous"})
    with pytest.raises(FederationError, match=r"all 3 parties .* has 2 parties$"):
        check(PLACES[0] | {"parties": 3}, PLACES[1])
