"""Settings: one frozen schema for presets, TOML files, `--set section.key=value` and saved runs.

A wrong setting is an error before any data is read. Later sections replace earlier ones: defaults (for fine-tuning,
those of `workflows/finetune_defaults.py`), the preset's part for the job, what the base recommends, the TOML file,
flags.
"""

import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from headstart.errors import ConfigError, nearest, pick

Job = Literal["pretrain", "finetune"]
TaskName = Literal["single-label", "multi-label", "regression", "ordinal", "token"]
Schema = TypeVar("Schema", bound=BaseModel)


class Section(BaseModel):
    """A group of settings, which is frozen; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


def _refuse(*rules: tuple[bool, str, str]) -> None:
    """Raise the problem and the hint of the first rule that is broken."""
    for is_broken, problem, hint in rules:
        if is_broken:
            raise ConfigError(problem, hint=hint)


class ModelConfig(Section):
    """The shape of a model."""

    architecture: str = Field("auto", description="a name in BACKBONES; auto = what the objective needs")
    num_layers: int = Field(4, ge=1, le=1000, description="blocks")
    num_decoder_layers: int | None = Field(None, ge=1, description="blocks of the decoder; none = as many")
    source_vocab_size: int | None = Field(None, ge=1, description="source vocabulary of a translator; none = shared")
    hidden_size: int = Field(256, ge=1, description="size of a token's vector (D)")
    num_heads: int = Field(4, ge=1, description="attention heads (H)")
    intermediate_size: int = Field(768, ge=1, description="inner size of the feed-forward network")
    position_embedding: Literal["rotary", "sinusoidal", "learned", "none"] = Field(
        "rotary", description="how order is encoded"
    )
    norm: Literal["rms", "layer"] = Field("rms", description="RMSNorm or LayerNorm")
    norm_first: bool = Field(True, description="norm before each sublayer and at the end, or after each sublayer")
    activation: Literal["swiglu", "geglu", "gelu", "gelu-tanh", "relu", "relu2"] = Field(
        "swiglu", description="feed-forward; gelu-tanh as in GPT-2"
    )
    bias: bool = Field(False, description="biases in linear layers and in LayerNorm")
    qk_norm: bool = Field(False, description="norm of queries and keys per attention head")
    tie_embeddings: bool = Field(True, description="the language-model head shares the embedding's weights")
    scale_embedding: bool = Field(False, description="multiply embeddings by the square root of D")
    dropout: float = Field(0.0, ge=0.0, lt=1.0, description="dropout of activations")
    attention_dropout: float = Field(0.0, ge=0.0, lt=1.0, description="dropout of attention weights")
    max_position_embeddings: int = Field(512, ge=2, description="longest text, in tokens")
    token_type_embeddings: bool = Field(False, description="tell the first text of a pair from the second")
    embedding_norm: bool = Field(False, description="norm after the embedding, as in BERT")
    pooler: bool = Field(False, description="a dense layer and tanh over the first token, as in BERT")
    norm_eps: float = Field(1e-5, gt=0, description="added to the variance in a norm")
    kernel_size: int = Field(5, ge=1, description="tokens that one convolution sees (cnn)")
    dilation: bool = Field(True, description="each convolution sees twice as far as the one below (cnn)")
    rope_theta: float = Field(10000.0, gt=1.0, description="base of the rotary wavelengths")
    num_kv_heads: int | None = Field(None, ge=1, description="heads of keys and values (GQA); none = all")
    mlm_head_transform: bool = Field(False, description="dense layer and norm before the logits, as in BERT")
    head_bias: bool | None = Field(None, description="biases in the heads' last layer; none = as model.bias")
    norm_first_layer: bool = Field(True, description="norm before the first block's attention; ModernBERT has none")
    sliding_window: int | None = Field(None, ge=1, description="tokens each way in local layers; none = all global")
    global_attn_every_n_layers: int = Field(3, ge=1, description="with a window: every n-th layer is global")
    local_rope_theta: float = Field(10000.0, gt=1.0, description="rotary base of local layers")

    @property
    def has_head_bias(self) -> bool:
        """Whether the heads' last layer has a bias."""
        return self.bias if self.head_bias is None else self.head_bias

    def is_local(self, layer: int) -> bool:
        """Whether the layer of this number, counted from 0, sees its window alone."""
        return self.sliding_window is not None and layer % self.global_attn_every_n_layers != 0

    @model_validator(mode="after")
    def _is_consistent(self) -> "ModelConfig":
        heads, groups, width = self.num_heads, self.num_kv_heads or self.num_heads, self.hidden_size
        _refuse(
            (
                heads % groups != 0,
                f"model.num_heads {heads} is not a multiple of model.num_kv_heads {groups}",
                "each head of keys and values is shared by equally many heads",
            ),
            (
                not self.norm_first_layer and not self.norm_first,
                "model.norm_first_layer=false needs norms before each sublayer",
                "set model.norm_first=true, or leave model.norm_first_layer out",
            ),
            (
                width % heads != 0,
                f"model.hidden_size {width} is not a multiple of model.num_heads {heads}",
                f"try {width - width % heads + heads}",
            ),
            (
                self.position_embedding == "rotary" and width // heads % 2 == 1,
                f"rotary positions need an even size per attention head, not {width // heads}",
                "change model.num_heads, or set model.position_embedding=sinusoidal",
            ),
        )
        return self


