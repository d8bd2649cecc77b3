import builtins
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.config import TokenizerConfig
from headstart.data.tokenizer import TRUNCATION, Tokenizer, make_tokenizer
from headstart.data.tokenizer_training import TOKENIZERS, open_tokenizer, resolve_tokenizer, sample, train_tokenizer
from headstart.errors import ConfigError, DataError

TEXTS = [
    "le chat dort sur le tapis rouge",
    "la chatte dormait sous les tapis verts",
    "hello [MASK] world [SEP] hello there",
    "un été à la plage, l'hiver à la montagne !",
] * 5

TRAINED = {kind: train_tokenizer(TEXTS, TokenizerConfig(type=kind, vocab_size=320)) for kind in TOKENIZERS}
BPE = TRAINED["bpe"]

each_kind = pytest.mark.parametrize("kind", TOKENIZERS)
texts = st.text(st.characters(exclude_categories=["Cs"]))


@each_kind
def test_special_tokens_stand_first_in_a_fixed_order(kind):
    tokenizer = TRAINED[kind]
    assert tokenizer.kind == kind
    found = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id]
    assert found == [0, 1, 2, 3, 4]
    assert tokenizer.special_ids == frozenset(range(5))


@each_kind
def test_ids_stay_below_the_size_and_the_size_below_the_setting(kind):
    tokenizer = TRAINED[kind]
    assert tokenizer.size <= 320
    assert all(ids.dtype == np.int32 and ids.max() < tokenizer.size for ids in tokenizer.encode(TEXTS))


@each_kind
@pytest.mark.parametrize("name", ["[PAD]", "[CLS]", "[SEP]", "[MASK]"])
def test_a_text_that_spells_a_special_token_is_only_text(kind, name):
    (ids,) = TRAINED[kind].encode([f"hello {name} wor{name}ld{name}"])
    assert not TRAINED[kind].special_ids - {TRAINED[kind].unk_id} & set(ids.tolist())


@each_kind
def test_texts_come_back(kind):
    decoded = [TRAINED[kind].decode(ids) for ids in TRAINED[kind].encode(TEXTS[:2])]
    assert decoded == TEXTS[:2]


@given(texts)
def test_bpe_loses_nothing_of_any_text(text):
    (ids,) = BPE.encode([text])
    assert BPE.decode(ids) == text
    assert BPE.unk_id not in ids


@given(st.lists(texts, max_size=8))
def test_every_kind_encodes_any_text_alone_as_in_a_batch(batch):
    for tokenizer in TRAINED.values():
        together = tokenizer.encode(batch)
        assert len(together) == len(batch)
        for text, ids in zip(batch, together, strict=True):
            assert np.array_equal(ids, tokenizer.encode([text])[0])


