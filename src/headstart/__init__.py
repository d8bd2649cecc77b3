"""Headstart: pretrain one base, swap its head, fine-tune on a few labels, and prove what it bought.

import headstart as hs

base = hs.pretrain(["reviews.txt"], "runs/base", settings={"training": {"minutes": 5}})
found = hs.compare("labelled.tsv", bases=[str(base.path)])
print(found.arm("classical").accuracy)
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headstart.api import Embedder as Embedder
    from headstart.api import LanguageModel as LanguageModel
    from headstart.api import TextClassifier as TextClassifier
    from headstart.api import TextRegressor as TextRegressor
    from headstart.api import TokenClassifier as TokenClassifier
    from headstart.api import Translator as Translator
    from headstart.api import compare as compare
    from headstart.config import Config as Config
    from headstart.data.audit import inspect_data as inspect_data
    from headstart.data.datasets import load_dataset as load_dataset
    from headstart.data.libreoffice import fetch as fetch
    from headstart.data.parallel import load_parallel as load_parallel
    from headstart.errors import HeadstartError as HeadstartError
    from headstart.inference.classify import predict as predict
    from headstart.inference.embed import contextual_vectors as contextual_vectors
    from headstart.inference.embed import embed as embed
    from headstart.inference.embed import nearest_texts as nearest_texts
    from headstart.inference.embed import text_vectors as text_vectors
    from headstart.inference.generate import generate as generate
    from headstart.inference.loaded_model import load_model as load_model
    from headstart.inference.translate import translate as translate
    from headstart.models.model import HeadSpec as HeadSpec
    from headstart.pretrained import shipped_bases as shipped_bases
    from headstart.workflows.convert import export as export
    from headstart.workflows.convert import import_model as import_model
    from headstart.workflows.demo import run_demo as run_demo
    from headstart.workflows.evaluate import evaluate as evaluate
    from headstart.workflows.finetune import finetune as finetune
    from headstart.workflows.finetune import swap_heads as swap_heads
    from headstart.workflows.label_errors import find_label_errors as find_label_errors
    from headstart.workflows.package import package as package
    from headstart.workflows.pretrain import pretrain as pretrain
    from headstart.workflows.recipe import run_recipe as run_recipe
    from headstart.workflows.resume import resume as resume
    from headstart.workflows.tune import tune as tune

# Threads that wait for each other in a busy loop slow training tenfold when anything else runs on the machine, and
# gain nothing when nothing does. OpenMP reads this once, when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Where each public name lives; it is imported when it is first used, so that `import headstart` is instant.
_PUBLIC = {
    "Config": "headstart.config",
    "Embedder": "headstart.api",
    "LanguageModel": "headstart.api",
    "TextClassifier": "headstart.api",
    "TextRegressor": "headstart.api",
    "TokenClassifier": "headstart.api",
    "Translator": "headstart.api",
    "HeadSpec": "headstart.models.model",
    "HeadstartError": "headstart.errors",
    "compare": "headstart.api",
    "evaluate": "headstart.workflows.evaluate",
    "export": "headstart.workflows.convert",
    "fetch": "headstart.data.libreoffice",
    "finetune": "headstart.workflows.finetune",
    "find_label_errors": "headstart.workflows.label_errors",
    "generate": "headstart.inference.generate",
    "import_model": "headstart.workflows.convert",
    "inspect_data": "headstart.data.audit",
    "load_dataset": "headstart.data.datasets",
    "load_parallel": "headstart.data.parallel",
    "contextual_vectors": "headstart.inference.embed",
    "embed": "headstart.inference.embed",
    "load_model": "headstart.inference.loaded_model",
    "package": "headstart.workflows.package",
    "predict": "headstart.inference.classify",
    "pretrain": "headstart.workflows.pretrain",
    "nearest_texts": "headstart.inference.embed",
    "resume": "headstart.workflows.resume",
    "run_demo": "headstart.workflows.demo",
    "run_recipe": "headstart.workflows.recipe",
    "shipped_bases": "headstart.pretrained",
    "suggest": "headstart.workflows.active_learning",
    "swap_heads": "headstart.workflows.finetune",
    "text_vectors": "headstart.inference.embed",
    "translate": "headstart.inference.translate",
    "tune": "headstart.workflows.tune",
}
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("headstart")
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'headstart' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
