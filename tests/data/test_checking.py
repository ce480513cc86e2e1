"""Twenty planted faults in each of ten dirty files: all found in one call, no value."""

import gzip
import io
import logging
import zipfile

import numpy as np
import pandas as pd
import pytest
from party_files import findings_in, load
from typer.testing import CliRunner

from vfl_flower.app.commands.cli import app
from vfl_flower.app.config import party_source
from vfl_flower.data.checking import check
from vfl_flower.data.source import PartySource
from vfl_flower.party.party import PartyError

N = 400
SECRETS = ("Secretville", "zqx", "31337", "Undisclosed", "hunter")
"""Parts of values that stand in the dirty files, and in no message."""


def clean(seed):
    rng = np.random.default_rng(seed)

    def numbers(digits=3):
        return [f"{x:.{digits}f}" for x in rng.normal(1, 2, N)]

    return {
        "patient": [f"p{i}" for i in rng.permutation(N)],
        **{name: numbers() for name in ("age", "lab", "ratio", "pulse", "weight")},
        "outcome": rng.choice(["0", "1"], N).tolist(),
    }


def some(columns, name, value, every=9):
    columns[name] = [
        value if i % every == 2 else x for i, x in enumerate(columns[name])
    ]


def texts(columns, name, levels):
    rng = np.random.default_rng(len(name))
    columns[name] = list(levels) + rng.choice(levels, N - len(levels)).tolist()


def twice(columns):
    columns["patient"][7] = columns["patient"][3]


def rare(columns):
    names = [f"Secretville{i}" for i in range(130)]
    columns["city"] = names + [names[i % 3] for i in range(N - 130)]


