"""The Python interface: texts and labels in, arrays out."""

import json
import logging
import pickle

import numpy as np
import pytest
from sklearn.base import clone

import headstart as hs
from headstart.data.built_in import imdb
from headstart.errors import HeadstartError

TINY = {
    "model": {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16},
    "tokenizer": {"type": "characters"},
    "training": {"max_length": 24, "batch_size": 8, "eval_steps": 50},
    "optimizer": {"learning_rate": 1e-2},
}
TEXTS = [f"{word} film number {number}" for number in range(30) for word in ("good", "bad")]
LABELS = ["positive", "negative"] * 30


def tiny(**params):
    return hs.TextClassifier(**{"base": "scratch", "steps": 30, "config": TINY, **params})


@pytest.fixture(scope="module")
def fitted():
    return tiny().fit(TEXTS, LABELS)


def test_fit_and_predict(fitted):
    assert fitted.classes_.tolist() == ["negative", "positive"]
    probabilities = fitted.predict_proba(TEXTS)
    assert probabilities.shape == (60, 2)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert (fitted.predict(TEXTS) == fitted.classes_[probabilities.argmax(axis=1)]).all()
    assert fitted.score(TEXTS, LABELS) == (fitted.predict(TEXTS) == np.array(LABELS)).mean() > 0.9
    assert fitted.predict([]).shape == (0,)
    assert fitted.predict_proba([]).shape == (0, 2)
    assert fitted.curve_[-1]["accuracy"] > 0.8


def test_labels_come_back_as_they_were_given():
    labels = np.array([10, 9] * 30)  # as strings, "10" comes first
    model = tiny().fit(tuple(TEXTS), labels)
    assert model.classes_.tolist() == [9, 10]
    assert model.score(TEXTS, labels) > 0.9
    assert model.predict(TEXTS[:1]).dtype == labels.dtype


