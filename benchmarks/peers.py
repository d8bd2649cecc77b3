"""What people would use instead: (a) the course notebook's way written plainly, (b) `transformers` with its Trainer.

Each way trains for a given number of steps and returns how many real tokens (or texts) it went through.
"""

import contextlib
import io
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from bench import Clock
from torch import Tensor, nn
from torch.nn import functional as F

IGNORE = -100


class Notebook(nn.Module):
    """The notebook's Transformer: table, waves, encoder layers of torch under a causal mask, one linear layer on top."""

    def __init__(self, vocabulary: int, answers: int, width: int = 200, attention_heads: int = 2, inner: int = 200,
                 layers: int = 4, dropout: float = 0.2, longest: int = 1024):  # fmt: skip
        super().__init__()
        self.width, self.table = width, nn.Embedding(vocabulary, width)
        place = torch.arange(longest)[:, None]
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        waves = torch.zeros(longest, 1, width)
        waves[:, 0, 0::2], waves[:, 0, 1::2] = torch.sin(place * rate), torch.cos(place * rate)
        self.register_buffer("waves", waves)
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, attention_heads, inner, dropout), layers, enable_nested_tensor=False
        )
        self.top = nn.Linear(width, answers)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (T, B) to vectors (T, B, D)."""
        mask = nn.Transformer.generate_square_subsequent_mask(len(tokens))
        hidden = self.dropout(self.table(tokens) * math.sqrt(self.width) + self.waves[: len(tokens)])
        return self.encoder(hidden, mask, is_causal=True)


def _padded(rows: Sequence[np.ndarray], padding: int) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.from_numpy(row).long() for row in rows], padding_value=padding)  # (T, B)


def _batches(rows: Sequence[Any], size: int, seed: int = 0) -> Iterator[list[Any]]:
    """Batches in shuffled order, without end."""
    chance = np.random.default_rng(seed)
    while True:
        order = chance.permutation(len(rows))
        for at in range(0, len(rows) - size + 1, size):
            yield [rows[number] for number in order[at : at + size]]


def notebook_lm(rows: list[np.ndarray], vocabulary: int, padding: int, size: int = 16) -> Callable[[int], int]:
    """The notebook's language model: padded batches, scores of the whole vocabulary everywhere, Adam."""
    torch.manual_seed(0)
    model = Notebook(vocabulary, vocabulary).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = _batches(rows, size)

    def steps(count: int) -> int:
        tokens = 0
        for _ in range(count):
            batch = next(batches)
            read = _padded(batch, padding)
            labels = _padded(batch, IGNORE)[1:]
            optimizer.zero_grad()
            scores = model.top(model(read[:-1]))  # (T, B, V)
            loss = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            tokens += sum(len(row) - 1 for row in batch)
        return tokens

    return steps


def notebook_classifier(
    rows: list[np.ndarray], labels: list[int], vocabulary: int, padding: int, size: int = 16
) -> Callable[[int], int]:
    """The notebook's classifier: the vector of the last real token under a linear layer."""
    torch.manual_seed(0)
    model = Notebook(vocabulary, 2).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    batches = _batches(list(zip(rows, labels, strict=True)), size)

    def steps(count: int) -> int:
        tokens = 0
        for _ in range(count):
            batch = next(batches)
            read = _padded([row for row, _ in batch], padding)
            last = torch.tensor([len(row) - 1 for row, _ in batch])
            optimizer.zero_grad()
            scores = model.top(model(read)[last, torch.arange(len(batch))])
            F.cross_entropy(scores, torch.tensor([label for _, label in batch])).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            tokens += sum(len(row) for row, _ in batch)
        return tokens

    return steps


@dataclass(frozen=True)
class Texts(torch.utils.data.Dataset):
    """Rows as the Trainer reads them."""

    rows: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.rows[number]


