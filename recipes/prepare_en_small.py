"""Tables for the stages `verdicts` and `ratings` of en-small.toml: labels that authors wrote into their reviews.

    python recipes/prepare_en_small.py DATA

reads DATA/imdb-unlabelled.txt.xz and the train texts of the built-in imdb (not their labels), and writes the folders
DATA/en-small/verdicts and DATA/en-small/ratings with a train.tsv and a valid.tsv each. The words that name the label are
cut out of the text. Reviews that name no class, or two, are left out, and so are the validation and test texts of imdb.
"""

import argparse
import re
from collections.abc import Iterable
from pathlib import Path

from headstart.config import DataConfig
from headstart.data.datasets import Example, load_dataset, split_by_hash
from headstart.data.labels import label_mapper
from headstart.data.subsets import evaluation_hashes
from headstart.data.text_io import read_lines, text_hash
from headstart.errors import DataError

REVIEWS = "imdb-unlabelled.txt.xz"
CLASSES = {
    "negative": ["0", "0.5", "1", "1.5", "2", "2.5", "3", "3.5", "4"],
    "positive": ["7", "7.5", "8", "8.5", "9", "9.5", "10"],
}

# A rating in the text itself: "8/10", "3 out of 10".
RATING = r"(?i)(?<![\d./-])(\d{1,2}(?:\.\d+)?)\s*(?:/|out of)\s*(?:10|ten)(?!\w|[/.]\d)"

# A rating, or what the author says outright ("a must see", "waste of time").
VERDICT = r"""(?xi)
  (?<![\d./-]) (\d{1,2}(?:\.\d+)?) \s* (?:/|out\ of) \s* (?:10|ten) (?!\w|[/.]\d)
| (?: \b (?: not | never | hardly | barely | no | nor | without | far\ from | by\ no\ means | nothing ) | n['’]t ) \ (?: [\w'’-]+\ ){0,4}?
  (?: best | greatest | finest | favou?rites? | worst | wast(?:e|ed|ing) | masterpiece | gem | classic | must[ -]see | awful | terrible | horrible
    | dreadful | bad | great | awesome | amazing | excellent | wonderful | fantastic | brilliant | superb | perfect | recommend(?:ed)? ) \b
| (?P<positive> \b (?:
      (?: highly | strongly | definitely | heartily | thoroughly | wholeheartedly ) \ recommend(?:ed)?
      (?! \ (?: that\ )? (?: you\ )? (?: to\ )? (?: do\b | don['’]t | not\b | avoid | stay\b | skip | pass\b | against\b | miss\b ) )
    | (?: a | an\ absolute | is | real ) \ must[ -]see
    | one\ of\ (?:the|my) \ (?:all[ -]time\ |very\ )?
      (?: best | greatest | finest | favou?rites? | most\ (?:beautiful|enjoyable|brilliant|touching|moving) )
      \ (?:[\w'’-]+\ ){0,2}?
      (?: movies? | films? | shows? | comed(?:y|ies) | dramas? | westerns? | musicals? | thrillers? | series | performances? )
    | my\ (?:all[ -]time\ )? favou?rite \ (?: movies? | films? | shows? | comedy | western | musical | series )
    | I\ (?: (?: really | absolutely | just | simply | truly | thoroughly | greatly ) \ )?
      (?: loved? | adored? | enjoyed ) \ (?: this | every\ minute\ of ) (?: \ (?: movie | film | show | series | one ) )?
    | th(?:is|e) \ (?: movie | film | show | series ) \ (?:is|was) \ (?: (?: so | just | really | absolutely | truly | simply | very | quite | an? ) \ )*
      (?: great | awesome | amazing | excellent | wonderful | fantastic | brilliant | superb | perfect | beautiful | outstanding
        | masterpiece | gem | delightful | hilarious ) (?! \ example )
    | (?:two|both)\ thumbs\ up | don['’]t\ miss\ (?:it|this)
    | (?: true | absolute | real | little | minor | hidden ) \ (?: masterpiece | gem | classic )
    | well\ worth\ (?: watching | seeing | a\ look | the\ time | your\ time ) ) \b )
| (?P<negative> \b (?:
      (?: waste | wasted | wasting ) \ (?:of\ )? (?: (?: your | my | any | two | good | precious | valuable ) \ )+
           (?: time | money | hours? | minutes )
         | (?: don['’]t | do\ not ) \ (?:even\ )? (?: waste\ (?:your|any|my)\ (?:time|money) | bother\b | rent\ (?:this|it) | buy\ (?:this|it) )
         | (?: avoid | skip ) \ (?: this\ (?:movie|film|one|show|turkey|mess|crap|garbage) | it\ at\ all\ costs? | at\ all\ costs? | like\ the\ plague )
         | stay\ (?:far\ )?away\ from\ this
    | worst\ (?:[\w'’-]+\ ){0,2}? (?: movies? | films? | shows? )
    | (?: complete | total | utter | absolute )? \ ? waste\ of\ (?: (?: your | my | any | two | good | precious | valuable ) \ )* (?: time | money | film | celluloid | talent )
    | I\ (?: (?: really | absolutely | just ) \ )? hated? \ this
    | (?: movie | film | show ) \ (?: (?: really | just | totally ) \ )? (?: sucks | sucked | stinks )
    | th(?:is|e) \ (?: movie | film | show | series ) \ (?:is|was)
      \ (?: (?: so | just | really | absolutely | truly | simply | very | an? | complete | utter | total | pure | plain ) \ )*
      (?: awful | terrible | horrible | bad(?!-) | dreadful | garbage | crap | trash | boring | stupid | pathetic | lame | mess | joke
        | disaster | rubbish | ridiculous | dull | pointless | worthless )
    | (?: awful | terrible | horrible | dreadful | pathetic | atrocious | abysmal | lousy | crappy ) \ (?: movie | film | show )
    | (?: want | like | get | give\ me ) \ (?: my | those | that ) \ (?: money | time | \w+\ minutes | \w+\ hours ) \ back
    | piece\ of\ (?: crap | garbage | trash | junk | dreck )
    | complete(?:ly)? \ (?: garbage | trash | crap | mess ) ) \b )
"""


