"""Linear baselines for pairs and for tasks beyond one class a text, trained in seconds on the texts of a run."""

import warnings
from collections.abc import Iterator, Sequence

import numpy as np
from scipy.sparse import csr_matrix, hstack
from scipy.special import expit, softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC

from headstart.baselines.tfidf import DEFAULT_INVERSE_TEMPERATURE, as_margins, fit_vectorizers, tfidf_features
from headstart.data.datasets import Dataset
from headstart.data.text_io import Example

NAMES = {
    "single-label": "TF-IDF of both texts and of their overlap + linear SVM",
    "multi-label": "TF-IDF + one-vs-rest linear SVM",
    "regression": "TF-IDF + ridge regression",
    "ordinal": "TF-IDF + linear SVM",
    "token": "hashed context features + logistic regression",
}
ALPHAS = (0.3, 1.0, 3.0, 10.0)  # of ridge regression; cross-validation chooses
COSINE_WEIGHT = 5.0  # of the cosine of a pair among its features, whose other rows have length 1
HASHED_FEATURES = 2**18
CONTEXT = (-2, -1, 0, 1, 2)  # tokens around the one that is tagged


def baseline_outputs(dataset: Dataset, examples: Sequence[Example], seed: int) -> np.ndarray:
    """What a linear model of the training texts predicts for `examples`: probabilities (N, C), or numbers (N, 1)."""
    train = dataset.train
    targets = dataset.target_array("train")
    if dataset.task == "token":
        return _tag(train, targets, examples, len(dataset.classes), seed)
    vectorizers, _ = fit_vectorizers([text for row in train for text in _texts(row)])
    known, new = _features(vectorizers, train), _features(vectorizers, examples)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence, labels without any text
        if dataset.task == "regression":
            search = GridSearchCV(Ridge(solver="lsqr", random_state=seed), {"alpha": ALPHAS}, cv=3)
            return search.fit(known, targets).predict(new)[:, None]  # type: ignore[no-any-return]
        if dataset.task == "multi-label":
            model = OneVsRestClassifier(LinearSVC(random_state=seed)).fit(known, targets)
            return expit(DEFAULT_INVERSE_TEMPERATURE * model.decision_function(new).reshape(len(examples), -1))  # type: ignore[no-any-return]
        linear = LinearSVC(random_state=seed).fit(known, targets)
    found = np.zeros((len(examples), len(dataset.classes)))
    found[:, linear.classes_] = softmax(DEFAULT_INVERSE_TEMPERATURE * as_margins(linear.decision_function(new)), axis=1)
    return found


def _texts(example: Example) -> list[str]:
    return [example.text] if example.pair is None else [example.text, example.pair]


def _features(vectorizers: dict[str, TfidfVectorizer], examples: Sequence[Example]) -> csr_matrix:
    """TF-IDF of each text; of a pair of both, of what they share and of what they do not, and their cosines."""
    first = tfidf_features(vectorizers, [example.text for example in examples])
    if not any(example.pair is not None for example in examples):
        return first
    parts = [first, tfidf_features(vectorizers, [example.pair or "" for example in examples])]
    parts += [parts[0].multiply(parts[1]), abs(parts[0] - parts[1])]
    for vectorizer in vectorizers.values():
        one, two = (vectorizer.transform([_texts(example)[side] for example in examples]) for side in (0, 1))
        parts.append(csr_matrix(COSINE_WEIGHT * one.multiply(two).sum(axis=1)))
    return hstack(parts).tocsr()


def _tag(
    train: Sequence[Example], targets: np.ndarray, examples: Sequence[Example], classes: int, seed: int
) -> np.ndarray:
    """The probability of each tag for every token (N, C)."""
    hasher = FeatureHasher(HASHED_FEATURES, input_type="string", alternate_sign=False)
    known, new = (hasher.transform(each for row in rows for each in _contexts(row.text)) for rows in (train, examples))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = SGDClassifier("log_loss", alpha=3e-6, max_iter=20, random_state=seed).fit(known, targets)
    found = np.zeros((new.shape[0], classes))
    probabilities = model.predict_proba(new)
    found[:, model.classes_] = probabilities
    return found


def _contexts(text: str) -> Iterator[list[str]]:
    """The features of each token: it and its neighbours, their shapes, and its beginnings and endings."""
    words = text.split(" ")
    lower, shapes = [word.lower() for word in words], [_shape(word) for word in words]
    for at, word in enumerate(words):
        around = [(offset, at + offset) for offset in CONTEXT if 0 <= at + offset < len(words)]
        features = ["bias", f"word={word}", f"is first={at == 0}"]
        features += [f"{offset} lower={lower[place]}" for offset, place in around]
        features += [f"{offset} shape={shapes[place]}" for offset, place in around]
        features += [f"prefix={lower[at][:size]}" for size in (1, 2, 3, 4)]
        features += [f"suffix={lower[at][-size:]}" for size in (1, 2, 3, 4)]
        yield [*features, f"before and here={lower[at - 1] if at else ''} {lower[at]}"]


def _shape(word: str) -> str:
    """The word with X for a capital, x for a small letter and 9 for a digit, each once in a row."""
    signs = ["X" if sign.isupper() else "x" if sign.isalpha() else "9" if sign.isdigit() else sign for sign in word]
    return "".join(sign for at, sign in enumerate(signs) if at == 0 or sign != signs[at - 1])