class TrainerWay:
    """Some steps of transformers' Trainer, timed between the first step's end and the last one's."""

    def __init__(self, model: nn.Module, rows: list[dict[str, Any]], collate: Callable, size: int, **flags: Any):
        from transformers.utils import logging

        logging.set_verbosity_error()
        self.model, self.data, self.collate, self.size, self.flags = model, Texts(rows), collate, size, flags

    def rate(self, steps: int, count: Callable[[dict[str, Tensor]], int]) -> float:
        """What `count` finds in the batches of the timed steps, a second."""
        from transformers import Trainer, TrainerCallback, TrainingArguments

        step_times: list[float] = []
        sizes: list[int] = []

        def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
            batch = self.collate(rows)
            sizes.append(count(batch))
            return batch

        class StepTimes(TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                step_times.append(Clock.now())

        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            words = TrainingArguments(
                output_dir=folder, use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no",
                disable_tqdm=True, max_steps=steps + 1, per_device_train_batch_size=self.size, learning_rate=1e-4,
                optim="adamw_torch_fused", dataloader_pin_memory=False, remove_unused_columns=False,
                **self.flags,
            )  # fmt: skip
            trainer = Trainer(
                model=self.model, args=words, train_dataset=self.data, data_collator=collate, callbacks=[StepTimes()]
            )
            trainer.train()
        return sum(sizes[1 : steps + 1]) / (step_times[-1] - step_times[0])


def pad_rows(padding: int, with_labels: bool) -> Callable[[list[dict[str, Any]]], dict[str, Tensor]]:
    """Rows of `input_ids` padded to the longest of them; with labels, those of the row, else the tokens themselves."""

    def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        tokens = [torch.from_numpy(row["input_ids"]).long() for row in rows]
        batch = {
            "input_ids": nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=padding),
            "attention_mask": nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in tokens], batch_first=True),
        }
        if with_labels:
            batch["labels"] = torch.tensor([row["labels"] for row in rows])
        else:
            batch["labels"] = nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=IGNORE)
        return batch

    return collate


def hidden_tokens(mask: int, vocabulary: int, rate: float) -> Callable[[list[dict[str, Any]]], dict[str, Tensor]]:
    """Blocks with a share of their tokens hidden, as DataCollatorForLanguageModeling does it."""
    chance = torch.Generator().manual_seed(0)

    def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        tokens = torch.stack([torch.from_numpy(row["input_ids"]).long() for row in rows])
        chosen = torch.rand(tokens.shape, generator=chance) < rate
        lot = torch.rand(tokens.shape, generator=chance)
        others = torch.randint(5, vocabulary, tokens.shape, generator=chance)
        shown = torch.where(chosen & (lot < 0.8), mask, torch.where(chosen & (lot >= 0.9), others, tokens))
        return {"input_ids": shown, "labels": tokens.masked_fill(~chosen, IGNORE)}

    return collate


def lab_gpt2(vocabulary: int, head: str, padding: int) -> nn.Module:
    """GPT-2 of the lab's size: 4 layers of width 200, 2 attention heads, a head of its own."""
    from transformers import GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocabulary, n_positions=1024, n_embd=200, n_layer=4, n_head=2, n_inner=200,
        activation_function="relu", resid_pdrop=0.2, embd_pdrop=0.2, attn_pdrop=0.2, tie_word_embeddings=False,
        pad_token_id=padding, bos_token_id=0, eos_token_id=2, num_labels=2, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    return (GPT2LMHeadModel if head == "lm" else GPT2ForSequenceClassification)(config)


def bert(vocabulary: int, body: Any, length: int) -> nn.Module:
    """BERT of about a body's size: a gated feed-forward part has three matrices, BERT's has two."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=vocabulary, hidden_size=body.hidden_size, num_hidden_layers=body.num_layers,
        num_attention_heads=body.num_heads, intermediate_size=body.intermediate_size * 3 // 2,
        max_position_embeddings=length, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    return BertForMaskedLM(config)