class TokenizerConfig(Section):
    """How text becomes tokens."""

    type: str = Field("bpe", description="bpe, unigram, wordpiece or characters; or the path of a trained one")
    vocab_size: int = Field(8000, ge=8, description="tokens to learn at most, special tokens included")
    lowercase: bool = Field(False, description="fold case before splitting")
    shared_vocab: bool = Field(True, description="translation: one vocabulary for both sides, or one for each")


class ObjectiveConfig(BaseModel):
    """What the model learns; the other keys are the fields of the objective called `name`."""

    model_config = ConfigDict(frozen=True, extra="allow")
    name: str = Field("", description="what to learn: causal-lm, masked-lm, classify, translate and others")

    @property
    def settings(self) -> dict[str, Any]:
        """The objective's own settings."""
        return dict(self.model_extra or {})


class OptimizerConfig(Section):
    """How weights change."""

    name: Literal["adamw", "adam", "muon"] = Field("adamw", description="muon = Muon for matrices, AdamW for the rest")
    learning_rate: float = Field(1e-3, gt=0, description="peak learning rate")
    weight_decay: float = Field(0.01, ge=0, description="for matrices only")
    beta1: float = Field(0.9, ge=0, lt=1, description="of Adam: decay of the mean of gradients")
    beta2: float = Field(0.98, ge=0, lt=1, description="of Adam: decay of the mean of squared gradients")
    eps: float = Field(1e-8, gt=0, description="of Adam: added to the denominator")
    momentum: float = Field(0.95, ge=0, lt=1, description="of Muon")
    max_grad_norm: float = Field(1.0, ge=0, description="largest gradient norm; 0 = no clipping")
    layerwise_lr_decay: float = Field(1.0, gt=0, le=1, description="learning rate of a block over that of the next")
    head_lr_multiplier: float = Field(1.0, gt=0, description="learning rate of the heads over that of the top block")


class LrScheduleConfig(Section):
    """How the learning rate moves over the budget."""

    name: Literal[
        "constant", "linear", "cosine", "slanted-triangular", "warmup-stable-decay", "inverse-square-root"
    ] = "cosine"
    warmup_ratio: float = Field(0.05, ge=0, le=1, description="share of the budget for warmup")
    warmup_steps: int | None = Field(None, ge=1, description="warmup in steps, instead of a share")
    decay_ratio: float = Field(0.2, ge=0, le=1, description="share of the budget for decay (warmup-stable-decay)")
    min_lr_ratio: float = Field(0.0, ge=0, le=1, description="final over peak rate (not of inverse-square-root)")

    @model_validator(mode="after")
    def _is_consistent(self) -> "LrScheduleConfig":
        _refuse(
            (
                self.name == "inverse-square-root" and self.warmup_steps is None and self.warmup_ratio == 0,
                "inverse-square-root decays from the end of warmup, and lr_schedule.warmup_ratio is 0",
                "set lr_schedule.warmup_steps=4000, or a share of the budget as lr_schedule.warmup_ratio",
            )
        )
        return self


