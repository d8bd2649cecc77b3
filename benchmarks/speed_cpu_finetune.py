"""How long one fine-tuning epoch takes on a CPU: headstart, the course notebook's way, and transformers' Trainer.

    python benchmarks/speed_cpu_finetune.py $DATA/cls-books-fr [--steps N]

The lab's classifier on the course's 1,600 reviews, cut at 256 tokens, 16 in a batch: 100 steps are an epoch, and
each way runs a whole one, for batches of like length are not alike. headstart runs before, between and after the others. Writes
speed-cpu-finetune.{md,json}.
"""

import time
from collections.abc import Callable
from typing import Any

from bench import Rate, Sheet, ceiling, options, rate_of, reached, steps_of
from peers import TrainerWay, lab_gpt2, notebook_classifier, pad_rows

from headstart.config import resolve
from headstart.data.tokenizer_training import open_tokenizer
from headstart.training.runtime import start_runtime
from headstart.workflows.finetune import FinetuneJob, Task, load_labelled, make_task
from headstart.workflows.finetune_defaults import finetune_config

BATCH = 16
TARGET = 3.0


def ours(task: Task, settings: dict[str, Any]) -> Callable[[int], int]:
    """Steps of headstart's own loop; says how many tokens they read."""
    config, _ = finetune_config(None, "lab", settings)
    config = config.with_({"training": {"max_epochs": None, "max_steps": 10**6, "save_minutes": None}})
    job = FinetuneJob(config, start_runtime(config.training))
    model, transfer = job.build_model(task)
    return steps_of(job.make_trainer(model, job.objective, job.training_data(task), transfer))


def main() -> None:
    """Measure and write."""
    began = time.monotonic()
    words = options(__doc__, data=None, steps=100)
    config = resolve("finetune", "lab", {})
    task = make_task(load_labelled(words.data, config), open_tokenizer(words.data), config)
    rows, tokenizer = task.rows["train"], task.tokenizer
    tokens, labels = [row.tokens for row in rows], [int(row.label or 0) for row in rows]
    theirs = [{"input_ids": row.tokens, "labels": int(row.label or 0)} for row in rows]

    def trainer(**flags: Any) -> Callable[[], float]:
        model = lab_gpt2(tokenizer.size, "class", tokenizer.pad_id)
        way = TrainerWay(model, theirs, pad_rows(tokenizer.pad_id, True), BATCH, **flags)
        return lambda: way.rate(words.steps, lambda batch: int(batch["attention_mask"].sum()))

    def started(way: Callable[[int], int]) -> Callable[[], float]:
        way(2)
        return lambda: rate_of(lambda: way(words.steps))

    exact = {"training": {"precision": "float32"}}
    own = started(ours(task, exact))
    others = {
        "(b) Trainer": trainer(train_sampling_strategy="group_by_length"),
        "(a) notebook": started(notebook_classifier(tokens, labels, tokenizer.size, tokenizer.pad_id)),
        "(b) Trainer, batches as they come": trainer(),
        "headstart, bfloat16": started(ours(task, {"training": {"precision": "bf16"}})),
    }
    top = ceiling()
    rates = [own()]
    found = {}
    for way, measure in others.items():
        found[way] = Rate.of([measure()])
        rates += [own()] if way.startswith("(a)") else []
        print(way, found[way].shown(), flush=True)
    found = {"headstart": Rate.of([*rates, own()]), **found}
    middle = found["headstart"].middle
    lines, epoch = [], sum(len(row) for row in tokens)
    for way, rate in found.items():
        ratio = middle / rate.middle
        note = reached(ratio, TARGET) if way in ("(a) notebook", "(b) Trainer") else f"{ratio:.2f}"
        lines.append([way, f"{epoch / rate.middle:.1f}", rate.shown(), "" if way == "headstart" else note])
    head = ["way", "seconds for an epoch", "real tokens a second", "headstart is faster by"]
    sheet = Sheet("speed-cpu-finetune", "Speed of fine-tuning on a CPU", WHAT, [("", head, lines)])
    sheet.rows = {"target": TARGET, "texts": len(rows), "tokens": epoch, "ways": found, "ceiling": top}
    sheet.notes.append(top.shown())
    sheet.write(words.out, began)


WHAT = """The lab's classifier (4 layers, width 200, 50,001 tokens, dropout 0.2) learns from 1,600 French reviews cut at 256 tokens,
16 in a batch. Each way runs a whole epoch of 100 batches, headstart three (the median, the lowest, the highest). The evaluation after it is
not counted on any side. All sides compute in float32 but for the row that says otherwise. (a) pads batches of reviews as they come; (b) is a
GPT-2 of the same size with the fused AdamW, fused attention and batches of like length (`train_sampling_strategy="group_by_length"`)."""


if __name__ == "__main__":
    main()
