"""Settings: one frozen schema for presets, TOML files, `--set section.key=value` and saved runs.

A wrong setting dies here, before any data is read. Sections are merged in the order: defaults (for fine-tuning,
those of `workflows/finetune_defaults.py`), preset (its part for the job), recommendation of the base that is
fine-tuned, TOML file, flags.
"""

import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from headstart.errors import ConfigError, nearest, pick

Job = Literal["pretrain", "finetune"]
Schema = TypeVar("Schema", bound=BaseModel)


class Section(BaseModel):
    """A group of settings; frozen, and no unknown key passes."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


class BodyConfig(Section):
    """The shape of a body."""

    kind: str = Field("auto", description="a row of BODIES; auto = what the objective needs")
    layers: int = Field(4, ge=1, le=1000, description="blocks")
    decoder_layers: int | None = Field(
        None, ge=1, description="blocks of an encoder-decoder's decoder; none = as many as `layers`"
    )
    source_vocabulary: int | None = Field(
        None,
        ge=1,
        description="tokens of the source's own vocabulary (encoder-decoder); none = one for both sides",
    )
    width: int = Field(256, ge=1, description="numbers that describe one token (D)")
    attention_heads: int = Field(4, ge=1, description="parts into which attention splits the width (A)")
    feed_forward: int = Field(768, ge=1, description="inner width of the feed-forward part")
    positions: Literal["rotary", "sinusoidal", "learned", "none"] = Field(
        "rotary", description="how order is told"
    )
    norm: Literal["rms", "layer"] = Field("rms", description="RMSNorm or LayerNorm")
    norm_first: bool = Field(
        True, description="norm before each part (and once at the end), or after each part"
    )
    activation: Literal["swiglu", "geglu", "gelu", "gelu-tanh", "relu", "relu2"] = Field(
        "swiglu", description="feed-forward; gelu-tanh is GPT-2's approximation"
    )
    biases: bool = Field(False, description="biases in linear maps and in LayerNorm")
    qk_norm: bool = Field(False, description="norm of queries and keys per attention head")
    tied: bool = Field(True, description="the language-model head reads the token table instead of its own")
    scale_embedding: bool = Field(False, description="token vectors times the square root of the width")
    dropout: float = Field(0.0, ge=0.0, lt=1.0, description="share of activations dropped in training")
    attention_dropout: float = Field(
        0.0, ge=0.0, lt=1.0, description="share of attention weights dropped in training"
    )
    max_length: int = Field(512, ge=2, description="longest text the body reads, in tokens")
    segments: bool = Field(
        False, description="a learned vector tells the first text of a pair from the second"
    )
    embedding_norm: bool = Field(False, description="norm right after the embedding, as in BERT")
    pooler: bool = Field(False, description="a dense layer and tanh over the first token, as in BERT")
    norm_epsilon: float = Field(1e-5, gt=0, description="the small number inside a norm")
    kernel: int = Field(5, ge=1, description="tokens that one convolution sees (cnn)")
    dilated: bool = Field(True, description="each convolution looks twice as far as the one below (cnn)")
    rotary_base: float = Field(10000.0, gt=1.0, description="base of the rotary wavelengths")
    key_value_heads: int | None = Field(
        None,
        ge=1,
        description="attention heads of keys and values, each shared by several; none = all their own",
    )
    lm_transform: bool = Field(
        False, description="a dense layer, the activation and a norm before the token scores, as in BERT"
    )
    head_biases: bool | None = Field(
        None, description="biases in the heads' last layer; none = as body.biases"
    )
    first_norm: bool = Field(
        True, description="norm before the first block's attention; ModernBERT has none (norm_first)"
    )
    window: int | None = Field(
        None, ge=1, description="tokens each way that a local layer sees; none = every layer sees all"
    )
    global_every: int = Field(
        3, ge=1, description="with a window: the first layer and every n-th after it see all"
    )
    window_rotary_base: float = Field(
        10000.0, gt=1.0, description="base of the rotary wavelengths in local layers"
    )

    @property
    def has_head_biases(self) -> bool:
        """Whether the heads' last layer has a bias."""
        return self.biases if self.head_biases is None else self.head_biases

    def is_local(self, layer: int) -> bool:
        """Whether the layer of this number, counted from 0, sees its window alone."""
        return self.window is not None and layer % self.global_every != 0

    @model_validator(mode="after")
    def _fits_together(self) -> "BodyConfig":
        shared = self.key_value_heads
        if shared is not None and self.attention_heads % shared:
            raise ConfigError(
                f"body.attention_heads {self.attention_heads} is no multiple of body.key_value_heads {shared}",
                hint="each attention head of keys and values is shared by equally many others",
            )
        if not self.first_norm and not self.norm_first:
            raise ConfigError(
                "body.first_norm=false goes with norms before each part",
                hint="set body.norm_first=true, or leave body.first_norm out",
            )
        return self

    @model_validator(mode="after")
    def _width_splits_evenly(self) -> "BodyConfig":
        if self.width % self.attention_heads:
            raise ConfigError(
                f"body.width {self.width} is no multiple of body.attention_heads {self.attention_heads}",
                hint=f"try {self.width - self.width % self.attention_heads + self.attention_heads}",
            )
        if self.positions == "rotary" and (self.width // self.attention_heads) % 2:
            raise ConfigError(
                f"rotary positions need an even width per attention head, not {self.width // self.attention_heads}",
                hint="change body.attention_heads, or set body.positions=sinusoidal",
            )
        return self


class TokenizerConfig(Section):
    """How text becomes tokens."""

    kind: str = Field(
        "bpe", description="kind (bpe, unigram, wordpiece, characters), or the path of a trained one"
    )
    vocabulary: int = Field(8000, ge=8, description="tokens to learn at most, specials included")
    lowercase: bool = Field(False, description="fold case before splitting")
    shared: bool = Field(
        True, description="translation: one vocabulary for both sides, or one of this size for each"
    )


class ObjectiveConfig(BaseModel):
    """What is asked; the other keys are the fields of the objective called `name`."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str = Field("", description="what to learn: causal-lm, masked-lm, classify, translate, …")

    @property
    def settings(self) -> dict[str, Any]:
        """The objective's own settings."""
        return dict(self.model_extra or {})


class OptimizerConfig(Section):
    """How weights change."""

    kind: Literal["adamw", "adam", "muon"] = Field(
        "adamw", description="muon = Muon for matrices, AdamW for the rest"
    )
    learning_rate: float = Field(1e-3, gt=0, description="peak learning rate")
    weight_decay: float = Field(0.01, ge=0, description="for matrices only")
    beta1: float = Field(0.9, ge=0, lt=1, description="of Adam: decay of the mean of gradients")
    beta2: float = Field(0.98, ge=0, lt=1, description="of Adam: decay of the mean of squared gradients")
    epsilon: float = Field(1e-8, gt=0, description="of Adam: added to the denominator")
    momentum: float = Field(0.95, ge=0, lt=1, description="of Muon")
    clip: float = Field(1.0, ge=0, description="largest gradient norm; 0 = no clipping")
    layer_decay: float = Field(
        1.0, gt=0, le=1, description="each block's rate as a share of the one above it"
    )
    head_scale: float = Field(1.0, gt=0, description="the heads' rate as a multiple of the top block's")


class ScheduleConfig(Section):
    """How the learning rate moves over the budget."""

    kind: Literal[
        "constant", "linear", "cosine", "slanted-triangular", "warmup-stable-decay", "inverse-square-root"
    ] = "cosine"
    warmup: float = Field(0.05, ge=0, le=1, description="share of the budget spent rising")
    warmup_steps: int | None = Field(None, ge=1, description="steps spent rising, in place of a share")
    decay: float = Field(0.2, ge=0, le=1, description="share spent falling (warmup-stable-decay)")
    final: float = Field(
        0.0, ge=0, le=1, description="rate at the end as a share of the top (not of inverse-square-root)"
    )

    @model_validator(mode="after")
    def _rises_first(self) -> "ScheduleConfig":
        if self.kind == "inverse-square-root" and self.warmup_steps is None and not self.warmup:
            raise ConfigError(
                "inverse-square-root falls from where its warm-up ends, and schedule.warmup is 0",
                hint="set schedule.warmup_steps=4000, or a share of the budget as schedule.warmup",
            )
        return self


class TrainingConfig(Section):
    """Budget, batches and bookkeeping; exactly one of epochs, steps, tokens, minutes is set."""

    epochs: float | None = Field(None, gt=0, description="stop after reading the data this many times")
    steps: int | None = Field(None, gt=0, description="stop after this many steps")
    tokens: int | None = Field(None, gt=0, description="stop after this many tokens")
    minutes: float | None = Field(None, gt=0, description="stop after this many minutes")
    length: int = Field(
        256, ge=2, description="tokens a text (fine-tuning) or a block (pretraining) holds at most"
    )
    batch_tokens: int = Field(
        8192, ge=1, description="token budget of one batch, padding included, over all processes together"
    )
    batch_examples: int | None = Field(None, ge=1, description="texts in one batch at most")
    accumulate: int = Field(1, ge=1, description="batches whose gradients make one step")
    seed: int = Field(0, ge=0, lt=2**31, description="random seed")
    device: str = Field("auto", description="where to compute: auto, cpu, cuda, mps")
    precision: Literal["auto", "fast", "float32", "bfloat16"] = Field(
        "auto",
        description="auto = bfloat16 on a GPU with it; fast = also on a processor that multiplies it natively",
    )
    compile: bool | Literal["auto"] = Field(
        False,
        description="torch.compile training steps, which costs about a minute; auto = for long runs on a GPU",
    )
    sharded: bool = Field(
        False, description="many processes hold a part of the model each (FSDP2), not a copy each (DDP)"
    )
    timeout: float = Field(
        10.0, gt=0, description="minutes that a process waits for the others before it calls them lost"
    )
    deterministic: bool = Field(
        False, description="the same bits each time on the same machines, also on a GPU; slower there"
    )
    evaluate_every: int | None = Field(None, ge=1, description="steps between evaluations; none = each epoch")
    marked: int | None = Field(
        None, ge=1, description="validation texts read at each evaluation; none = all of them"
    )
    save_every: int | None = Field(None, ge=1, description="steps between checkpoints")
    save_minutes: float | None = Field(10.0, gt=0, description="minutes between checkpoints")
    force: bool = Field(False, description="train even when the plan says that memory will not do")
    tensorboard: bool = Field(False, description="also write TensorBoard files (extra: tensorboard)")
    keep: Literal["best", "last"] = Field(
        "best", description="which weights are the run's: best on validation, or last"
    )
    freeze: bool = Field(False, description="train the heads alone")
    unfreeze_every: float | None = Field(
        None, gt=0, description="epochs after which one more block thaws, top first"
    )
    head: Literal["auto", "fresh"] = Field(
        "auto",
        description="auto = a base's own head goes on where it names the very classes of the data (fine-tuning)",
    )
    linear_probe: bool = Field(
        False,
        description="train a base's new head on the frozen backbone first, then everything (fine-tuning)",
    )
    keep_winner: bool = Field(
        False,
        description="answer with the TF-IDF baseline where it has the better validation score (fine-tuning)",
    )
    reset_layers: int = Field(0, ge=0, description="top blocks of a base that start fresh (fine-tuning)")
    bpe_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of merges left out when texts are split anew each epoch (fine-tuning)",
    )
    cutoff: float = Field(
        0.0, ge=0, lt=1, description="share of a text's tokens taken out, others each epoch (fine-tuning)"
    )
    average: Literal["none", "ema", "last"] = Field(
        "none",
        description="weights to judge and keep: as they are, a moving average, the mean of the last epochs",
    )
    average_epochs: float = Field(3.0, gt=0, description="epochs that the average looks back on")
    teacher_share: float = Field(
        0.5, ge=0, le=1, description="of a teacher's answers in the loss; the rest is for the true ones"
    )
    teacher_temperature: float = Field(
        2.0, gt=0, description="above 1 softens the answers of teacher and student"
    )

    @model_validator(mode="after")
    def _one_budget(self) -> "TrainingConfig":
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"the budget is given twice: {' and '.join(given)}", hint="keep one of them")
        if self.freeze and self.unfreeze_every is not None:
            raise ConfigError(
                "training.freeze and training.unfreeze_every exclude each other", hint="keep one of them"
            )
        if self.sharded and (self.compile or self.unfreeze_every is not None):
            other = "compile" if self.compile else "unfreeze_every"
            raise ConfigError(
                f"training.sharded and training.{other} exclude each other",
                hint="keep one of them; without training.sharded each process holds the whole model",
            )
        still = next((name for name in ("freeze", "unfreeze_every") if getattr(self, name)), None)
        if self.reset_layers and still:
            raise ConfigError(
                f"training.{still} would keep the blocks of training.reset_layers as chance made them",
                hint="keep one of them",
            )
        if self.average == "last" and (self.tokens is not None or self.minutes is not None):
            raise ConfigError(
                "which epochs are the last is known only for a budget in epochs or steps",
                hint="set training.average=ema, or a budget in epochs",
            )
        return self