class TrainingConfig(Section):
    """Budget, batches and bookkeeping; exactly one of epochs, steps, tokens, minutes is set."""

    max_epochs: float | None = Field(None, gt=0, description="stop after reading the data this many times")
    max_steps: int | None = Field(None, gt=0, description="stop after this many steps")
    max_tokens: int | None = Field(None, gt=0, description="stop after this many tokens")
    max_minutes: float | None = Field(None, gt=0, description="stop after this many minutes")
    max_length: int = Field(256, ge=2, description="tokens at most in a text (fine-tuning) or block (pretraining)")
    tokens_per_batch: int = Field(8192, ge=1, description="tokens in one batch of all processes, padding included")
    batch_size: int | None = Field(None, ge=1, description="texts in one batch at most")
    gradient_accumulation_steps: int = Field(1, ge=1, description="batches in one step")
    seed: int = Field(0, ge=0, lt=2**31, description="random seed")
    device: str = Field("auto", description="where to compute: auto, cpu, cuda, mps")
    precision: Literal["auto", "bf16", "float32", "bfloat16"] = Field(
        "auto", description="auto = bfloat16 on a GPU that has it; bf16 = also on a CPU that has it; bfloat16 = always"
    )
    compile: bool | Literal["auto"] = Field(False, description="torch.compile; auto = for long runs on a GPU")
    fast: bool = Field(True, description="use the fast paths; false = the plain code alone")
    fsdp: bool = Field(False, description="shard the model over processes (FSDP2) instead of copying it (DDP)")
    ddp_timeout_minutes: float = Field(10.0, gt=0, description="minutes to wait for another process")
    deterministic: bool = Field(False, description="identical results in every run, also on a GPU, where it is slower")
    eval_steps: int | None = Field(None, ge=1, description="steps between evaluations; none = each epoch")
    eval_subset_size: int | None = Field(None, ge=1, description="validation texts per evaluation; none = all")
    save_steps: int | None = Field(None, ge=1, description="steps between checkpoints")
    save_minutes: float | None = Field(10.0, gt=0, description="minutes between checkpoints")
    ignore_memory_check: bool = Field(False, description="train even where the plan finds too little memory")
    tensorboard: bool = Field(False, description="also write TensorBoard files (extra: tensorboard)")
    checkpoint_selection: Literal["best", "last"] = Field("best", description="best on validation, or last")
    freeze_backbone: bool = Field(False, description="train the heads alone")
    gradual_unfreezing_epochs: float | None = Field(
        None, gt=0, description="epochs to unfreeze one more block, top first"
    )
    head_init: Literal["reuse", "random"] = Field("reuse", description="reuse = keep a head of the same classes")
    linear_probe: bool = Field(False, description="train a new head on the frozen backbone first, then everything")
    keep_winner: bool = Field(False, description="answer with the TF-IDF baseline where it validates better")
    reinit_top_layers: int = Field(0, ge=0, description="top blocks of a base to initialize anew")
    bpe_dropout: float = Field(0.0, ge=0, lt=1, description="BPE-dropout: share of merges left out, new each epoch")
    token_cutoff: float = Field(0.0, ge=0, lt=1, description="share of a text's tokens removed, others each epoch")
    weight_averaging: Literal["none", "ema", "last_epochs"] = Field(
        "none", description="weights to evaluate: as they are, a moving average, or a mean of epochs"
    )
    averaging_epochs: float = Field(3.0, gt=0, description="epochs in the average")
    distillation_alpha: float = Field(0.5, ge=0, le=1, description="distillation: weight of the teacher in the loss")
    distillation_temperature: float = Field(2.0, gt=0, description="distillation: softmax temperature")

    @model_validator(mode="after")
    def _is_consistent(self) -> "TrainingConfig":
        budgets = [name for name in BUDGETS if getattr(self, name) is not None]
        frozen = [name for name in ("freeze_backbone", "gradual_unfreezing_epochs") if getattr(self, name)]
        unsharded = [name for name in ("compile", "gradual_unfreezing_epochs") if getattr(self, name)]
        _refuse(
            (len(budgets) > 1, f"the budget is given twice: {' and '.join(budgets)}", "keep one of them"),
            (
                len(frozen) > 1,
                "training.freeze_backbone and training.gradual_unfreezing_epochs exclude each other",
                "keep one of them",
            ),
            (
                self.fsdp and bool(unsharded),
                f"training.fsdp and training.{' and '.join(unsharded)} exclude each other",
                "keep one of them; without training.fsdp each process holds the whole model",
            ),
            (
                self.reinit_top_layers > 0 and bool(frozen),
                f"training.{' and '.join(frozen)} would never train the layers that training.reinit_top_layers initializes",
                "keep one of them",
            ),
            (
                self.weight_averaging == "last_epochs" and bool({"max_tokens", "max_minutes"} & set(budgets)),
                "which epochs are the last is known only for a budget in epochs or steps",
                "set training.weight_averaging=ema, or a budget in epochs",
            ),
        )
        return self


