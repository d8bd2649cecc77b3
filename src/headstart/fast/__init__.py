"""Fast paths: each file replaces plain code of the other packages, gives the same results, and can be switched off.

`training.fast=false` switches them off for a run, and the environment variable HEADSTART_FAST=0 for a process.
"""

import os

from headstart.data import pretoken_cache

_setting = True  # training.fast of the run


def is_enabled() -> bool:
    """Whether fast paths are used."""
    return _setting and os.environ.get("HEADSTART_FAST", "1") not in ("0", "false")


def set_enabled(setting: bool) -> None:
    """Apply `training.fast` to this process."""
    global _setting
    _setting = pretoken_cache.enabled = setting