FAULTS = {
    ("markers", "lab"): lambda c: some(c, "lab", "Undisclosed"),
    ("missing", "age"): lambda c: some(c, "age", "?"),
    ("yes-no", "smoker"): lambda c: texts(c, "smoker", ["Yes", "no"]),
    ("dates", "visit"): lambda c: texts(c, "visit", ["2020-02-01", "2020-02-03 10:30"]),
    ("dates", "born"): lambda c: texts(c, "born", ["1/2/1950", "3/11/1931"]),
    ("numbers", "income"): lambda c: texts(c, "income", ["1,231,337", "22,100,313"]),
    ("classes", "outcome"): lambda c: texts(c, "outcome", ["zqx-died", "zqx-alive"]),
    ("levels", "city"): rare,
    ("levels", "note"): lambda c: texts(c, "note", [f"zqx {i}" for i in range(N)]),
    ("text", "ward"): lambda c: texts(c, "ward", ["zqx-a", "zqx-b", "zqx-c"]),
    ("constant", "country"): lambda c: texts(c, "country", ["Secretville"]),
    ("duplicate", "weight2"): lambda c: c.update(weight2=list(c["weight"])),
    ("id", "row"): lambda c: c.update(row=[str(31337 + i) for i in range(N)]),
    ("scales", "salt"): lambda c: c.update(
        salt=[str(313370 * (i % 5)) for i in range(N)]
    ),
    ("tails", "cost"): lambda c: c.update(
        cost=["31.337", *("1.1", "1.2") * (N // 2)][:N]
    ),
    ("ids", "patient"): twice,
    ("empty", "blank"): lambda c: c.update(blank=["NA"] * N),
    ("infinite", "ratio"): lambda c: some(c, "ratio", "inf"),
    ("coded", "pulse"): lambda c: some(c, "pulse", "-99", 40),
    ("spelling", "sex"): lambda c: texts(c, "sex", ["hunter", "Hunter ", "gatherer"]),
}
"""The faults by what a finding is about, and its column; each plants itself."""


def as_text(columns, delimiter=","):
    file = io.StringIO()
    pd.DataFrame(columns).to_csv(file, index=False, sep=delimiter)
    return file.getvalue()


def zipped(text):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("party.csv", text)
    return file.getvalue()


FORMS = {
    "comma.csv": lambda c, p: p.write_text(as_text(c)),
    "semicolon.csv": lambda c, p: p.write_text(as_text(c, ";")),
    "tab.tsv": lambda c, p: p.write_text(as_text(c, "\t")),
    "bar.csv": lambda c, p: p.write_text(as_text(c, "|")),
    "mark.csv": lambda c, p: p.write_text(as_text(c), encoding="utf-8-sig"),
    "wide.csv": lambda c, p: p.write_text(as_text(c, ";"), encoding="utf-16"),
    "packed.csv.gz": lambda c, p: p.write_bytes(gzip.compress(as_text(c).encode())),
    "packed.csv.zip": lambda c, p: p.write_bytes(zipped(as_text(c))),
    "typed.parquet": lambda c, p: pd.DataFrame(c).to_parquet(p),
    "typed.feather": lambda c, p: pd.DataFrame(c).to_feather(p),
}
"""Ten files, and who writes them."""


def source(path, **options):
    options = {"id_column": "patient", "label_column": "outcome"} | options
    return PartySource(data=str(path), **options)


def found_in(path, level=("error", "warning", "note"), **options):
    findings = check(source(path, **options)).findings
    return {(f.about, f.column) for f in findings if f.level in level}


@pytest.fixture(params=list(enumerate(FORMS)), ids=list(FORMS))
def dirty(request, tmp_path):
    seed, name = request.param
    columns = clean(seed)
    for plant in FAULTS.values():
        plant(columns)
    FORMS[name](columns, tmp_path / name)
    return tmp_path / name


def test_twenty_faults_are_found_in_one_call(dirty):
    assert len(FAULTS) == 20
    assert set(FAULTS) <= found_in(dirty)


def test_a_run_says_all_that_must_be_fixed_at_once(dirty, caplog):
    errors = [f for f in check(source(dirty)).findings if f.level == "error"]
    with pytest.raises(PartyError) as caught:
        load(dirty, id_column="patient", label_column="outcome")
    text = str(caught.value)
    assert len(errors) == 7
    assert "has 7 faults: (1) " in text
    for finding in errors:
        assert repr(finding.column) in text
    assert text.partition("(1) ")[2].split("; (2)")[0] in caplog.text
    assert not any(secret in text + caplog.text for secret in SECRETS)


def test_no_value_is_printed_or_logged_unless_asked_for(dirty, caplog):
    options = ["--id-column", "patient", "--label-column", "outcome"]
    run = CliRunner(env={"COLUMNS": "1000"})
    with caplog.at_level(logging.DEBUG):
        quiet = run.invoke(app, ["check", str(dirty), *options])
    assert quiet.exit_code == 1
    assert not any(secret in quiet.output + caplog.text for secret in SECRETS)
    shown = run.invoke(app, ["check", str(dirty), *options, "--show"])
    assert all(secret in shown.output for secret in SECRETS if secret != "31337")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["left", "stayed"],
            "0 and 1 in sorted order; the second is the positive class",
        ),
        (["left", "moved", "stayed"], "0 to 2 in sorted order"),
    ],
)
def test_which_number_a_class_becomes_is_said(tmp_path, words, said):
    columns = clean(0)
    texts(columns, "outcome", words)
    FORMS["comma.csv"](columns, tmp_path / "x.csv")
    findings = check(source(tmp_path / "x.csv")).findings
    (finding,) = (f for f in findings if f.about == "classes")
    assert finding.text.endswith(said)


@pytest.mark.parametrize("name", FORMS)
def test_a_clean_file_has_nothing_to_look_at(tmp_path, name):
    FORMS[name](clean(0), tmp_path / name)
    assert found_in(tmp_path / name, ("error", "warning")) == set()


@pytest.mark.parametrize("key", FAULTS, ids=str)
def test_each_fault_alone_is_found_and_nothing_else(tmp_path, key):
    columns = clean(1)
    FAULTS[key](columns)
    FORMS["comma.csv"](columns, tmp_path / "a.csv")
    assert key in found_in(tmp_path / "a.csv")
    assert found_in(tmp_path / "a.csv", ("error", "warning")) <= {key}


