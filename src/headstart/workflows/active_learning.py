"""Active learning: which unlabelled texts to label next."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.cluster import KMeans

from headstart.data.datasets import Example, load_texts
from headstart.data.text_io import hashes, is_contaminated
from headstart.errors import ConfigError, DataError, RunError
from headstart.inference.classify import Classifier
from headstart.inference.embed import open_encoder
from headstart.inference.loaded_model import LoadedModel, load_model

CANDIDATES_PER_TEXT = 10  # of the most uncertain texts, for each one that is chosen (Zhdanov, 2019)


@dataclass(frozen=True)
class Suggestion:
    """A text to label, and what the model predicts."""

    line: int  # number of the text in the file, counted from 1
    text: str
    predicted: str
    probability: float
    margin: float  # between the two most probable classes


def suggest(
    run: str | LoadedModel, file: str, *, count: int = 50, seed: int = 0, settings: Mapping[str, Any] | None = None
) -> list[Suggestion]:
    """The `count` texts of a file that a classifier learns most from, in the order of the file.

    Blank texts, repeats, and texts that the model was trained on are left out.
    """
    if count < 1:
        raise ConfigError(f"{count} texts cannot be chosen", hint="1 is the least")
    loaded = load_model(run) if isinstance(run, str) else run
    if loaded.objective.name != "classify":
        raise RunError(
            f"{loaded.name} was trained with {loaded.objective.name}, and suggestions need a classifier",
            hint=f"`headstart finetune {loaded.name} DATA --out RUN` first",
        )
    texts = list(load_texts(file, loaded.info.config.with_(settings or {}).data))
    keys = hashes(texts)
    is_new = np.zeros(len(texts), bool)
    is_new[np.unique(keys, return_index=True)[1]] = True
    is_new &= ~is_contaminated(keys, loaded.train_fingerprints)
    lines = [line for line, text in enumerate(texts) if text.strip() and is_new[line]]
    if not lines:
        raise DataError(f"{file} has no text that is new to {loaded.name}", hint="give texts that are not labelled yet")
    probabilities = Classifier(loaded, settings or {}).probabilities([Example(texts[line]) for line in lines])
    vectors = open_encoder(loaded, settings=settings).encode([texts[line] for line in lines])
    chosen = choose_texts(probabilities, vectors, count, seed)
    margins = margin(probabilities)
    return [
        Suggestion(
            line=lines[index] + 1,
            text=texts[lines[index]],
            predicted=loaded.info.classes[int(probabilities[index].argmax())],
            probability=float(probabilities[index].max()),
            margin=float(margins[index]),
        )
        for index in chosen
    ]


def margin(probabilities: np.ndarray) -> np.ndarray:
    """The difference of the two highest probabilities of each row (N,); small = uncertain (Scheffer et al., 2001)."""
    top = np.sort(probabilities, axis=1)[:, -2:]
    found: np.ndarray = top[:, 1] - top[:, 0]
    return found


def choose_texts(probabilities: np.ndarray, vectors: np.ndarray, count: int, seed: int) -> list[int]:
    """Indices of `count` uncertain and diverse texts, sorted.

    The most uncertain texts are clustered by k-means, weighted by their uncertainty, and the text nearest to each
    centre is chosen (Zhdanov, 2019).
    """
    uncertain = np.argsort(margin(probabilities), kind="stable")[: CANDIDATES_PER_TEXT * count]
    if len(uncertain) <= count:
        return sorted(uncertain.tolist())
    candidates = vectors[uncertain]
    weights = 1 - margin(probabilities)[uncertain]
    clusters = KMeans(count, n_init=1, random_state=seed).fit(candidates, sample_weight=np.maximum(weights, 1e-6))
    distances = clusters.transform(candidates)  # (candidates, clusters)
    chosen: list[int] = []
    for cluster in range(count):
        nearest = next(index for index in np.argsort(distances[:, cluster], kind="stable") if index not in chosen)
        chosen.append(int(nearest))
    return sorted(int(uncertain[index]) for index in chosen)
