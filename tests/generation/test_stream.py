import pytest

from headstart.generation.generate import ModelDecoder, Rules, decode, prompt_batch, stream
from headstart.generation.sampling import GREEDY, Sampling
from headstart.models.model import HeadSpec, build_model
from tests.helpers.tiny_models import VOCABULARY, random_rows, tiny_config

SAMPLINGS = [GREEDY, Sampling(seed=3), Sampling(temperature=0.7, top_k=5, repetition_penalty=1.3, seed=9)]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "drawn", "shortened"])
@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_a_stream_gives_what_decode_gives(sampling, positions):
    model = build_model(
        tiny_config("causal", position_embedding=positions), VOCABULARY.size, {"lm": HeadSpec("lm", VOCABULARY.size)}
    )
    decoder, rules = ModelDecoder(model), Rules(VOCABULARY.eos_id, 30, banned=(0, 1, 2))
    for row in random_rows([3, 9, 50], seed=5):
        batch = prompt_batch([row.tokens[:-1]], VOCABULARY.pad_id)
        found = list(stream(decoder, batch, rules, sampling))
        [known] = decode(decoder, batch, rules, sampling)
        assert found == known.tokens + ([] if known.is_cut else [VOCABULARY.eos_id])


def test_two_streams_side_by_side_are_each_what_they_are_alone():
    model = build_model(tiny_config("causal"), VOCABULARY.size, {"lm": HeadSpec("lm", VOCABULARY.size)})
    decoder, rules = ModelDecoder(model), Rules(VOCABULARY.eos_id, 12, banned=(0, 1, 2))
    batches = [prompt_batch([row.tokens[:-1]], VOCABULARY.pad_id) for row in random_rows([4, 8])]
    alone = [list(stream(decoder, batch, rules, Sampling())) for batch in batches]
    first, second = (stream(decoder, batch, rules, Sampling()) for batch in batches)
    together = [[], []]
    for _ in range(12):
        for found, each in zip(together, (first, second), strict=True):
            found += [token for token in [next(each, None)] if token is not None]
    assert together == alone