# -- faults of the whole file ----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("31337,0.5,zqx\n2,0.7,zqx\n3,0.1,abc\n", "has no header"),
        ("31337;zqx;2020-01-01\n2;zqx;2020-02-01\n", "has no header"),
        ("31337\n2\n3\n", "has no header"),
        ("0\n1\n1\n", "has no header"),
        ("17,zqx-ann,0.5\n18,zqx-bob,0.7\n", "has no header"),
        ("zqx-ann,hunter,47\nzqx-bob,Secretville,18\n", "has no header"),
        (zipped("a\n1\n")[:-9], "cannot be read"),
    ],
)
def test_faults_of_a_whole_file(write, text, words):
    name = "a.csv.zip" if text[:2] == b"PK" else "a.csv"
    checked = check(PartySource(data=str(write(text, name))))
    assert not checked.sound
    said = "; ".join(finding.text for finding in checked.findings)
    assert words in said
    assert not any(secret in said for secret in SECRETS)


@pytest.mark.parametrize(
    "text",
    [
        "0,1,2\n5,6,7\n8,9,1\n",
        ",0\n0,5\n1,7\n",
        "id,2019,2020\n1,2,3\n",
        "a\nb\nc\n",
        "id,0,1\nx,5,6\n",
        "id,2019,2020\n7,1980,5\n8,3,4\n",
        "name,sex\na,f\nname,sex\nb,m\n",
        "control,case\n1,2\n3,4\n",
        "x,1\n5,3\n6,7\n",
    ],
)
def test_what_may_be_a_header_is_one(write, text):
    findings = findings_in(write(text))
    assert all(finding.about != "header" for finding in findings)


def test_a_wrong_column_is_said_with_the_nearest_one(write):
    path = write("Patient_ID,b,outcome\n1,x,0\n2,y,1\n")
    given = PartySource(data=str(path), id_column="patient_id", label_column="outcom")
    first, second = [f for f in check(given).findings if f.level == "error"]
    assert (first.option, second.option) == ("id-column", "label-column")
    assert first.text.endswith("(its id-column); did you mean 'Patient_ID'?")
    assert second.text.endswith("(its label-column); did you mean 'outcome'?")


def test_what_was_told_from_the_file_is_noted(write):
    path = write("a;b\n1,5;Köln\n2,5;Bonn\n".encode("latin-1"))
    found = findings_in(path)
    assert {f.about for f in found} == {"delimiter", "encoding", "decimal", "text"}


# -- levels that parties which hold rows should share ----------------------------------


IDS = {
    "customer": [f"zqx{i}" for i in range(N)],
    "visit_id": [f"zqx{i // 10}" for i in range(N)],
    "account": [f"zqx{i // 3}" for i in range(N)],
    "comment": [f"zqx{i}" if i % 3 else "nothing" for i in range(N)],
}
"""Ids, by name or by values, and free text: texts of one, ten, three rows, and most."""


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("id_column", [None, "patient"])
def test_columns_like_ids_are_no_levels_to_share(tmp_path, name, id_column):
    columns = clean(0) | {name: IDS[name]}
    for other, levels in (("ward", "abc"), ("site_id", ["zqx-n", "zqx-s"])):
        texts(columns, other, list(levels))
    FORMS["comma.csv"](columns, tmp_path / "a.csv")
    options = {"id_column": id_column, "label_column": "outcome", "rows": True}
    findings = check(source(tmp_path / "a.csv", **options)).findings
    (text,) = (f.text for f in findings if f.about == "share")
    assert text.startswith("the levels of 'ward', 'site_id' must be the same")


def test_few_rows_of_a_column_are_levels_unless_each_has_its_own(write):
    path = write("id,colour,x\n" + "".join(f"p{i},c{i % 3},{i}\n" for i in range(9)))
    found = findings_in(path, rows=True)
    (text,) = (finding.text for finding in found if finding.about == "share")
    assert text.startswith("the levels of 'colour' must be the same")


