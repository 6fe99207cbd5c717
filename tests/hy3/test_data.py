"""The data tools of the Hy3 recipe: prepare, validate, convert. No network."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

QUESTION = "What is 3+4? Write the result as 'Answer: X'."


def row(question: str = QUESTION, truth: str = "7", **change) -> dict:
    base = {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": question}],
        "ability": "MATH",
        "reward_model": {"style": "rule-lighteval/MATH_v2", "ground_truth": truth},
        "extra_info": {"index": "0"},
    }
    return {**base, **change}


@pytest.fixture
def rows(script):
    return script("hy3_rows")


@pytest.fixture
def prepare(script):
    return script("prepare_data")


@pytest.fixture
def validate(script):
    return script("validate_data")


@pytest.fixture
def convert(script):
    return script("convert_own")


# ------------------------------------------------------------------------------------------------------------ schema


def test_a_good_row_has_no_problems(rows):
    assert rows.problems(row()) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"data_source": ""}, "data_source: ''"),
        ({"data_source": None}, "data_source: missing"),
        ({"prompt": "1+1=?"}, "prompt: '1+1=?', must be a list"),
        ({"prompt": []}, "prompt: no message"),
        ({"prompt": ["1+1=?"]}, "prompt[0]: '1+1=?', must be an object"),
        ({"prompt": [{"role": "human", "content": "x"}]}, "prompt[0].role: 'human'"),
        ({"prompt": [{"role": "user", "content": " "}]}, "prompt[0].content: ' '"),
        ({"prompt": [{"role": "assistant", "content": "x"}]}, "ends with the role 'assistant'"),
        ({"ability": 3}, "ability: 3"),
        ({"reward_model": "7"}, "reward_model: '7', must be an object"),
        ({"reward_model": {"style": "rule"}}, "reward_model.ground_truth: None"),
        ({"reward_model": {"style": "rule", "ground_truth": 7}}, "reward_model.ground_truth: 7"),
        ({"extra_info": "x"}, "extra_info: 'x', must be an object"),
    ],
)
def test_each_problem_names_its_field(rows, change, problem):
    found = rows.problems(row(**change))
    assert len(found) == 1 and problem in found[0]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["data_source", "prompt", "ability", "reward_model", "extra_info"]), json_values)
)
def test_any_row_is_judged_without_raising(script, found):
    assert isinstance(script("hy3_rows").problems(found), list)


def test_rows_survive_parquet(rows, tmp_path):
    wanted = [row(f"question {number}") for number in range(10)]
    assert rows.write_parquet(tmp_path / "a" / "x.parquet", wanted, chunk=3) == 10
    assert list(rows.read_parquet(tmp_path / "a" / "x.parquet")) == wanted


def test_a_failed_write_leaves_the_old_file(rows, tmp_path):
    target = tmp_path / "x.parquet"
    rows.write_parquet(target, [row()])

    def broken():
        yield row()
        raise rows.DataError("stop")

    with pytest.raises(rows.DataError):
        rows.write_parquet(target, broken())
    assert len(list(rows.read_parquet(target))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]


def test_rows_of_another_type_are_named(rows, tmp_path):
    other = row(extra_info={"index": {"nested": 1}})
    with pytest.raises(rows.DataError, match="rows 2 to 2 differ in type"):
        rows.write_parquet(tmp_path / "x.parquet", [row(), other], chunk=1)


# ----------------------------------------------------------------------------------------------------------- prepare


@pytest.fixture
def sources(rows, tmp_path):
    repeated = [row(f"q{number % 5}", str(number % 5), extra="dropped") for number in range(20)]
    rows.write_parquet(tmp_path / "dapo.parquet", repeated)
    rows.write_parquet(tmp_path / "aime.parquet", [row("a", "204", data_source="aime2024")])
    return ["--train", str(tmp_path / "dapo.parquet"), "--val", str(tmp_path / "aime.parquet")]


def test_prepare_writes_where_the_launcher_looks(prepare, rows, sources, tmp_path, capsys):
    assert prepare.main(["--data-dir", str(tmp_path / "d"), *sources]) == 0
    train = list(rows.read_parquet(tmp_path / "d/DAPO-Math-17k/dapo-math-17k.parquet"))
    val = list(rows.read_parquet(tmp_path / "d/AIME-2024/aime-2024.parquet"))
    assert len(train) == 20 and set(train[0]) == set(rows.FIELDS)
    assert val[0]["data_source"] == "aime2024"
    assert "15 repeated prompts kept" in capsys.readouterr().out


def test_prepare_dedup_limit_and_dry_run(prepare, rows, sources, tmp_path, capsys):
    target = tmp_path / "d/DAPO-Math-17k/dapo-math-17k.parquet"
    assert prepare.main(["--data-dir", str(tmp_path / "d"), *sources, "--only", "train", "--dry-run"]) == 0
    assert not target.exists() and "not written" in capsys.readouterr().out
    prepare.main(["--data-dir", str(tmp_path / "d"), *sources, "--only", "train", "--dedup"])
    assert len(list(rows.read_parquet(target))) == 5
    prepare.main(["--data-dir", str(tmp_path / "d"), *sources, "--only", "train", "--limit", "2"])
    assert len(list(rows.read_parquet(target))) == 5, "an existing file is kept"
    prepare.main(["--data-dir", str(tmp_path / "d"), *sources, "--only", "train", "--limit", "2", "--force"])
    assert len(list(rows.read_parquet(target))) == 2


def test_prepare_refuses_bad_rows_and_writes_nothing(prepare, rows, sources, tmp_path, capsys):
    rows.write_parquet(tmp_path / "dapo.parquet", [row(), row(ability="")])
    assert prepare.main(["--data-dir", str(tmp_path / "d"), *sources]) == 1
    assert "row 1: ability: ''" in capsys.readouterr().err
    assert not list((tmp_path / "d").rglob("*.parquet"))


def test_without_network_prepare_says_what_to_do(prepare, tmp_path, monkeypatch, capsys):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert prepare.main(["--data-dir", str(tmp_path), "--train", "owner/no-such-set-here"]) == 1
    error = capsys.readouterr().err
    assert "owner/no-such-set-here: cannot be loaded" in error and "give that file instead" in error


def test_a_missing_file_is_named(prepare, tmp_path, capsys):
    assert prepare.main(["--data-dir", str(tmp_path), "--train", str(tmp_path / "no.parquet")]) == 1
    assert "no.parquet: no such file" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------- validate


def test_validate_accepts_good_files(validate, rows, tmp_path, capsys):
    rows.write_parquet(tmp_path / "x.parquet", [row(), row("b", "\\frac{3}{4}")])
    assert validate.main([str(tmp_path / "x.parquet")]) == 0
    assert "2 rows, 0 errors, 0 warnings; data_source: math_dapo 2" in capsys.readouterr().out


def test_validate_counts_errors_and_warnings(validate, rows, tmp_path, capsys):
    bad = [row(data_source="my_set"), row(truth=" "), row(truth="x=y=z, 3/4 of a units")]
    rows.write_parquet(tmp_path / "x.parquet", bad)
    assert validate.main([str(tmp_path / "x.parquet"), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [(finding["row"], finding["problem"].split(":")[0]) for finding in report["errors"]] == [
        (0, "data_source"),
        (1, "reward_model.ground_truth"),
    ]
    assert validate.main([str(tmp_path / "x.parquet"), "--no-rewards"]) == 1
    assert "row 1" in capsys.readouterr().out


@pytest.mark.parametrize("source", ["math_dapo", "aime2024", "lighteval/MATH", "openai/gsm8k", "numina_cn_k12"])
def test_a_plain_reference_scores_in_every_rule(validate, rows, tmp_path, source):
    rows.write_parquet(tmp_path / "x.parquet", [row(data_source=source, truth="72")])
    report = validate.check_file(str(tmp_path / "x.parquet"), rewards=True)
    assert report["errors"] == [] and report["warnings"] == []


def test_validate_needs_readable_files(validate, tmp_path, capsys):
    (tmp_path / "x.parquet").write_text("no parquet")
    assert validate.main([str(tmp_path / "x.parquet")]) == 2
    assert "cannot be read as parquet" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------------- convert


def test_own_records_become_valid_rows(convert, validate, rows, tmp_path):
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"problem": f"What is {number}+1?", "solution": number + 1}) + "\n" for number in range(200))
    )
    (tmp_path / "b.csv").write_text('problem,solution\n"What, is 2*2?",4\n')
    arguments = ["--inputs", str(tmp_path / "a.jsonl"), str(tmp_path / "b.csv"), "--question-key", "problem"]
    arguments += ["--answer-key", "solution", "--val_ratio", "0.2", "--system", "Be brief."]
    train, val = tmp_path / "t.parquet", tmp_path / "v.parquet"
    assert convert.main([*arguments, "--output_train", str(train), "--output_val", str(val)]) == 0
    parts = {path: list(rows.read_parquet(path)) for path in (train, val)}
    assert len(parts[train]) + len(parts[val]) == 201 and 20 < len(parts[val]) < 60
    assert parts[val][0]["extra_info"]["split"] == "val"
    assert parts[train][0]["prompt"][0] == {"role": "system", "content": "Be brief."}
    assert "Answer: <the result>" in parts[train][0]["prompt"][1]["content"]
    assert validate.main([str(train), str(val)]) == 0


def test_a_question_stays_on_its_side(convert):
    assert convert.is_validation("a  b", 0.5, 1) == convert.is_validation("a b", 0.5, 1)
    share = sum(convert.is_validation(f"q{number}", 0.3, 0) for number in range(2000)) / 2000
    assert 0.25 < share < 0.35


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"question": "q"}\n', "a.jsonl:1: field 'answer' is missing or empty; the record has question"),
        ('{"question": "q", "answer": ""}\n', "field 'answer' is missing"),
        ('{"question": "q", "answer": [1]}\n', "field 'answer' is list"),
        ('{"question": "q", "answer": 1}\nnope\n', "a.jsonl:2: no JSON"),
        ("[1]\n", "a.jsonl:1: a line must hold one JSON object"),
    ],
)
def test_bad_records_are_named_and_nothing_is_written(convert, tmp_path, text, problem, capsys):
    (tmp_path / "a.jsonl").write_text(text)
    assert convert.main(["--inputs", str(tmp_path / "a.jsonl"), "--output_train", str(tmp_path / "t.parquet")]) == 1
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "t.parquet").exists()


def test_a_template_needs_its_place(convert, tmp_path, capsys):
    (tmp_path / "t.txt").write_text("no place")
    with pytest.raises(SystemExit) as stop:
        convert.main(["--inputs", "x.jsonl", "--output_train", "t.parquet", "--template", str(tmp_path / "t.txt")])
    assert stop.value.code == 2 and "{question}" in capsys.readouterr().err
