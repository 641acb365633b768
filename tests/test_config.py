"""Settings: defaults, environment variables, and errors that name what is wrong."""

import dataclasses
import os
import subprocess
import sys

import pytest

from msadapter.config import Settings, config, from_environment, set_config


@pytest.fixture(autouse=True)
def restore():
    old = set_config()
    yield
    set_config(**dataclasses.asdict(old))


def test_defaults():
    assert from_environment({}) == Settings(fallback="warn", rng="host", cpu_isa=None, profile=False)


def test_environment_is_read_and_other_variables_are_left_alone():
    env = {"MSADAPTER_FALLBACK": "Error", "MSADAPTER_CPU_ISA": "avx512_core", "MSADAPTER_PROFILE": "1", "HOME": "x"}
    assert from_environment(env) == Settings(fallback="error", cpu_isa="AVX512_CORE", profile=True)


def test_an_empty_variable_counts_as_unset():
    assert from_environment({"MSADAPTER_FALLBACK": ""}) == Settings()


@pytest.mark.parametrize(
    "env, words",
    [
        ({"MSADAPTER_FALLBACK": "never"}, ["MSADAPTER_FALLBACK", "'warn', 'error', 'silent'", "'never'"]),
        ({"MSADAPTER_CPU_ISA": "mmx"}, ["MSADAPTER_CPU_ISA", "'AVX2'", "'MMX'"]),
        ({"MSADAPTER_PROFILE": "maybe"}, ["MSADAPTER_PROFILE", "0 or 1", "'maybe'"]),
        ({"MSADAPTER_RNG": "device"}, ["MSADAPTER_RNG", "'host'", "not implemented"]),
        ({"MSADAPTER_RNG": "gpu"}, ["MSADAPTER_RNG", "'host'", "'gpu'"]),
        ({"MSADAPTER_FALBACK": "warn"}, ["MSADAPTER_FALBACK", "Did you mean MSADAPTER_FALLBACK?"]),
    ],
)
def test_bad_environment(env, words):
    with pytest.raises(ValueError) as error:
        from_environment(env)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_set_config_changes_the_object_that_everyone_imported():
    before = set_config(fallback="silent")
    assert config.fallback == "silent"
    set_config(**dataclasses.asdict(before))
    assert config.fallback == before.fallback


@pytest.mark.parametrize("change", [{"fallback": "no"}, {"fallback": None}, {"profile": 1}, {"fallbak": "warn"}])
def test_a_refused_change_changes_nothing(change):
    before = repr(config)
    with pytest.raises(ValueError):
        set_config(**{"cpu_isa": "AVX2", **change})
    assert repr(config) == before


def test_config_is_read_only():
    with pytest.raises(AttributeError, match="set_config"):
        config.fallback = "error"


def test_a_wrong_variable_stops_a_program_with_the_name_of_the_variable():
    run = subprocess.run(
        [sys.executable, "-c", "import msadapter.config"],
        env={**os.environ, "MSADAPTER_FALLBACK": "loud", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
    )
    assert run.returncode != 0
    assert "MSADAPTER_FALLBACK" in run.stderr and "'loud'" in run.stderr