def test_ids_are_proposed_as_id_column_where_there_is_none(tmp_path):
    columns = clean(0) | {"account": IDS["account"]}
    FORMS["comma.csv"](columns, tmp_path / "a.csv")
    said = {f.column: f for f in check(source(tmp_path / "a.csv")).findings}
    assert "id-column" not in said["account"].text
    findings = check(source(tmp_path / "a.csv", id_column=None)).findings
    said = {f.column: f for f in findings}
    assert "use the column as id-column, or leave" in said["patient"].text
    assert "id-column" not in said["account"].text  # its values are not distinct


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([f"{'Aa'[i < 9]}{i:03}" for i in range(50)], "9 with small"),
        ([f"AB{i:02}" + " X" * (i < 3) for i in range(50)], "3 ids whose blanks"),
        ([f"AB-{i}" for i in range(1, 9)] + ["AB-02"], "1 ids that differ"),
        ([str(i) for i in range(99_000, 112_000, 100)], "10 ids that are not 6"),
    ],
)
def test_ids_that_are_not_written_alike(write, ids, words):
    """No id is in a finding, and ids from 1 to n are no warning."""
    path = write("id,x\n" + "".join(f"{text},{k}\n" for k, text in enumerate(ids)))
    findings = findings_in(path, id_column="id")
    said = [f for f in findings if f.about == "id-form"]
    assert any(f.level == "warning" and words in f.text for f in said), said
    assert said[-1].level == "note"
    assert not any(text in f.text for f in said for text in ids)


def test_ids_written_alike_have_nothing_to_look_at(write):
    for texts in (range(1, 2500), [f"0{i}" for i in range(10_000, 12_000)]):
        path = write("id,x\n" + "".join(f"{text},1\n" for text in texts))
        findings = findings_in(path, id_column="id")
        (note,) = [f for f in findings if f.about == "id-form"]
        assert note.level == "note"


# -- the command -----------------------------------------------------------------------


def test_what_concerns_a_strategy_is_said_where_it_is_asked_for(tmp_path):
    columns = clean(0)
    FAULTS["scales", "salt"](columns)
    texts(columns, "ward", ["a", "b"])
    FORMS["comma.csv"](columns, tmp_path / "a.csv")

    def said(*strategies):
        words = [word for name in strategies for word in ("--for", name)]
        options = ["--id-column", "patient", "--label-column", "outcome", *words]
        run = CliRunner(env={"COLUMNS": "1000"})
        return run.invoke(app, ["check", str(tmp_path / "a.csv"), *options]).output

    of_columns = "standardize=true if parties hold columns"
    of_rows = "the levels of 'ward' must be the same"
    assert of_columns in said()
    assert of_rows not in said()
    assert said("fdskl", "coreset-vrlr", "fdskl") == said("fdskl") == said()
    assert of_rows in said("fk-kmeans")
    assert of_columns not in said("fk-kmeans")
    several = said("fdskl", "fk-kmeans", "mufc")
    assert several.count(of_columns) == several.count(of_rows) == 1
    for_columns, for_rows = several.index("For fdskl:"), several.index("For fk-kmeans,")
    assert for_columns < several.index(of_columns) < for_rows < several.index(of_rows)
    assert several.count("'ward' holds 2 distinct strings") == 1
    assert "\nmufc: 400 rows, 6 columns of numbers; to fix: 1," in several
    assert "strategy must be one of" in said("magic")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("a.csv", ["--delimiter", "ab"], "delimiter must be one character"),
        ("a.csv", ["--encoding", "latin-77"], "must be a text encoding of Python"),
        ("none.csv", [], "data file not found: '{}'"),
    ],
)
def test_wrong_options_of_the_command(write, name, options, words):
    path = write("a\n1\n", "a.csv").with_name(name)
    done = CliRunner().invoke(app, ["check", str(path), *options])
    assert done.exit_code == 1
    assert words.format(path) in done.output


def test_a_query_is_for_the_config_of_a_node_alone():
    with pytest.raises(ValueError, match="query in a node config"):
        party_source({}, {"data": "duckdb:SELECT 1"})
    assert party_source({"data": "duckdb:SELECT 1"}, {}).data == "duckdb:SELECT 1"