BUDGETS = ("max_epochs", "max_steps", "max_tokens", "max_minutes")
# Settings of training that do not change the result: another machine may have others.
MACHINE_SETTINGS = (
    "device", "precision", "compile", "fast", "fsdp", "ddp_timeout_minutes", "deterministic", "save_steps",
    "save_minutes", "ignore_memory_check", "tensorboard",
)  # fmt: skip
PATH_SETTINGS = ("exclude_eval_texts_of",)  # settings of data that name other sets
TABLE_SETTINGS = ("label_map",)  # settings that are tables by themselves


class DataConfig(Section):
    """How files are read."""

    text_column: str = Field("text", description="the column that holds the text; A,B for pairs")
    label_column: str = Field("label", description="the column that holds the label")
    task: Literal["auto", TaskName] = Field("auto", description="what the labels are; auto = as they look")
    train_size: int | None = Field(None, ge=2, description="train on a seeded, balanced subset of this many texts")
    on_bad_row: Literal["skip", "error"] = Field("skip", description="what to do with an unusable row")
    truncation_side: Literal["start", "end", "both"] = Field("start", description="part of a long text that is read")
    document_separator: Literal["auto", "line", "paragraph"] = Field(
        "auto", description="what separates documents in a .txt file"
    )
    label_map: dict[str, list[str]] = Field({}, description="classes of labels: {good = ['4', '5']}; no other rows")
    deduplicate: bool = Field(False, description="pretraining: skip a document that occurred before")
    exclude_eval_texts_of: list[str] = Field(
        [], description="labelled sets whose validation and test texts are not read"
    )
    max_length_ratio: float = Field(9.0, ge=0, description="translation: ratio of both sides in characters; 0 = any")


class RunConfig(Section):
    """All settings of one run."""

    job: Job
    preset: str = "tiny"
    model: ModelConfig = ModelConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    lr_schedule: LrScheduleConfig = LrScheduleConfig()
    training: TrainingConfig = TrainingConfig()
    data: DataConfig = DataConfig()

    def with_(self, changes: Mapping[str, Any]) -> "RunConfig":
        """These settings with `changes` (nested by section) on top, checked again."""
        return parse(RunConfig, merge(self.model_dump(), changes))


class Config(Section):
    """Settings for the Python API, by section; only those that are given replace the defaults.

    hs.Config(training={"max_epochs": 3}, model=hs.ModelConfig(dropout=0.1))
    """

    model: ModelConfig = ModelConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    lr_schedule: LrScheduleConfig = LrScheduleConfig()
    training: TrainingConfig = TrainingConfig()
    data: DataConfig = DataConfig()

    def __init__(self, **sections: Any):
        try:
            super().__init__(**sections)
        except ValidationError as error:
            raise _config_error(type(self), error, "") from None

    @property
    def given(self) -> dict[str, Any]:
        """The settings that were given, nested by section."""
        return self.model_dump(exclude_unset=True)


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """`lower` overlaid by `upper`, section by section; a budget, an objective or a warmup replaces the lower one."""
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        if key in TABLE_SETTINGS or not isinstance(value, Mapping) or not isinstance(below, Mapping):
            merged[key] = value
            continue
        replaced: tuple[str, ...] = ()
        if key == "training" and any(value.get(name) is not None for name in BUDGETS):
            replaced = BUDGETS
        if key == "lr_schedule" and value.get("warmup_ratio") is not None:
            replaced = ("warmup_steps",)
        if key == "objective" and value.get("name", below.get("name")) != below.get("name"):
            replaced = tuple(below)  # another objective has other settings
        merged[key] = merge({name: old for name, old in below.items() if name not in replaced}, value)
    return merged