@given(st.lists(st.integers(5, 99), max_size=20), st.integers(2, 25), st.sampled_from(sorted(TRUNCATION)))
def test_a_frame_keeps_both_specials_and_as_much_as_fits(ids, length, keep):
    framed = BPE.add_special_tokens(ids, length, keep)
    assert (framed[0], framed[-1]) == (BPE.bos_id, BPE.eos_id)
    assert len(framed) == min(len(ids) + 2, length)
    room = min(len(ids), length - 2)
    remaining = {
        "start": ids[:room],
        "end": ids[len(ids) - room :],
        "both": ids[: room - room // 2] + ids[len(ids) - room // 2 :],
    }
    assert framed[1:-1].tolist() == remaining[keep]


def test_a_mistyped_way_to_cut_is_answered_with_the_nearest_one():
    with pytest.raises(ConfigError) as caught:
        BPE.add_special_tokens([5, 6, 7], 3, "strat")
    assert "start" in caught.value.hint


@each_kind
def test_a_saved_tokenizer_is_the_same_when_loaded_or_pickled(kind, tmp_path):
    TRAINED[kind].save(tmp_path)
    for other in (Tokenizer.load(tmp_path), pickle.loads(pickle.dumps(TRAINED[kind]))):
        assert other.fingerprint == TRAINED[kind].fingerprint
        assert (other.kind, other.size) == (kind, TRAINED[kind].size)
        text = ["hello [MASK] tapis"]
        assert np.array_equal(other.encode(text)[0], TRAINED[kind].encode(text)[0])


@each_kind
def test_the_same_texts_give_the_same_tokenizer(kind):
    again = train_tokenizer(TEXTS, TokenizerConfig(type=kind, vocab_size=320))
    assert again.fingerprint == TRAINED[kind].fingerprint


@pytest.mark.slow
def test_another_process_with_one_thread_learns_the_same_tokenizers():
    program = (
        "from headstart.config import TokenizerConfig; from headstart.data.tokenizer_training import *\n"
        f"for kind in TOKENIZERS: print(train_tokenizer({TEXTS!r}, TokenizerConfig(type=kind, vocab_size=320)).fingerprint)"
    )
    environment = {"RAYON_NUM_THREADS": "1", "PYTHONPATH": ":".join(sys.path)}
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == [TRAINED[kind].fingerprint for kind in TOKENIZERS]


@each_kind
def test_case_is_folded_when_asked(kind):
    tokenizer = train_tokenizer(TEXTS, TokenizerConfig(type=kind, vocab_size=320, lowercase=True))
    upper, lower = tokenizer.encode(["LE CHAT ÉTÉ", "le chat été"])
    assert np.array_equal(upper, lower)
    assert tokenizer.decode(lower) == "le chat été"


@each_kind
def test_one_short_text_is_enough_to_learn_from(kind):
    tokenizer = train_tokenizer(["a"], TokenizerConfig(type=kind))
    assert tokenizer.size < 300
    assert len(tokenizer.encode(["a"])[0]) >= 1


@each_kind
@pytest.mark.parametrize("texts", [[], ["", "  \n"]])
def test_no_text_is_told_as_such(kind, texts):
    with pytest.raises(DataError, match="no text to learn"):
        train_tokenizer(texts, TokenizerConfig(type=kind))


def test_a_vocabulary_too_small_for_all_bytes_is_refused():
    with pytest.raises(ConfigError) as caught:
        train_tokenizer(TEXTS, TokenizerConfig(vocab_size=100))
    assert "261" in caught.value.hint


@pytest.mark.parametrize("kind", ["unigram", "wordpiece", "characters"])
def test_a_vocabulary_smaller_than_the_alphabet_keeps_the_frequent_characters(kind):
    tokenizer = train_tokenizer(["aaaa bbbb cccc dddd ee f"] * 3, TokenizerConfig(type=kind, vocab_size=9))
    assert tokenizer.size <= 9
    assert tokenizer.encode(["f"])[0][-1] == tokenizer.unk_id


def test_unigram_learns_the_frequent_words_whole():
    assert TRAINED["unigram"].convert_ids_to_tokens(TRAINED["unigram"].encode(["le tapis"])[0]) == ["▁le", "▁tapis"]


@given(st.lists(st.text("ab", min_size=1), min_size=1, max_size=60), st.integers(1, 60))
def test_a_sample_is_part_of_the_texts_and_keeps_to_its_limit(words, limit):
    remaining = sample(words, limit)
    assert set(remaining) <= set(words)
    assert sum(map(len, remaining)) <= limit or len(remaining) == 1
    assert remaining == words or sum(map(len, words)) > limit


def test_pieces_are_readable():
    assert BPE.convert_ids_to_tokens(BPE.encode(["le chat"])[0]) == ["le", "▁chat"]
    assert BPE.convert_ids_to_tokens(BPE.encode(["世\n"])[0]) == ["\\xe4", "\\xb8", "\\x96", "↵"]
    assert BPE.convert_ids_to_tokens([BPE.mask_id, BPE.bos_id]) == ["[MASK]", "[CLS]"]


def test_a_kind_is_trained_and_a_path_is_opened(tmp_path):
    trained = resolve_tokenizer(TokenizerConfig(vocab_size=320), lambda: TEXTS)
    assert trained.fingerprint == BPE.fingerprint
    trained.save(tmp_path / "run" / "tokenizer")
    for path in (tmp_path / "run", tmp_path / "run/tokenizer", tmp_path / "run/tokenizer/tokenizer.json"):
        opened = resolve_tokenizer(TokenizerConfig(type=str(path)), list)
        assert opened.fingerprint == BPE.fingerprint


def test_what_is_neither_kind_nor_path_is_answered_with_the_nearest_kind():
    with pytest.raises(ConfigError) as caught:
        resolve_tokenizer(TokenizerConfig(type="word-piece"), list)
    assert "wordpiece" in caught.value.hint


def test_a_folder_without_a_tokenizer_says_what_it_should_hold(tmp_path):
    with pytest.raises(ConfigError) as caught:
        open_tokenizer(tmp_path)
    assert "tokenizer.json" in caught.value.hint


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model": {"type": "BPE"}}', "\x00\x01"])
def test_a_broken_tokenizer_file_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=r"tokenizer\.json is no readable tokenizer"):
        open_tokenizer(tmp_path)