BUDGETS = ("epochs", "steps", "tokens", "minutes")
# Settings of training that say where and how it is done, not what comes out: another machine may have others.
MACHINE_SETTINGS = (
    "device", "precision", "compile", "sharded", "timeout", "deterministic", "save_every", "save_minutes", "force",
    "tensorboard",
)  # fmt: skip


PATH_SETTINGS = ("apart",)  # settings of data that name other sets


class DataConfig(Section):
    """How files are read."""

    text_column: str = Field("text", description="the column that holds the text")
    label_column: str = Field("label", description="the column that holds the label")
    labels: int | None = Field(None, ge=2, description="train on a seeded, balanced subset of this many")
    strict: bool = Field(False, description="rows that would be skipped are errors")
    keep: Literal["start", "end", "both"] = Field(
        "start", description="which part of an over-long text is read"
    )
    documents: Literal["auto", "line", "paragraph"] = Field(
        "auto", description="what parts documents in a .txt file"
    )
    classes: dict[str, list[str]] = Field(
        {},
        description="classes made of a table's labels, e.g. {good = ['4', '5']}; rows with other labels are left out",
    )
    unique: bool = Field(
        False,
        description="pretraining: a document that stood before, in this text or another, is passed over",
    )
    apart: list[str] = Field(
        [],
        description="labelled sets whose validation and test texts are read by no training: built-in names or paths",
    )
    max_ratio: float = Field(
        9.0,
        ge=0,
        description="translation: longer side of a pair to learn from over the shorter, in characters; 0 = any",
    )