def parse(schema: type[Schema], content: Mapping[str, Any], where: str = "") -> Schema:
    """Validate `content` against `schema`; the first error becomes a sentence with a hint."""
    if not isinstance(content, Mapping):
        raise ConfigError(
            f"{where or 'a section of settings'} is {content!r}, and should be a table of settings",
            hint="write its settings as lines KEY = VALUE under its name in brackets",
        )
    try:
        return schema.model_validate(dict(content))
    except ValidationError as error:
        raise _config_error(schema, error, where) from None


def _config_error(schema: type[BaseModel], error: ValidationError, where: str) -> ConfigError:
    """The first fault of `error` as a sentence with a hint."""
    faults = error.errors()  # a misspelt key first: what it was meant to be is missing because of it
    fault = next((each for each in faults if each["type"] == "extra_forbidden"), faults[0])
    *path, key = fault["loc"] or ("",)
    name, inside = ".".join(map(str, [*path, key])), f" in {where}" if where else ""
    problem = f"setting {name}{inside} cannot be {fault['input']!r}: {fault['msg'].lower()}"
    hint = "docs/reference/settings.md lists every setting with its values"
    if fault["type"] == "extra_forbidden":
        section: Any = schema
        for part in path:  # a number in a list, a name in a section
            section = get_args(section)[0] if isinstance(part, int) else section.model_fields[part].annotation
        problem, hint = f"no setting is called {name!r}{inside}", nearest(str(key), section.model_fields)
    elif fault["type"] == "missing":
        problem = f"{name} is missing{inside}"
        hint = f'write {key} = "…"; the documentation lists every setting'
    return ConfigError(problem, hint=hint)


def preset_names() -> list[str]:
    """The presets that come with headstart."""
    names = (item.name for item in resources.files("headstart.presets").iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def load_preset(name: str) -> dict[str, Any]:
    """A preset's sections: model, tokenizer, and a part for each job."""
    pick(dict.fromkeys(preset_names()), name, "preset")
    return tomllib.loads(resources.files("headstart.presets").joinpath(f"{name}.toml").read_text("utf-8"))


def load_toml(path: Path, kind: str = "settings file", flag: str = "--config") -> dict[str, Any]:
    """A user's settings file, or another `kind` of file that a flag names."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no {kind} at {path}", hint=f"check the path given to {flag}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="name a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", hint="correct the file at that line") from None


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """`section.key=value` words as nested settings; values are read as TOML, bare words as text."""
    nested: dict[str, Any] = {}
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (sign and dot and key):
            raise ConfigError(
                f"--set {assignment!r} is not section.key=value", hint="for example --set model.hidden_size=256"
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
    shared = {key: value for key, value in raw.items() if key not in ("pretrain", "finetune", "title", "note")}
    content = merge({"job": job, "preset": preset, **(defaults or {})}, merge(shared, raw.get(job, {})))
    for overlay in overlays:
        content = merge(content, overlay)
    return parse(RunConfig, content)


def fit_length(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """The settings with a text length that the body has positions for; a length that the user sets is never cut."""
    most = config.model.max_position_embeddings
    if config.training.max_length <= most:
        return config
    if "max_length" in settings.get("training", {}):
        raise ConfigError(
            f"training.max_length {config.training.max_length} is over model.max_position_embeddings {most}",
            hint=f"set training.max_length={most}, or a larger model.max_position_embeddings when training from scratch",
        )
    return config.with_({"training": {"max_length": most}})
