"""Distillation: a student is trained on the outputs of finished runs, its teachers, and on the true labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from headstart.batch import EncodedExample
from headstart.config import RunConfig
from headstart.data.datasets import Dataset, Example
from headstart.data.documents import Corpora, MixtureComponent, parse_mixture
from headstart.data.subsets import evaluation_hashes
from headstart.data.text_io import text_hash
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, RunError
from headstart.inference.loaded_model import LoadedModel, RunInputs, Tokenizers, absolute_paths, load_model
from headstart.objectives.base import Objective
from headstart.objectives.distillation import DISTILLED, Distillation, can_teach, distill
from headstart.training.callbacks import Note, OnEvent
from headstart.training.evaluate import predict_probabilities
from headstart.training.runtime import ALONE, Runtime


@dataclass(frozen=True)
class DistillationSetup:
    """The teachers of a run, and the unlabelled texts that they label for it."""

    teachers: list[LoadedModel]
    unlabelled: list[MixtureComponent]

    @staticmethod
    def load(
        teacher: str | Sequence[str] | None, unlabelled: Corpora | None = None, with_weights: bool = True
    ) -> "DistillationSetup | None":
        """The named teachers ("RUN1,RUN2", or a list), or None; without weights they can only be checked."""
        if teacher is None:
            if unlabelled:
                raise ConfigError(
                    "texts without labels need teachers to label them", hint="add --distill-from RUN, or leave them out"
                )
            return None
        if not isinstance(teacher, str):
            names = list(teacher)
        else:
            names = [teacher] if Path(teacher).exists() else [name.strip() for name in teacher.split(",")]
        if len(set(names)) < len(names) or not all(names):
            raise ConfigError(f"teachers {', '.join(names)}: one is named twice, or not at all", hint="RUN1,RUN2")
        teachers = [load_model(name, with_weights=with_weights) for name in names]
        return DistillationSetup(teachers, parse_mixture(unlabelled or []))

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of teachers and student."""
        return self.teachers[0].tokenizer

    @property
    def tokenizers(self) -> Tokenizers:
        """The same, as a base has them."""
        return self.tokenizer, None

    @property
    def train_fingerprints(self) -> np.ndarray:
        """Hashes of the texts that the teachers were trained on, which the student may learn from them."""
        return np.concatenate([teacher.train_fingerprints for teacher in self.teachers])

    def add_to(self, inputs: RunInputs) -> RunInputs:
        """The inputs of a run with these teachers and texts."""
        teacher = absolute_paths([teacher.name for teacher in self.teachers])
        return replace(inputs, teacher=teacher, unlabelled=[each.absolute() for each in self.unlabelled])

    def check(self, objective: Objective, config: RunConfig, classes: Sequence[str] | None = None) -> None:
        """Refuse teachers whose outputs do not fit the student's objective, length or classes."""
        if type(objective) not in DISTILLED:
            raise ConfigError(f"{objective.name} cannot be distilled", hint="masked-lm, causal-lm and classify can be")
        length = config.training.max_length
        for teacher in self.teachers:
            own, most = teacher.info.classes, teacher.info.config.model.max_position_embeddings
            if not can_teach(teacher.objective, objective) or not teacher.info.has_heads:
                problem = f"was trained on {teacher.objective.name}, and cannot teach {objective.name}"
                hint = "bases teach bases and classifiers teach classifiers; a recipe's stages are runs too"
            elif teacher.tokenizer.fingerprint != self.tokenizer.fingerprint:
                problem = f"and {self.teachers[0].name} have different tokenizers"
                hint = "choose teachers that come from one base"
            elif most < length:
                problem, hint = f"reads {most} tokens at most, not {length}", f"set training.max_length={most}"
            elif classes is not None and own != list(classes):
                problem = f"has the classes {', '.join(own[:5])}, and the data {', '.join(classes[:5])}"
                hint = "a teacher must have been trained on the same labels"
            else:
                continue
            raise RunError(f"{teacher.name} {problem}", hint=hint)

    def check_student(self, tokenizer: Tokenizer) -> None:
        """Refuse a student whose tokenizer is not that of its teachers."""
        if tokenizer.fingerprint != self.tokenizer.fingerprint:
            raise RunError(
                f"the student has another tokenizer than {self.teachers[0].name}",
                hint="teacher and student must share one; a student from scratch takes its teacher's",
            )

    def objective(self, objective: Objective, config: RunConfig, runtime: Runtime) -> Objective:
        """The objective with a distillation loss."""
        models = tuple(teacher.model().to(runtime.device) for teacher in self.teachers)
        for model in models:
            model.requires_grad_(False)
        training = config.training
        return distill(objective, Distillation(models, training.distillation_alpha, training.distillation_temperature))

    def texts(self, dataset: Dataset, objective: Objective, config: RunConfig) -> list[str]:
        """The unlabelled texts, each once, without those of the dataset and of excluded evaluation sets."""
        self.check(objective, config, dataset.classes)
        known = [dataset.hashes(split) for split in dataset.splits]
        excluded = set(np.concatenate([*known, evaluation_hashes(config.data.exclude_eval_texts_of)]).tolist())
        found = []
        for each in self.unlabelled:
            for text in each.open(config.data):
                hashed = text_hash(text)
                if hashed not in excluded:
                    excluded.add(hashed)
                    found.append(text)
        return found

    def add(
        self, dataset: Dataset, texts: list[str], config: RunConfig, runtime: Runtime, on_event: OnEvent
    ) -> Dataset:
        """The dataset with these texts in its training split, under the labels that the teachers predict."""
        if not texts:
            return dataset
        length, side, tokenizer = config.training.max_length, config.data.truncation_side, self.tokenizer
        rows = [EncodedExample(tokenizer.add_special_tokens(ids, length, side)) for ids in tokenizer.encode(texts)]
        alone = replace(runtime, processes=ALONE, is_sharded=False)  # each process predicts all of them
        predictions = [
            predict_probabilities(
                teacher.model().to(runtime.device), teacher.objective, rows, tokenizer, alone, alone.eval_batch_tokens
            )
            for teacher in self.teachers
        ]
        best = np.mean(predictions, axis=0).argmax(axis=1)
        labels = [dataset.classes[int(index)] for index in best]
        more = [Example(text, label, "unlabelled") for text, label in zip(texts, labels, strict=True)]
        on_event(Note(f"{len(more):,} texts without labels are labelled by the teachers"))
        return replace(dataset, splits={**dataset.splits, "train": dataset.train + more})
