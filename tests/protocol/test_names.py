"""What somebody else chose forges no line of a log, a terminal or a report."""

import io
import logging

import pytest

from vfl_flower.app.report.report import markdown
from vfl_flower.party.answering import Hello
from vfl_flower.party.consent import Consent
from vfl_flower.protocol.contract import ContractError, fields_of, structure
from vfl_flower.protocol.names import is_name, printable
from vfl_flower.protocol.terms import Computing, Terms

FORGED = 'server"]\n\x1b[2K\rINFO ask your admin; add:\n[leaves]\nrows = true\n#'


@pytest.fixture
def shown():
    logger, stream = logging.getLogger("vfl_flower"), io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    yield stream.getvalue
    logger.removeHandler(handler)


@pytest.mark.parametrize("field", ["dealer", "computes"])
def test_terms_name_printable_parties_alone(field):
    assert structure(fields_of(Terms), {f"computing.{field}": "clinic"}, {})
    with pytest.raises(ContractError, match=f"{field}.*printable"):
        structure(fields_of(Terms), {f"computing.{field}": FORGED}, {})


@pytest.mark.parametrize("field", ["name", "version", "lacks", "columns"])
def test_a_reply_to_hello_has_printable_texts(field):
    text = [FORGED] if field in ("lacks", "columns") else FORGED
    with pytest.raises(ContractError, match=rf"{field}.*printable|list of text"):
        structure({field: fields_of(Hello)[field]}, {field: text}, {})


def test_advice_on_the_consent_quotes_names():
    lines = Consent().lacks(Terms(computing=Computing('a"]; rows = true #'), parties=3))
    assert lines == ['dealers = ["a\\"]; rows = true #"]']


@pytest.mark.parametrize("text", [FORGED, ValueError(FORGED)])
def test_the_log_shows_one_line_a_record(shown, text):
    logging.getLogger("vfl_flower").error("refused %s: %s", "a_step", text)
    assert shown().count("\n") == 1
    assert "\x1b" not in shown()
    assert "\r" not in shown()


def test_a_stack_forges_no_line_of_a_log(shown):
    try:
        raise RuntimeError(FORGED)
    except RuntimeError:
        logging.getLogger("vfl_flower").exception("step %s failed", "a_step")
    first, *stack = shown().splitlines()
    assert first == "ERROR step a_step failed"
    assert all(line.startswith("  ") for line in stack)
    assert "\x1b" not in shown()


def test_printable_text_stays():
    assert printable("Łódź 北京 50 %") == "Łódź 北京 50 %"
    assert is_name("Łódź")
    assert not any(map(is_name, ["", "a\nb", "a\u202eb", "x" * 101, None]))


def test_markdown_shows_a_text_as_it_is():
    cell = markdown("a|b `c` <script>[x](y)\n# d")
    assert "\n" not in cell
    for sign in "|`<>[]#":
        at = [i for i, c in enumerate(cell) if c == sign]
        assert at
        assert all(cell[i - 1] == "\\" for i in at)
