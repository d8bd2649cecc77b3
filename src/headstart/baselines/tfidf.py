"""The baseline of every comparison: a linear SVM on TF-IDF of words and characters, trained in seconds.

Measured on 1,600 French book reviews (400 held out): accuracy 0.858, trained in about 5 s on two cores. Character n-grams
inside words only (`char_wb`) reach 0.855, which is not a difference that 400 texts can show.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from scipy.sparse import csr_matrix, hstack
from scipy.special import softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.svm import LinearSVC

from headstart.atomic_io import write_json, write_with
from headstart.errors import DataError, RunError

NGRAMS: dict[str, dict[str, Any]] = {
    # Single characters too, so that a text of one sign in any script has a feature.
    "words": {"analyzer": "word", "token_pattern": r"(?u)\w+", "ngram_range": (1, 2)},
    "characters": {"analyzer": "char", "ngram_range": (1, 5)},
}
MAX_FEATURES = 200_000  # of each kind; the most frequent stay
MIN_TEXTS = 2  # a feature of one text alone only helps to memorise that text
ARRAYS_FILE, VOCABULARY_FILE = "tfidf.safetensors", "tfidf.json"  # of a saved model
FOLDS = 5
INVERSE_TEMPERATURES = np.geomspace(0.25, 8.0, 31)
DEFAULT_INVERSE_TEMPERATURE = 2.0  # when a class has too few texts to hold any out


@dataclass(frozen=True)
class TfidfModel:
    """TF-IDF vectorizers, a linear SVM, and the temperature that maps margins to probabilities."""

    vectorizers: dict[str, TfidfVectorizer]  # by the name of their n-grams
    linear: LinearSVC
    inverse_temperature: float
    classes: int

    def predict_probabilities(self, texts: Sequence[str]) -> np.ndarray:
        """The probability of each class for each text, (N, C); a class without training texts gets 0."""
        probabilities = np.zeros((len(texts), self.classes))
        if len(texts):
            margins = as_margins(self.linear.decision_function(tfidf_features(self.vectorizers, texts)))
            probabilities[:, self.linear.classes_] = softmax(self.inverse_temperature * margins, axis=1)
        return probabilities

    def save(self, folder: Path) -> None:
        """Write the model into a run folder: arrays as safetensors, n-grams as JSON."""
        arrays = {
            "coefficients": np.ascontiguousarray(self.linear.coef_, dtype=np.float64),
            "intercepts": self.linear.intercept_.astype(np.float64),
            "classes": self.linear.classes_.astype(np.int64),
        }
        content: dict[str, Any] = {"inverse_temperature": self.inverse_temperature, "classes": self.classes}
        content["ngrams"] = {}
        for name, vectorizer in self.vectorizers.items():
            arrays[f"idf.{name}"] = vectorizer.idf_.astype(np.float64)
            content["ngrams"][name] = vectorizer.get_feature_names_out().tolist()
        write_with(folder / ARRAYS_FILE, lambda part: save_file(arrays, part))
        write_json(folder / VOCABULARY_FILE, content)

    @staticmethod
    def load(folder: Path) -> "TfidfModel":
        """The model that `save` wrote."""
        try:
            content = json.loads((folder / VOCABULARY_FILE).read_text("utf-8"))
            arrays = load_file(folder / ARRAYS_FILE)
        except (OSError, ValueError, SafetensorError) as error:
            raise RunError(f"the TF-IDF model of {folder} cannot be read: {error}", hint="fine-tune it again") from None
        vectorizers = {}
        for name, ngrams in content["ngrams"].items():
            vectorizers[name] = _make_vectorizer(name, 1)
            vectorizers[name].vocabulary = ngrams
            vectorizers[name].idf_ = arrays[f"idf.{name}"].astype(np.float32)
        linear = LinearSVC()
        linear.coef_, linear.intercept_ = arrays["coefficients"], arrays["intercepts"]
        linear.classes_ = arrays["classes"]
        linear.n_features_in_ = linear.coef_.shape[1]
        return TfidfModel(vectorizers, linear, content["inverse_temperature"], content["classes"])


def train_tfidf(
    texts: Sequence[str], labels: Sequence[int] | np.ndarray, *, seed: int, classes: int | None = None
) -> TfidfModel:
    """A model of `texts`; `labels` are class indices below `classes`, by default the largest label + 1."""
    labels = np.asarray(labels, dtype=np.int64)
    assert len(texts) == len(labels), (len(texts), len(labels))
    present = np.unique(labels)
    if len(present) < 2:
        problem = f"the TF-IDF baseline needs two classes; {len(labels)} training texts have {len(present)}"
        raise DataError(problem, hint="check the label column, or use more labels")
    if not any(text.strip() for text in texts):
        raise DataError(f"all {len(texts)} training texts are blank", hint="check the text column")
    vectorizers, features = fit_vectorizers(texts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last digits of a margin decide nothing
        linear = LinearSVC(random_state=seed).fit(features, labels)
        inverse_temperature = _calibrate(features, labels, seed)
    return TfidfModel(vectorizers, linear, inverse_temperature, classes or int(labels.max()) + 1)


def fit_vectorizers(texts: Sequence[str]) -> tuple[dict[str, TfidfVectorizer], csr_matrix]:
    """The vectorizer of each kind of n-grams that occur in the texts, and the features of the texts (N, features)."""
    vectorizers, counts = {}, []
    for name in NGRAMS:
        for min_texts in (MIN_TEXTS, 1):
            vectorizer = _make_vectorizer(name, min_texts)
            try:
                counts.append(vectorizer.fit_transform(texts))
            except ValueError:  # no n-gram occurs in as many texts
                continue
            vectorizers[name] = vectorizer
            break
    return vectorizers, hstack(counts).tocsr()


def _make_vectorizer(name: str, min_texts: int) -> TfidfVectorizer:
    settings = NGRAMS[name] | {"max_features": MAX_FEATURES, "min_df": min_texts}
    return TfidfVectorizer(sublinear_tf=True, dtype=np.float32, lowercase=True, **settings)


def tfidf_features(vectorizers: Mapping[str, TfidfVectorizer], texts: Sequence[str]) -> csr_matrix:
    """The features of texts (N, features)."""
    return hstack([vectorizer.transform(texts) for vectorizer in vectorizers.values()]).tocsr()


def _calibrate(features: csr_matrix, labels: np.ndarray, seed: int) -> float:
    """The inverse temperature with the highest likelihood on held-out folds (Guo et al., 2017).

    One number for all classes never changes a prediction. On 20 to 1,600 French reviews the alternatives are worse: a
    sigmoid per class (Platt) is level from 50 labels on, but at 20 it costs four points of accuracy (0.57 against 0.62);
    logistic regression is as accurate, but its calibration error is larger (0.11 against 0.05 at 200 labels, 0.08 against
    0.05 at 1,600).
    """
    classes, counts = np.unique(labels, return_counts=True)
    if counts.min() < 3:
        return DEFAULT_INVERSE_TEMPERATURE
    folds = StratifiedKFold(min(FOLDS, int(counts.min())), shuffle=True, random_state=seed)
    model = LinearSVC(random_state=seed)
    margins = as_margins(cross_val_predict(model, features, labels, cv=folds, method="decision_function"))
    rows, columns = np.arange(len(labels)), np.searchsorted(classes, labels)
    losses = [
        -np.log(softmax(scale * margins, axis=1)[rows, columns].clip(1e-7, 1)).mean() for scale in INVERSE_TEMPERATURES
    ]
    return float(INVERSE_TEMPERATURES[int(np.argmin(losses))])


def as_margins(decisions: np.ndarray) -> np.ndarray:
    """One column for each class (N, C); two classes have one margin."""
    return np.stack([np.zeros_like(decisions), decisions], axis=1) if decisions.ndim == 1 else decisions
