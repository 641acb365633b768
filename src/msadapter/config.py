"""The settings of msadapter: one frozen dataclass, each field with one environment variable.

    from msadapter.config import config, set_config
    config.fallback                  # an ordinary attribute: cheap enough for a hot path
    set_config(fallback="error")     # replaces the settings in place; everyone who imported `config` sees it

`MSADAPTER_FALLBACK=error` in the environment is `set_config(fallback="error")` at start.
A setting that does not exist, or a value that it cannot take, is a ValueError.
"""

import dataclasses
import difflib
import os
from collections.abc import Mapping
from typing import Any

PREFIX = "MSADAPTER_"

# oneDNN's instruction sets, from the narrowest to the widest; "DEFAULT" leaves the choice to oneDNN.
CPU_ISAS = (
    "DEFAULT", "SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI",
    "AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX512_CORE_AMX", "AVX512_CORE_AMX_FP16",
)  # fmt: skip


def _setting(default: Any, choices: tuple, doc: str) -> Any:
    return dataclasses.field(default=default, metadata={"choices": choices, "doc": doc})


@dataclasses.dataclass(frozen=True)
class Settings:
    """Every setting, its default and the values that it takes."""

    fallback: str = _setting(
        "warn", ("warn", "error", "silent"), "what to do when an op has no native kernel and runs on the host"
    )
    rng: str = _setting("host", ("host",), "where random numbers come from: torch's CPU generator")
    cpu_isa: str | None = _setting(
        None, CPU_ISAS, "the widest instruction set that MindSpore's oneDNN may use; unset: AVX2 on AVX-512 processors"
    )
    cache: str | None = _setting(None, (), "the folder for compiled graphs; unset: ~/.cache/msadapter")
    profile: bool = _setting(False, (False, True), "count and time every op (what `msadapter run --report` turns on)")

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value == field.default and type(value) is type(field.default):
                continue
            if field.name == "rng" and value == "device":
                raise ValueError(
                    "Setting 'rng' (MSADAPTER_RNG): expected 'host'; received 'device', which is not implemented yet. "
                    "Unset it: random numbers then come from torch's CPU generator, as on PyTorch CPU."
                )
            choices = field.metadata["choices"]
            if not choices and isinstance(value, str):
                continue
            if not any(value == c and type(value) is type(c) for c in choices):
                raise ValueError(
                    f"Setting '{field.name}' ({variable(field.name)}): expected {_one_of(choices)}; received {value!r}."
                )


class Config:
    """The settings in force. Read them as attributes; change them with `set_config`."""

    fallback: str
    rng: str
    cpu_isa: str | None
    cache: str | None
    profile: bool

    def __init__(self, settings: Settings) -> None:
        self.__dict__.update(dataclasses.asdict(settings))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Settings are read-only here; use msadapter.config.set_config({name}={value!r}).")

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{k}={v!r}' for k, v in self.__dict__.items())})"


def variable(name: str) -> str:
    """The environment variable of a setting: 'cpu_isa' -> 'MSADAPTER_CPU_ISA'."""
    return PREFIX + name.upper()


def from_environment(environ: Mapping[str, str] | None = None) -> Settings:
    """Settings with what the MSADAPTER_* variables say; an empty variable counts as unset."""
    environ = os.environ if environ is None else environ
    fields = {variable(f.name): f for f in dataclasses.fields(Settings)}
    values: dict[str, Any] = {}
    for name, text in environ.items():
        if not name.startswith(PREFIX) or not text:
            continue
        if name not in fields:
            raise ValueError(_unknown("environment variable", name, list(fields)))
        values[fields[name].name] = _parse(fields[name], text.strip())
    return Settings(**values)


def set_config(**changes: Any) -> Settings:
    """Change settings: `set_config(fallback="error")`. Returns the former: `set_config(**asdict(old))` undoes it."""
    names = [f.name for f in dataclasses.fields(Settings)]
    for name in changes:
        if name not in names:
            raise ValueError(_unknown("setting", name, names))
    old = Settings(**config.__dict__)
    config.__dict__.update(dataclasses.asdict(dataclasses.replace(old, **changes)))
    return old


def _parse(field: Any, text: str) -> Any:
    if isinstance(field.default, bool):
        words = {"1": True, "true": True, "0": False, "false": False}
        if text.lower() not in words:
            raise ValueError(f"Setting '{field.name}' ({variable(field.name)}): expected 0 or 1; received {text!r}.")
        return words[text.lower()]
    if not field.metadata["choices"]:
        return text
    return text.upper() if field.name == "cpu_isa" else text.lower()


def _one_of(choices: tuple) -> str:
    return ("one of " if len(choices) > 1 else "") + ", ".join(repr(c) for c in choices)


def _unknown(kind: str, name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"Unknown {kind} {name}: expected one of {', '.join(known)}.{hint}"


config = Config(from_environment())
