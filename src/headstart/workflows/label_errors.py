"""Labels that look wrong: texts whose own label is unlikely for models that have not seen it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from headstart.baselines.tfidf import train_tfidf
from headstart.config import DataConfig, parse
from headstart.data.datasets import load_dataset
from headstart.data.text_io import hashes
from headstart.errors import ConfigError, DataError
from headstart.inference.embed import open_encoder
from headstart.training.callbacks import OnEvent, Stage, ignore_event

INVERSE_REGULARIZATION = 0.01  # of the logistic regression on a base's standardized vectors


@dataclass(frozen=True)
class LabelError:
    """A row whose label looks wrong."""

    origin: str
    text: str
    label: str
    predicted: str
    loss: float  # -log of the probability of the label, from models that were trained without the row
    probability: float  # of the predicted class


def find_label_errors(
    data: str,
    *,
    base: str | None = None,
    folds: int = 5,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    on_event: OnEvent = ignore_event,
) -> list[LabelError]:
    """The rows of train and valid whose label differs from the prediction, those of the highest loss first.

    Predictions are out of fold: TF-IDF + linear SVM, and with a `base` also logistic regression on its frozen vectors;
    the probabilities of both are averaged.
    """
    dataset = load_dataset(data, parse(DataConfig, (settings or {}).get("data", {}), "data"))
    rows = [*dataset.train, *dataset.valid]
    index = dataset.class_index
    labels = np.array([index[str(row.label)] for row in rows])
    texts = [row.text for row in rows]
    vectors = None
    if base is not None:
        on_event(Stage("embedding the texts"))
        vectors = open_encoder(base).encode(texts)
    probabilities = out_of_fold_probabilities(texts, labels, vectors, folds=folds, seed=seed, on_event=on_event)
    losses = -np.log(np.maximum(probabilities[np.arange(len(rows)), labels], 1e-12))
    predicted = probabilities.argmax(axis=1)
    return [
        LabelError(
            origin=rows[row].origin,
            text=rows[row].text,
            label=str(rows[row].label),
            predicted=dataset.classes[predicted[row]],
            loss=float(losses[row]),
            probability=float(probabilities[row, predicted[row]]),
        )
        for row in np.argsort(-losses, kind="stable")
        if predicted[row] != labels[row]
    ]


def out_of_fold_probabilities(
    texts: Sequence[str],
    labels: np.ndarray,
    vectors: np.ndarray | None = None,
    *,
    folds: int = 5,
    seed: int = 0,
    on_event: OnEvent = ignore_event,
) -> np.ndarray:
    """The probability of each class (N, C) for each text, from models trained on the other folds.

    Equal texts are in one fold. With `vectors` (N, D), a second model reads those, and both are averaged.
    """
    counts = np.bincount(labels)
    if folds < 2:
        raise ConfigError(f"{folds} folds hold nothing out", hint="use --folds 5")
    if counts.min() < folds:
        raise DataError(
            f"the rarest class has {counts.min()} rows, and {folds} folds need {folds}",
            hint="use fewer folds, or leave the class out",
        )
    found = np.zeros((len(texts), len(counts)))
    splitter = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    for number, (train, held_out) in enumerate(splitter.split(texts, labels, groups=hashes(texts))):
        on_event(Stage("predicting each fold from the others", number, folds))
        tfidf = train_tfidf([texts[row] for row in train], labels[train], seed=seed, classes=len(counts))
        found[held_out] = tfidf.predict_probabilities([texts[row] for row in held_out])
        if vectors is not None:
            linear = LogisticRegression(C=INVERSE_REGULARIZATION, max_iter=1000)
            model = make_pipeline(StandardScaler(), linear).fit(vectors[train], labels[train])
            found[held_out] = (found[held_out] + model.predict_proba(vectors[held_out])) / 2
    return found
