"""The places a model can go to, by name."""

from collections.abc import Callable
from pathlib import Path

from headstart.interchange.ctranslate2 import write_ctranslate2
from headstart.interchange.onnx import write_onnx
from headstart.interchange.parcel import Parcel, Written
from headstart.interchange.transformers import write_transformers

# Each fills a folder that is not yet in its place, and raises rather than leave a model that answers otherwise.
EXPORTERS: dict[str, Callable[[Parcel, Path], Written]] = {
    "transformers": write_transformers,
    "onnx": write_onnx,
    "ctranslate2": write_ctranslate2,
}