class RunConfig(Section):
    """All settings of one run."""

    job: Job
    preset: str = "tiny"
    body: BodyConfig = BodyConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    training: TrainingConfig = TrainingConfig()
    data: DataConfig = DataConfig()

    def with_(self, changes: Mapping[str, Any]) -> "RunConfig":
        """These settings with `changes` (nested by section) on top, checked again."""
        return parse(RunConfig, merge(self.model_dump(), changes))


TABLE_SETTINGS = ("classes",)  # settings that are tables by themselves


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """`lower` overlaid by `upper`, section by section.

    A budget, an objective, a way to tell the warm-up, or which rows and labels are meant, replaces the one below.
    """
    merged = dict(lower)
    for key, value in upper.items():
        if key not in TABLE_SETTINGS and isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            below = merged[key]
            if key == "training" and any(value.get(name) is not None for name in BUDGETS):
                below = {name: old for name, old in below.items() if name not in BUDGETS}
            if key == "objective" and value.get("name", below.get("name")) != below.get("name"):
                below = {}  # another objective has other settings
            if key == "schedule" and value.get("warmup") is not None:
                below = {name: old for name, old in below.items() if name != "warmup_steps"}
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def parse(schema: type[Schema], content: Mapping[str, Any], where: str = "") -> Schema:
    """`content` checked against `schema`; the first fault becomes a sentence with a hint."""
    if not isinstance(content, Mapping):
        raise ConfigError(
            f"{where or 'a section of settings'} is {content!r}, and should be a table of settings",
            hint="write its settings as lines KEY = VALUE under its name in brackets",
        )
    try:
        return schema.model_validate(dict(content))
    except ValidationError as error:
        faults = error.errors()  # a misspelt key first: what it was meant to be is missing because of it
        fault = next((each for each in faults if each["type"] == "extra_forbidden"), faults[0])
        name = ".".join(str(part) for part in fault["loc"])
        inside = f" in {where}" if where else ""
        if fault["type"] == "extra_forbidden":
            section: Any = schema
            for part in fault["loc"][:-1]:
                is_place = isinstance(part, int)  # in a list
                section = get_args(section)[0] if is_place else section.model_fields[part].annotation
            hint = nearest(str(fault["loc"][-1]), section.model_fields)
            raise ConfigError(f"no setting is called {name!r}{inside}", hint=hint) from None
        if fault["type"] == "missing":
            key = fault["loc"][-1]
            raise ConfigError(
                f"{name} is missing{inside}", hint=f'write {key} = "…"; the documentation lists every setting'
            ) from None
        raise ConfigError(
            f"setting {name}{inside} cannot be {fault['input']!r}: {fault['msg'].lower()}",
            hint="docs/reference/settings.md lists every setting with its values",
        ) from None