def test_a_saved_model_answers_the_same(fitted, tmp_path):
    expected = fitted.predict_proba(TEXTS)
    fitted.save_pretrained(tmp_path / "model")
    loaded = hs.TextClassifier.from_pretrained(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(TEXTS), expected)
    assert loaded.get_params()["steps"] == 30
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(TEXTS), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(loaded)).predict_proba(TEXTS), expected)
    assert next(iter(hs.predict(str(tmp_path / "model"), str(_lines(tmp_path, TEXTS[:3])))))[0] == "positive"
    with pytest.raises(HeadstartError, match="not empty"):
        fitted.save_pretrained(tmp_path / "model")
    fitted.save_pretrained(tmp_path / "model", overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(HeadstartError, match="no saved model"):
        fitted.save_pretrained(tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"


def test_integer_labels_are_saved(tmp_path):
    model = tiny(steps=2).fit(TEXTS, [10, 9] * 30)
    model.save_pretrained(tmp_path / "model")
    assert hs.TextClassifier.from_pretrained(tmp_path / "model").classes_.tolist() == [9, 10]


def test_a_pretrained_base_with_a_head_classifies_at_once():
    model = hs.TextClassifier.from_pretrained("en-tiny")
    assert model.predict(["a superb, moving film", "a dull mess"]).tolist() == ["positive", "negative"]


def test_the_same_seed_gives_the_same_model(fitted):
    np.testing.assert_array_equal(tiny().fit(TEXTS, LABELS).predict_proba(TEXTS), fitted.predict_proba(TEXTS))
    assert (tiny(seed=1).fit(TEXTS, LABELS).predict_proba(TEXTS) != fitted.predict_proba(TEXTS)).any()


@pytest.mark.slow
def test_python_gives_what_the_command_line_gives(tmp_path):
    """To the last digit, on IMDB in a CSV file that pandas reads."""
    pandas = pytest.importorskip("pandas")
    rows = imdb()[:200]
    path = tmp_path / "reviews.csv"
    pandas.DataFrame({"text": [row.text for row in rows], "label": [row.label for row in rows]}).to_csv(
        path, index=False
    )
    found = hs.finetune("en-tiny", str(path), tmp_path / "run", settings={"training": {"max_steps": 4}})

    table = pandas.read_csv(path)
    model = hs.TextClassifier("en-tiny", steps=4).fit(table["text"], table["label"])
    assert model.result_.score == found.score
    table["text"].head(20).to_csv(tmp_path / "new.csv", index=False)
    expected = list(hs.predict(str(tmp_path / "run"), str(tmp_path / "new.csv")))
    probabilities = model.predict_proba(table["text"].head(20))
    assert [probability for _, probability, _ in expected] == probabilities.max(axis=1).tolist()
    assert [label for label, _, _ in expected] == model.predict(table["text"].head(20)).tolist()


def test_a_run_directory_can_be_resumed(tmp_path):
    """A run from memory holds its data, so that a stopped one continues to the same weights."""
    expected = tiny(config={**TINY, "training": {**TINY["training"], "save_steps": 10}})
    expected.fit(TEXTS, LABELS, out=tmp_path / "whole")
    assert (tmp_path / "whole" / "data" / "train.jsonl").is_file()

    class Stop(Exception):
        pass

    def stop(event):
        if getattr(event, "step", 0) == 20 and type(event).__name__ == "Saved":
            raise Stop

    with pytest.raises(Stop):
        clone(expected).set_params(callbacks=[stop]).fit(TEXTS, LABELS, out=tmp_path / "part")
    hs.resume(tmp_path / "part")
    resumed = hs.TextClassifier.from_pretrained(tmp_path / "part")
    np.testing.assert_array_equal(resumed.predict_proba(TEXTS), expected.predict_proba(TEXTS))


def test_an_evaluation_set_is_what_the_run_validates_on():
    model = tiny(steps=5).fit(TEXTS, LABELS, eval_set=(TEXTS[:7], LABELS[:7]))
    assert model.result_.score.count == 7
    with pytest.raises(TypeError, match="eval_set"):
        tiny().fit(TEXTS, LABELS, eval_set=TEXTS)
    with pytest.raises(HeadstartError, match="neutral"):
        tiny().fit(TEXTS, LABELS, eval_set=(["a film"], ["neutral"]))


@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.5])
def test_a_fraction_is_held_out(fraction):
    texts = [f"{word} film {number}" for number in range(500) for word in ("good", "bad")]
    model = tiny(steps=1, validation_fraction=fraction).fit(texts, ["a", "b"] * 500)
    assert abs(model.result_.score.count / 1000 - fraction) < 0.05


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"base": "en-tny"}, "en-tiny"),
        ({"epochs": 1, "steps": 2}, "given twice"),
        ({"config": {"training": {"epochs": 3}}}, "no setting is called"),
        ({"config": {"training": {"max_steps": 3}}}, "both given"),
        ({"config": "fast"}, "config"),
        ({"learning_rate": -1}, "learning_rate"),
        ({"validation_fraction": 1.5}, "validation_fraction"),
    ],
)
def test_a_wrong_parameter_is_one_sentence(params, message):
    with pytest.raises(HeadstartError, match=message) as caught:
        tiny(**params).fit(TEXTS, LABELS)
    assert caught.value.hint in str(caught.value)


def test_a_typed_config_is_checked_at_once():
    with pytest.raises(HeadstartError, match="max_epochs"):
        hs.Config(training={"epochs": 3})
    config = hs.Config(training={"max_epochs": 3})
    assert config.given == {"training": {"max_epochs": 3}}


def test_an_unfitted_estimator_says_so():
    for call in (lambda model: model.predict(TEXTS), lambda model: model.save_pretrained("x")):
        with pytest.raises(ValueError, match="not fitted"):
            call(hs.TextClassifier())


def test_progress_goes_to_callbacks_and_to_the_logger(caplog, capsys):
    events = []
    with caplog.at_level(logging.INFO, "headstart"):
        tiny(steps=3, callbacks=[events.append]).fit(TEXTS, LABELS)
    assert {"StepDone", "Evaluated", "Note"} <= {type(event).__name__ for event in events}
    assert "settings for" in caplog.text or "parameters" in caplog.text
    assert capsys.readouterr().err == ""  # nobody looks at this output
    tiny(steps=3, verbose=True).fit(TEXTS, LABELS)
    assert "accuracy" in capsys.readouterr().err


def test_the_reports_of_a_notebook(fitted):
    assert repr(fitted).startswith("TextClassifier(base='scratch'")
    page = fitted._repr_html_()
    assert page.count("<iframe") == 1
    assert "svg" in page
    assert "<iframe" not in hs.TextClassifier()._repr_html_()


def test_evaluate_gives_the_whole_score(fitted):
    found = fitted.evaluate(TEXTS, LABELS)
    assert found.accuracy == fitted.score(TEXTS, LABELS)
    assert set(found.per_class) == {"negative", "positive"}
    assert found.leaked == 60 - fitted.result_.score.count  # the texts that it was trained on