def test_a_foreign_tokenizer_without_the_needed_specials_is_refused(tmp_path):
    from tokenizers import Tokenizer as Rust
    from tokenizers.models import WordLevel

    Rust(WordLevel({"<s>": 0, "</s>": 1, "<pad>": 2}, unk_token="<pad>")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="no token for unknown"):
        open_tokenizer(tmp_path)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A small tokenizer laid out as the course lab's."""
    spm = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("lab")
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_prefix=str(folder / "sentencepiece.french"),
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "sentencepiece.french.vocab").unlink()
    processor = spm.SentencePieceProcessor(model_file=str(folder / "sentencepiece.french.model"))
    pieces = [processor.id_to_piece(number) for number in range(3, processor.get_piece_size())]
    pieces.remove("t")
    (folder / "dict.txt").write_text("".join(f"{piece} 1\n" for piece in pieces), encoding="utf-8")
    return folder, processor, pieces


def test_the_lab_tokenizer_numbers_pieces_by_its_dictionary(lab):
    folder, processor, pieces = lab
    tokenizer = open_tokenizer(folder)
    assert tokenizer.kind == "lab"
    assert tokenizer.size == len(pieces) + 4
    assert (tokenizer.bos_id, tokenizer.pad_id, tokenizer.eos_id, tokenizer.unk_id) == (0, 1, 2, 3)
    assert tokenizer.mask_id is None
    for text, ids in zip(TEXTS, tokenizer.encode(TEXTS), strict=True):
        split = processor.encode_as_pieces(text)
        assert ids.tolist() == [pieces.index(piece) + 4 if piece in pieces else 3 for piece in split]


def test_the_lab_tokenizer_is_the_same_when_saved_or_pickled(lab, tmp_path):
    folder, _, _ = lab
    tokenizer = open_tokenizer(folder / "sentencepiece.french.model")
    tokenizer.save(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".model", ".txt"}
    for other in (open_tokenizer(tmp_path), Tokenizer.load(tmp_path), pickle.loads(pickle.dumps(tokenizer))):
        assert other.fingerprint == tokenizer.fingerprint
        assert np.array_equal(other.encode(TEXTS[:1])[0], tokenizer.encode(TEXTS[:1])[0])


def test_the_lab_tokenizer_decodes_and_shows_pieces(lab):
    tokenizer = open_tokenizer(lab[0])
    (ids,) = tokenizer.encode(["la la"])
    assert tokenizer.decode([tokenizer.bos_id, *ids, tokenizer.eos_id]) == "la la"
    assert "".join(tokenizer.convert_ids_to_tokens(ids)) == "▁la▁la"


def test_a_missing_sentencepiece_says_what_to_install(lab, monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **named):
        if name.startswith("sentencepiece"):
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError) as caught:
        open_tokenizer(lab[0])
    assert caught.value.hint == "pip install 'headstart[spm]'"


def test_a_model_without_its_dictionary_or_a_broken_one_is_told(lab, tmp_path):
    (tmp_path / "a.model").write_bytes(b"not a model")
    with pytest.raises(DataError, match=r"dict\.txt"):
        open_tokenizer(tmp_path)
    (tmp_path / "dict.txt").write_text("a 1\n")
    with pytest.raises(DataError, match="no readable tokenizer"):
        open_tokenizer(tmp_path)


def test_a_tokenizer_with_names_of_its_own_plays_the_parts_it_is_told(tmp_path):
    import json

    content = train_tokenizer(TEXTS, TokenizerConfig(type="bpe", vocab_size=300)).engine.files()["tokenizer.json"]
    text = content.decode("utf-8")
    for old, new in zip(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), "abcde", strict=True):
        text = text.replace(f'"{old}"', f'"<|{new}|>"')
    with pytest.raises(ConfigError, match="no token for padding"):
        make_tokenizer(text)
    known = make_tokenizer(text, json.dumps({"size": 310, "specials": dict.fromkeys(PARTS, 3)}))
    assert known.size == 310
    assert (known.bos_id, known.eos_id, known.pad_id, known.unk_id, known.mask_id) == (3, 3, 3, 3, None)
    assert known.special_ids >= {3, 309}  # an id without a token is no text
    known.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert loaded.fingerprint == known.fingerprint == pickle.loads(pickle.dumps(known)).fingerprint
    assert loaded.special_ids == known.special_ids
    other = make_tokenizer(text, json.dumps({"size": 311, "specials": dict.fromkeys(PARTS, 3)}))
    assert other.fingerprint != known.fingerprint


PARTS = ("padding", "unknown", "first", "last")
