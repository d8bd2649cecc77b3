"""Learning from teachers: finished runs whose answers a student is marked on beside the true ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headstart.batch import Row
from headstart.config import RunConfig
from headstart.data.dataset import Dataset, Example, text_hash
from headstart.data.decontamination import apart_hashes
from headstart.data.documents import Corpora, MixtureComponent, parse_mixture
from headstart.data.tokenizer import Tokenizer
from headstart.errors import ConfigError, RunError
from headstart.inference.loaded_model import LoadedModel, load_model
from headstart.objectives.base import Objective
from headstart.objectives.distillation import DISTILLED, Distillation, can_teach, distill
from headstart.pretrained import shipped_bases
from headstart.training.callbacks import Event, Note
from headstart.training.distributed import ALONE
from headstart.training.evaluate import predict_probabilities
from headstart.training.runtime import Runtime


@dataclass(frozen=True)
class Teaching:
    """The teachers of a run, and texts without labels that they label for it."""

    teachers: list[LoadedModel]
    unlabelled: list[MixtureComponent]

    @property
    def tokenizer(self) -> Tokenizer:
        """What teachers and student read with."""
        return self.teachers[0].tokenizer

    @property
    def train_fingerprints(self) -> np.ndarray:
        """What the teachers have read: a student may have it from them."""
        return np.concatenate([teacher.train_fingerprints for teacher in self.teachers])

    def inputs(self) -> dict[str, Any]:
        """What run.json keeps of it."""
        given: dict[str, Any] = {"teacher": [_place(teacher.name) for teacher in self.teachers]}
        if self.unlabelled:
            given["unlabelled"] = [each.absolute().to_dict() for each in self.unlabelled]
        return given

    def check(self, objective: Objective, config: RunConfig, classes: Sequence[str] | None = None) -> None:
        """Refuse teachers that cannot answer what the student is asked."""
        if type(objective) not in DISTILLED:
            raise ConfigError(
                f"nobody teaches {objective.name}", hint="masked-lm, causal-lm and classify can be taught"
            )
        for teacher in self.teachers:
            if not can_teach(teacher.objective, objective) or not teacher.info.has_heads:
                raise RunError(
                    f"{teacher.name} was trained on {teacher.objective.name}, and cannot teach {objective.name}",
                    hint="a base is taught by a base, a classifier by classifiers; a recipe's stages are runs too",
                )
            if teacher.tokenizer.fingerprint != self.tokenizer.fingerprint:
                raise RunError(
                    f"{teacher.name} and {self.teachers[0].name} split texts by different tokenizers",
                    hint="choose teachers that come from one base",
                )
            if teacher.info.config.model.max_position_embeddings < config.training.max_length:
                raise ConfigError(
                    f"{teacher.name} reads {teacher.info.config.model.max_position_embeddings} tokens at most, not "
                    f"{config.training.max_length}",
                    hint=f"set training.max_length={teacher.info.config.model.max_position_embeddings}",
                )
            if classes is not None and teacher.info.classes != list(classes):
                raise RunError(
                    f"{teacher.name} names the classes {', '.join(teacher.info.classes[:5])}, and the data "
                    f"{', '.join(classes[:5])}",
                    hint="a teacher must have learnt the same labels",
                )

    def check_student(self, tokenizer: Tokenizer) -> None:
        """Refuse a student that reads with another tokenizer than its teachers."""
        if tokenizer.fingerprint != self.tokenizer.fingerprint:
            raise RunError(
                f"the student splits texts by another tokenizer than {self.teachers[0].name}",
                hint="teacher and student must share one; a student from scratch takes its teacher's",
            )

    def objective(self, objective: Objective, config: RunConfig, runtime: Runtime) -> Objective:
        """The objective with the teachers beside it."""
        models = tuple(teacher.model().to(runtime.device) for teacher in self.teachers)
        for model in models:
            model.requires_grad_(False)
        training = config.training
        return distill(
            objective, Distillation(models, training.distillation_alpha, training.distillation_temperature)
        )

    def texts(self, dataset: Dataset, objective: Objective, config: RunConfig) -> list[str]:
        """The texts without labels, each once, and none that the dataset has or that is set apart."""
        self.check(objective, config, dataset.classes)
        known = [dataset.hashes(split) for split in dataset.splits]
        passed = set(np.concatenate([*known, apart_hashes(config.data.exclude_eval_texts_of)]).tolist())
        found = []
        for each in self.unlabelled:
            for text in each.open(config.data):
                hashed = text_hash(text)
                if hashed not in passed:
                    passed.add(hashed)
                    found.append(text)
        return found

    def add(
        self,
        dataset: Dataset,
        texts: list[str],
        tokenizer: Tokenizer,
        config: RunConfig,
        runtime: Runtime,
        on_event: Callable[[Event], None],
    ) -> Dataset:
        """The dataset with the texts among those to learn from, under the labels that the teachers hold most likely."""
        with runtime.processes.raise_on_all():
            self.check_student(tokenizer)
        if not texts:
            return dataset
        length, keep = config.training.max_length, config.data.truncation_side
        rows = [Row(tokenizer.frame(ids, length, keep)) for ids in tokenizer.encode(texts)]
        alone = replace(runtime, processes=ALONE, is_sharded=False)  # each process asks for itself
        answers = [
            predict_probabilities(
                teacher.model().to(runtime.device),
                teacher.objective,
                rows,
                tokenizer,
                alone,
                alone.eval_batch_tokens,
            )
            for teacher in self.teachers
        ]
        best = np.mean(answers, axis=0).argmax(axis=1)
        more = [
            Example(text, dataset.classes[int(index)], "unlabelled")
            for text, index in zip(texts, best, strict=True)
        ]
        on_event(Note(f"{len(more):,} texts without labels are labelled by the teachers"))
        return replace(dataset, splits={**dataset.splits, "train": dataset.train + more})


def make_teaching(
    teacher: str | Sequence[str] | None, unlabelled: Corpora | None = None, with_weights: bool = True
) -> Teaching | None:
    """The teachers that are named ("RUN1,RUN2", or a list), to look at alone where `with_weights` is not; or None."""
    if teacher is None:
        if unlabelled:
            raise ConfigError(
                "texts without labels need teachers to label them",
                hint="add --distill-from RUN, or leave them out",
            )
        return None
    names = list(teacher) if not isinstance(teacher, str) else _split(teacher)
    if len(set(names)) < len(names) or not all(names):
        raise ConfigError(f"teachers {', '.join(names)}: one is named twice, or not at all", hint="RUN1,RUN2")
    teachers = [load_model(name, with_weights=with_weights) for name in names]
    return Teaching(teachers, parse_mixture(unlabelled or []))


def teaching_of(inputs: Mapping[str, Any]) -> Teaching | None:
    """The teachers that run.json tells of."""
    if "teacher" not in inputs:
        return None
    return make_teaching(
        inputs["teacher"], [MixtureComponent(**each) for each in inputs.get("unlabelled", [])]
    )


def _split(words: str) -> list[str]:
    return [words] if Path(words).exists() else [name.strip() for name in words.split(",")]


def _place(name: str) -> str:
    return name if name in shipped_bases() else str(Path(name).resolve())
