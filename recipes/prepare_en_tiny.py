"""The table for the stage `ratings` of en-tiny.toml: ratings that authors wrote into unlabelled reviews.

    python recipes/prepare_en_tiny.py DATA

reads DATA/imdb-unlabelled.txt.xz and writes the folder DATA/en-tiny/ratings, as prepare_en_small.py does.
"""

from pathlib import Path

from prepare_en_small import RATING, data_folder, read_reviews, write_tables


def main(data: Path) -> None:
    """Write the table."""
    write_tables(data / "en-tiny" / "ratings", RATING, read_reviews(data))


if __name__ == "__main__":
    main(data_folder(__doc__))