def test_a_language_model_in_memory(tmp_path):
    config = {"model": {**TINY["model"], "max_position_embeddings": 64}, "training": {"max_length": 32}}
    model = hs.LanguageModel.pretrain(
        TEXTS * 5, objective="causal-lm", tokenizer="characters", steps=20, config=config, seed=1
    )
    text = model.generate("The film", max_new_tokens=12, seed=2)
    assert text.startswith("The film")
    assert model.generate(["a", "b"], max_new_tokens=3, return_full_text=False, do_sample=False) is not None
    assert len(model.generate("a", max_new_tokens=3, num_return_sequences=3)) == 3
    assert 1 < model.perplexity(TEXTS) < 100
    model.save_pretrained(tmp_path / "lm")
    again = hs.LanguageModel.from_pretrained(tmp_path / "lm")
    assert again.generate("The film", max_new_tokens=12, seed=2) == text
    assert again.perplexity(TEXTS) == model.perplexity(TEXTS)
    classifier = hs.TextClassifier(str(tmp_path / "lm"), steps=2).fit(TEXTS, LABELS)
    assert classifier.result_.transfer.reused
    with pytest.raises(TypeError, match=r"write \[texts\]|there is no file|one string"):
        model.perplexity("a film")
    with pytest.raises(HeadstartError, match="no file"):
        hs.LanguageModel.pretrain("corpus.txt", steps=1)


def test_long_texts_in_memory_are_no_file_names():
    texts = [f"text {number} " + "of many words " * 25 for number in range(40)]
    config = {"model": TINY["model"], "training": {"max_length": 32}}
    assert hs.LanguageModel.pretrain(texts, tokenizer="characters", steps=1, config=config).model_.tokenizer.size > 10


def test_a_language_model_reads_files(tmp_path):
    path = _lines(tmp_path, TEXTS * 5)
    config = {"model": TINY["model"], "training": {"max_length": 32}}
    run = tmp_path / "run"
    model = hs.LanguageModel.pretrain(path, tokenizer="characters", steps=3, config=config, out=run)
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    assert model.result_.path == run
    with pytest.raises(HeadstartError, match="no language model"):
        hs.LanguageModel.from_pretrained("en-fr-captions")


def test_a_translator():
    translator = hs.Translator.from_pretrained("en-fr-captions")
    assert translator.translate(["A dog runs."], num_beams=5) == ["Un chien court."]
    assert len(translator.translate(["A dog runs."], num_beams=3, num_return_sequences=2)[0]) == 2
    with pytest.raises(TypeError, match=r"write \[text\]"):
        translator.translate("A dog runs.")
    with pytest.raises(HeadstartError, match="does not translate"):
        hs.Translator.from_pretrained("en-tiny")
    assert pickle.loads(pickle.dumps(translator)).translate(["A dog runs."]) == ["Un chien court."]


def test_an_embedder_is_a_transformer():
    embedder = hs.Embedder("en-tiny")
    vectors = embedder.encode(["a film", "a longer film about a dog"])
    assert vectors.shape == (2, 256)
    np.testing.assert_array_equal(vectors, hs.text_vectors("en-tiny", ["a film", "a longer film about a dog"]))
    np.testing.assert_array_equal(embedder.fit_transform(["a film"]), clone(embedder).transform(["a film"]))
    np.testing.assert_allclose(
        np.linalg.norm(hs.Embedder("en-tiny", normalize=True).encode(["a"]), axis=1), 1, rtol=1e-6
    )
    assert pickle.loads(pickle.dumps(embedder)).encode(["a film"]).shape == (1, 256)
    with pytest.raises(TypeError, match=r"write \[text\]"):
        embedder.encode("a film")
    with pytest.raises(HeadstartError, match="pool"):
        hs.Embedder(pooling="meen").encode(["a"])


@pytest.mark.slow
def test_a_comparison_in_memory(tmp_path):
    report = hs.compare(TEXTS, LABELS, seeds=2, steps=3, arms=["classical", "scratch"], config=TINY)
    table = report.to_pandas()
    assert set(table["arm"]) >= {"scratch"}
    assert len(table) == 3  # the baseline has no seeds
    report.save(tmp_path / "report.html")
    assert "<svg" in (tmp_path / "report.html").read_text()
    assert "iframe" in report._repr_html_()
    assert "ComparisonReport" in repr(report)


def _lines(folder, texts):
    path = folder / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in texts))
    return path