class WrittenLabels:
    """Labels in the texts themselves: what a group named like a class matches, or the rating in the first group."""

    def __init__(self, pattern: str):
        self.pattern = re.compile(pattern)
        self.class_of = label_mapper(CLASSES)

    def label(self, text: str) -> str | None:
        """The one class that the text names, or None."""
        labels: set[str | None] = set()
        for match in self.pattern.finditer(text):
            named = {name for name, words in match.groupdict().items() if words}
            labels |= named or ({self.class_of(match[1])} if match[1] else set())
        return labels.pop() if len(labels) == 1 else None

    def without(self, text: str) -> str:
        """The text without the words that name its label."""
        return " ".join(self.pattern.sub(" ", text).split())

    def examples(self, texts: Iterable[str]) -> list[Example]:
        """The texts, as they were written, that name one class and say more than that."""
        labelled = (Example(text, self.label(text)) for text in texts)
        return [row for row in labelled if row.label is not None and self.without(row.text)]


def write_tables(
    out: Path, pattern: str, texts: Iterable[str], more_texts: Iterable[str] = (), held_out: Iterable[str] = ("imdb",)
) -> tuple[int, int]:
    """Write train.tsv and valid.tsv from `texts`, with `more_texts` in train alone; return the number of rows of each.

    Texts are split, compared and held out by the hash of the original text, so that a cut label hides no copy.
    """
    labels = WrittenLabels(pattern)
    splits, _ = split_by_hash(labels.examples(texts), ("train", "valid"))

    def hashes(text: str) -> set[int]:
        return {text_hash(text), text_hash(labels.without(text))}

    known = {key for rows in splits.values() for row in rows for key in hashes(row.text)}
    for row in labels.examples(more_texts):
        if not known & hashes(row.text):
            known |= hashes(row.text)
            splits["train"].append(row)
    never = set(evaluation_hashes(list(held_out)).tolist())
    counts = {}
    for name, rows in splits.items():
        allowed = [row for row in rows if text_hash(row.text) not in never]
        if not allowed:
            raise DataError(f"no text for {name} has a label written into it", hint=f"check {REVIEWS}")
        lines = ["text\tlabel", *(f"{labels.without(row.text)}\t{row.label}" for row in allowed)]
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.tsv").write_bytes(("\n".join(lines) + "\n").encode("utf-8"))
        counts[name] = len(allowed)
    print(f"{out}: {counts['train']:,} rows to learn from, {counts['valid']:,} to validate on")
    return counts["train"], counts["valid"]


def read_reviews(data: Path) -> Iterable[str]:
    """The reviews without labels; empty lines are skipped."""
    return (line for line in read_lines(data / REVIEWS) if line.strip())


def data_folder(description: str | None) -> Path:
    """The folder that the command line names."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help=f"the recipe's --data-root, the folder that holds {REVIEWS}")
    folder: Path = parser.parse_args().data
    return folder


def main(data: Path) -> None:
    """Write both tables."""
    films = load_dataset("imdb", DataConfig()).texts("train")
    for name, pattern in {"verdicts": VERDICT, "ratings": RATING}.items():
        write_tables(data / "en-small" / name, pattern, read_reviews(data), films)


if __name__ == "__main__":
    main(data_folder(__doc__))