def preset_names() -> list[str]:
    """The presets that come with headstart."""
    folder = resources.files("headstart.presets")
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def load_preset(name: str) -> dict[str, Any]:
    """A preset's raw sections: body, tokenizer, and a part for each job."""
    table = {name: name for name in preset_names()}
    text = (
        resources.files("headstart.presets")
        .joinpath(f"{pick(table, name, 'preset')}.toml")
        .read_text("utf-8")
    )
    return tomllib.loads(text)


def load_toml(path: Path) -> dict[str, Any]:
    """A user's settings file."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no settings file at {path}", hint="check the path given to --config") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="name a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is no readable TOML: {error}", hint="mend the file at that place"
        ) from None


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """`section.key=value` words as nested settings; values are read as TOML, bare words as text."""
    nested: dict[str, Any] = {}
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (sign and dot and key):
            raise ConfigError(
                f"--set {assignment!r} is not section.key=value", hint="for example --set body.width=256"
            )
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value
        nested.setdefault(section, {})[key] = parsed
    return nested


def resolve(
    job: Job, preset: str, *overlays: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> RunConfig:
    """The settings of one run: `defaults`, then the preset's part for `job`, then each overlay."""
    raw = load_preset(preset)
    shared = {
        key: value for key, value in raw.items() if key not in ("pretrain", "finetune", "title", "note")
    }
    content = merge({"job": job, "preset": preset, **(defaults or {})}, merge(shared, raw.get(job, {})))
    for overlay in overlays:
        content = merge(content, overlay)
    return parse(RunConfig, content)
